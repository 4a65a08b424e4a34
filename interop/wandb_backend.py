"""A backend of W&B on this machine, as far as `wandb sync` asks for one: runs by GraphQL, their rows by the file stream."""

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ENTITY = "entity"


class Run:
    """What the backend holds of a run."""

    def __init__(self):
        self.display_name = None
        self.config = {}
        self.rows = []
        self.summary = {}
        self.exit_code = None
        self.is_complete = False


class Backend:
    """Serves on a free port of the loopback until it is closed. `runs` are by project and id."""

    def __init__(self):
        self.runs = {}
        self.changed = threading.Condition()
        backend = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                self.answer(backend.answer(self.path, self.headers, body))

            def do_PUT(self):
                self.rfile.read(int(self.headers.get("content-length") or 0))
                self.answer({})

            def do_GET(self):
                self.answer({})

            def answer(self, reply):
                body = json.dumps(reply).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def run(self, project, name):
        return self.runs.setdefault((project, name), Run())

    def wait(self, what, timeout_s):
        """Waits until something is true of the runs."""
        with self.changed:
            assert self.changed.wait_for(what, timeout_s), {key: vars(run) for key, run in self.runs.items()}

    def answer(self, path, headers, body):
        with self.changed:
            if path.endswith("/graphql"):
                reply = self.graphql(json.loads(body))
            elif path.endswith("/file_stream"):
                _, _, _, project, name, _ = path.split("/")
                reply = self.file_stream(self.run(project, name), headers, json.loads(body))
            else:
                reply = {}
            self.changed.notify_all()
            return reply

    def graphql(self, call):
        told = call.get("variables") or {}
        operation = call.get("operationName")
        if operation == "UpsertBucket":
            return {"data": {"upsertBucket": self.upsert(told)}}
        if operation == "CreateRunFiles":
            files = {"runID": told["run"], "uploadHeaders": [], "files": []}
            return {"data": {"createRunFiles": files}}
        if operation == "RunResumeStatus":
            return {"data": {"model": None}}
        if operation == "Viewer":
            viewer = {"id": "user", "entity": ENTITY, "username": ENTITY, "flags": "{}", "teams": {"edges": []}}
            return {"data": {"viewer": viewer}}
        return {"data": {}}

    def upsert(self, told):
        """What is told of a run takes the place of what was known."""
        key = (told["project"], told["name"])
        inserted = key not in self.runs
        run = self.run(*key)
        run.display_name = told.get("displayName") or run.display_name
        run.config |= json.loads(told.get("config") or "{}")
        project = {"id": "project", "name": key[0], "entity": {"id": "entity", "name": ENTITY}}
        bucket = {
            "id": "bucket",
            "name": key[1],
            "displayName": run.display_name or "",
            "description": "",
            "config": json.dumps(run.config),
            "sweepName": None,
            "historyLineCount": len(run.rows),
            "project": project,
        }
        return {"bucket": bucket, "inserted": inserted}

    def file_stream(self, run, headers, told):
        files = told.get("files") or {}
        # A call may tell of the summary or the end alone.
        history = files.get("wandb-history.jsonl") or {"offset": len(run.rows), "content": []}
        rows = [json.loads(line) for line in history["content"]]
        if headers.get("x-wandb-use-async-filestream") == "true":
            # One of several writers: its rows follow what is there, whoever wrote that, and are numbered so.
            for row in rows:
                run.rows.append(row | {"_step": run.rows[-1]["_step"] + 1 if run.rows else 0})
        else:
            # The only writer tells where its lines lie, and what lay there is gone. Its steps only grow: a row with an earlier one
            # is refused.
            del run.rows[history["offset"] :]
            for row in rows:
                if not run.rows or row["_step"] > run.rows[-1]["_step"]:
                    run.rows.append(row)
        for line in (files.get("wandb-summary.json") or {"content": []})["content"]:
            run.summary |= json.loads(line)
        if told.get("complete"):
            run.is_complete, run.exit_code = True, told.get("exitcode")
        return {}
