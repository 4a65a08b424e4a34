"""The numbers of a run in W&B's, TensorBoard's and MLflow's own hands: each reads back every name and value, once; of steps that
are amended the amended ones, and in TensorBoard all that a trainer has written into the same folder.

W&B's own programs also send them to a backend on this machine, into a run of their own and into one that a trainer has
written rows, a name and a configuration to."""

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

import wandb
from servers import Servers
from wandb_backend import Backend

STEP = "rollout/step"
ROLLSCOPE = os.environ["ROLLSCOPE"]
BIN = Path(sys.executable).parent
PROJECT = "interop"
SYNC_TIMEOUT_S = 120
# What has `wandb sync` add to a run as one of its writers.
SHARED = {"WANDB_MODE": "shared", "WANDB_X_PRIMARY": "false", "WANDB_X_UPDATE_FINISH_STATE": "false"}


def track(run, *targets, code=0):
    """Sends a run's numbers; gives what was said."""
    to = [part for target in targets for part in ("--to", target)]
    done = subprocess.run([ROLLSCOPE, "track", str(run), *to], capture_output=True, text=True)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout


def check(name, expected, found, tolerance):
    """Every name with its value, and none besides."""
    assert found.keys() == expected.keys(), (name, found.keys() ^ expected.keys())
    for key, value in expected.items():
        assert math.isclose(found[key], value, rel_tol=tolerance, abs_tol=tolerance), (name, key, value, found[key])
    print(f"{name}: {len(found)} numbers read back")


def inspected(offline):
    """The records of an offline run, by W&B's own reader."""
    said = subprocess.run(
        [BIN / "wandb", "leet", "inspect", "--json", str(offline)],
        check=True,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    ).stdout
    return [json.loads(line) for line in said.splitlines()]


def history(records):
    return [record["history"]["item"] for record in records if record["type"] == "history"]


def check_wandb(offline, expected, name):
    """Reads an offline run back; it tells of itself only where it has a name."""
    records = inspected(offline)
    check_rows(f"wandb {wandb.__version__}", history(records), expected)
    axes = [record["metric"].get("step_metric") for record in records if record["type"] == "metric"]
    assert axes == [None, STEP, STEP, STEP], axes
    [told] = [record["run"] for record in records if record["type"] == "run"]
    assert told["project"] == PROJECT and told.get("display_name") == name, told
    assert bool(told.get("config")) == (name is not None), told
    assert records[-1]["type"] == "exit", "the run is complete"


def check_rows(reader, found, expected):
    """A row for each step, with every name once."""
    assert [row[STEP] for row in found] == [step for step, _ in expected], found
    for (step, numbers), row in zip(expected, found):
        own = {key: value for key, value in row.items() if not key.startswith("_") and key != STEP}
        check(f"{reader}, step {step}", numbers, own, 1e-12)


def sync(backend, offline, *command, **settings):
    """Starts `wandb` on an offline run, with a backend on this machine and folders of its own."""
    folders = {f"WANDB_{what}_DIR": str(Path("wandb-folders").absolute()) for what in ("CACHE", "CONFIG", "DATA")}
    own = {"WANDB_BASE_URL": backend.url, "WANDB_API_KEY": "0" * 40, "WANDB_ERROR_REPORTING": "false"}
    # It sends each second instead of each quarter of a minute.
    own["WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL"] = "1"
    return subprocess.Popen(
        [BIN / "wandb", *command, str(offline)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | folders | own | settings,
    )


def ended(process):
    try:
        said, _ = process.communicate(timeout=SYNC_TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0, (process.returncode, said)


def check_axis(run):
    """Everything is drawn over the step; W&B's configuration numbers the metrics that it knows."""
    [axis] = [at for at, metric in enumerate(run.config["_wandb"]["value"]["m"], 1) if metric.get("1") == STEP]
    over = {metric["2"] for metric in run.config["_wandb"]["value"]["m"] if metric.get("5") == axis}
    assert over == {"perf/*", "rollout/*", "eval/*"}, run.config


def check_own_run(offline, expected, name):
    with Backend() as backend:
        ended(sync(backend, offline, "sync"))
        [(key, run)] = backend.runs.items()
        assert key[0] == PROJECT and run.display_name == name, (key, run.display_name)
        check_rows("wandb sync", run.rows, expected)
        check_axis(run)
        assert run.is_complete and run.exit_code == 0, vars(run)
        step, numbers = expected[-1]
        check("wandb sync, summary", numbers, {name: run.summary.get(name) for name in numbers}, 1e-12)
        assert run.summary[STEP] == step, run.summary


def trainer_run(backend):
    """A run that a trainer has written to, farther than any step of ours."""
    run = backend.run(PROJECT, "trainer")
    run.display_name, run.config = "night", {"lr": {"value": 1e-6}}
    run.rows = [{"_step": step, "train/loss": 1 / step, "train/step": step} for step in range(5000, 5003)]
    return run, list(run.rows)


def check_trainer_run(run, trainers, expected):
    """The trainer's rows, name, configuration and state are as they were, and the others follow."""
    assert run.rows[: len(trainers)] == trainers, run.rows
    check_rows("wandb sync into the trainer's run", run.rows[len(trainers) :], expected)
    check_axis(run)
    assert run.display_name == "night" and not run.is_complete, vars(run)
    assert {key: value for key, value in run.config.items() if key != "_wandb"} == {"lr": {"value": 1e-6}}, run.config
    assert "_runtime" not in run.summary, run.summary


def check_syncs_into_the_trainer_s_run(offline, expected):
    with Backend() as backend:
        run, trainers = trainer_run(backend)
        ended(sync(backend, offline, "sync", "--id", "trainer", **SHARED))
        check_trainer_run(run, trainers, expected)


def post(url, body):
    with urllib.request.urlopen(urllib.request.Request(url, body.encode(), method="POST"), timeout=60) as reply:
        return json.load(reply)


def check_syncs_while_it_grows():
    """A gateway that records two steps, the second of them after the first has arrived."""
    live = Path("live")
    with Backend() as backend, Servers() as servers:
        run, trainers = trainer_run(backend)
        gateway = servers.start("gateway", "--port", "0", "--record", str(live), "--track", f"wandb:{PROJECT}")
        expected, syncing = [], None
        try:
            for step in (1, 2):
                mark = {"type": "sample", "step": step, "sample": "0", "reward": 0.5, "response_tokens": 7}
                post(f"{gateway.url}/rollscope/v1/spans", json.dumps(mark))
                expected.append((step, post(f"{gateway.url}/rollscope/steps/{step}/end", "")["data"]))
                if syncing is None:
                    offline = wait_for(lambda: next((live / "wandb").glob("offline-run-*/*.wandb"), None)).parent
                    syncing = sync(backend, offline, "beta", "sync", "--live", "--id", "trainer", **SHARED)
                arrived = len(trainers) + len(expected)
                backend.wait(lambda: len(run.rows) == arrived, SYNC_TIMEOUT_S)
            servers.stop()
            ended(syncing)
        finally:
            if syncing is not None:
                syncing.kill()
        check_trainer_run(run, trainers, expected)


def wait_for(what):
    deadline = time.monotonic() + SYNC_TIMEOUT_S
    while not (found := what()):
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.05)
    return found


def trainer_writes(board, began, steps):
    """A file of a trainer's in the folder that it shares with the run; files are read in the order of when they began."""
    Path(board).mkdir(exist_ok=True)
    with open(Path(board) / f"events.out.tfevents.{began}.trainer", "wb") as file:
        writer = RecordWriter(file)
        for step in steps:
            value = Summary.Value(tag="train/loss", simple_value=1 / (1 + step))
            event = Event(step=step, wall_time=began + step, summary=Summary(value=[value]))
            writer.write(event.SerializeToString())


def check_tensorboard(board, expected, trained):
    """Every name of ours with its value, and in a run beside it every scalar of the trainer's."""
    boards = EventMultiplexer(size_guidance={"scalars": 0}).AddRunsFromDirectory(board)
    boards.Reload()
    [own] = [name for name in boards.Runs() if name != "."]
    for step, numbers in expected:
        found = {}
        for tag in boards.Runs()[own]["scalars"]:
            values = [event.value for event in boards.Scalars(own, tag) if event.step == step]
            assert len(values) <= 1, (tag, values)
            found.update({tag: value for value in values if tag != STEP})
        # Its scalars are of single precision.
        check(f"tensorboard, step {step}", numbers, found, 1e-6)
    assert boards.Runs()["."]["scalars"] == ["train/loss"], boards.Runs()
    found = {str(event.step): event.value for event in boards.Scalars(".", "train/loss")}
    check("tensorboard, the trainer's", {str(step): 1 / (1 + step) for step in trained}, found, 1e-6)


def amend(sent, expected):
    """Both steps change, the later one first, after an older one came late; gives what holds then."""
    changed = [(step, {name: value - 1 for name, value in numbers.items()}) for step, numbers in expected]
    with sent.open("a") as file:
        for step, numbers in [(0, expected[0][1]), *reversed(changed)]:
            file.write(json.dumps({"step": step, "data": numbers}) + "\n")
    return [(0, expected[0][1]), *changed]


def check_amended_wandb(offline, expected):
    """The last row over a step is the amended one, and the summary is of the latest step."""
    last = {row[STEP]: row for row in history(inspected(offline))}
    check_rows("wandb, amended", [last[step] for step, _ in expected], expected)
    # W&B marks a file that it has sent, and passes over it.
    again = Path("again") / offline.name
    shutil.copytree(offline, again, ignore=shutil.ignore_patterns("*.synced"))
    with Backend() as backend:
        ended(sync(backend, again, "sync"))
        [run] = backend.runs.values()
        last = {row[STEP]: row for row in run.rows}
        check_rows("wandb sync, amended", [last[step] for step, _ in expected], expected)
        step, numbers = expected[-1]
        check("wandb sync, summary of what is amended", numbers, {name: run.summary.get(name) for name in numbers}, 1e-12)
        assert run.summary[STEP] == step, run.summary


class MlflowServer:
    """A server with its own database; what it starts ends with it."""

    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}"
        command = [BIN / "mlflow", "server", "--backend-store-uri", "sqlite:///mlflow.db", "--port", str(port)]
        log = open("mlflow.log", "ab")
        self.process = subprocess.Popen(
            [*command, "--workers", "1"], stdout=log, stderr=log, start_new_session=True
        )

    def wait(self):
        deadline = time.monotonic() + 240
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=10) as reply:
                    return reply.read()
            except OSError:
                assert self.process.poll() is None, Path("mlflow.log").read_text()
                assert time.monotonic() < deadline, "MLflow does not start"
                time.sleep(0.5)

    def stop(self):
        # It leaves its workers behind unless the whole group is told.
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def check_mlflow(client, expected, times):
    """Of a step that was sent several times the value with the latest time holds; what MLflow shows of the run is of the latest
    step. It takes no @ in a name."""
    [there] = client.search_runs([client.get_experiment_by_name("rollscope").experiment_id])
    histories = {key: client.get_metric_history(there.info.run_id, key) for key in there.data.metrics}
    for step, numbers in expected:
        usable = {key.replace("@", "_"): value for key, value in numbers.items()}
        found = {}
        for key, metrics in histories.items():
            values = sorted((metric.timestamp, metric.value) for metric in metrics if metric.step == step)
            assert len(values) <= times(step), (key, values)
            found.update({key: value for _, value in values[-1:] if key != STEP})
        check(f"mlflow, step {step}", usable, found, 1e-12)
    latest = {key: value for key, value in there.data.metrics.items() if key != STEP}
    check("mlflow, latest", usable, latest, 1e-12)


def main():
    run = Path("run")
    shutil.copytree(os.environ["RUN"], run)
    sent = run / "metrics.jsonl"
    [first] = [json.loads(line) for line in sent.read_text().splitlines()]
    # What a second step would have sent.
    second = {"step": first["step"] + 1, "data": {name: 2 * value for name, value in first["data"].items()}}
    with sent.open("a") as file:
        file.write(json.dumps(second) + "\n")
    expected = [(line["step"], line["data"]) for line in (first, second)]
    assert all(len(numbers) > 100 for _, numbers in expected), expected
    # What servers publish at their metrics endpoints has a colon in its name; none of it is ever sent.
    assert not [name for _, numbers in expected for name in numbers if ":" in name or name.startswith("sglang")]

    began = int(time.time())
    trainer_writes("board", began - 1_000_000, range(5))
    targets = [f"wandb:{PROJECT}/demo", f"wandb:{PROJECT}", "tensorboard:board", "jsonl:lines.jsonl"]
    said = track(run, *targets).splitlines()
    offline = [Path(line.split("wandb sync ")[1]) for line in said if "wandb sync" in line]
    for line in track(run, *targets).splitlines():
        assert line.startswith("0 steps sent"), line
    lines = [json.loads(line) for line in Path("lines.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [step for step, _ in expected], lines
    for line, (step, numbers) in zip(lines, expected):
        check(f"jsonl, step {step}", numbers, line["data"], 1e-12)
    named, nameless = offline
    check_wandb(named, expected, "demo")
    check_wandb(nameless, expected, None)
    check_own_run(named, expected, "demo")
    check_syncs_into_the_trainer_s_run(nameless, expected)
    check_syncs_while_it_grows()
    trainer_writes("board", began, range(5, 8))
    check_tensorboard("board", expected, range(8))

    port = free_port()
    mlflow = f"mlflow:http://127.0.0.1:{port}"
    track(run, mlflow, code=1)  # There is no server yet, which is an error and loses nothing.
    server = MlflowServer(port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        server.wait()
        print(track(run, mlflow).strip())
        assert track(run, mlflow).startswith("0 steps sent"), "what is there is not sent again"
        os.environ["MLFLOW_TRACKING_URI"] = server.url
        from mlflow import MlflowClient

        client = MlflowClient()
        check_mlflow(client, expected, lambda step: 1)
        amended = amend(sent, expected)
        targets = [f"wandb:{PROJECT}/demo", "tensorboard:board", mlflow]
        for line in track(run, *targets).splitlines():
            assert line.startswith("3 steps sent"), line
        for line in track(run, *targets).splitlines():
            assert line.startswith("0 steps sent"), line
        check_mlflow(client, amended, lambda step: 2 if step else 1)
    finally:
        server.stop()
    check_amended_wandb(named, amended)
    trainer_writes("board", began + 1, range(8, 12))
    check_tensorboard("board", amended, range(12))


if __name__ == "__main__":
    main()
