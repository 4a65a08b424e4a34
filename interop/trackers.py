"""The numbers of a run in W&B's, TensorBoard's and MLflow's own hands: each reads back every name and value, once."""

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

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import wandb

STEP = "rollout/step"
ROLLSCOPE = os.environ["ROLLSCOPE"]
BIN = Path(sys.executable).parent


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


def check_wandb(run, expected):
    [offline] = (run / "wandb").glob("offline-run-*")
    inspected = subprocess.run(
        [BIN / "wandb", "leet", "inspect", "--json", str(offline)],
        check=True,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    ).stdout
    records = [json.loads(line) for line in inspected.splitlines()]
    found = [record["history"]["item"] for record in records if record["type"] == "history"]
    assert [row[STEP] for row in found] == [step for step, _ in expected], found
    for (step, numbers), row in zip(expected, found):
        own = {key: value for key, value in row.items() if not key.startswith("_") and key != STEP}
        check(f"wandb {wandb.__version__}, step {step}", numbers, own, 1e-12)
    axes = [record["metric"].get("step_metric") for record in records if record["type"] == "metric"]
    assert axes == [None, STEP, STEP, STEP], axes
    assert records[-1]["type"] == "exit", "the run is complete"


def check_tensorboard(folder, expected):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    for step, numbers in expected:
        found = {}
        for tag in events.Tags()["scalars"]:
            values = [event.value for event in events.Scalars(tag) if event.step == step]
            assert len(values) <= 1, (tag, values)
            found.update({tag: value for value in values if tag != STEP})
        # Its scalars are of single precision.
        check(f"tensorboard, step {step}", numbers, found, 1e-6)


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


def check_mlflow(run, expected):
    port = free_port()
    target = f"mlflow:http://127.0.0.1:{port}"
    track(run, target, code=1)  # There is no server yet, which is an error and loses nothing.
    server = MlflowServer(port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        server.wait()
        print(track(run, target).strip())
        assert track(run, target).startswith("0 steps sent"), "what is there is not sent again"
        os.environ["MLFLOW_TRACKING_URI"] = server.url
        from mlflow import MlflowClient

        client = MlflowClient()
        [there] = client.search_runs([client.get_experiment_by_name("rollscope").experiment_id])
        for step, numbers in expected:
            found = {}
            for key in there.data.metrics:
                values = [metric.value for metric in client.get_metric_history(there.info.run_id, key) if metric.step == step]
                assert len(values) <= 1, (key, values)
                found.update({key: value for value in values if key != STEP})
            # It takes no @ in a name.
            check(f"mlflow, step {step}", {key.replace("@", "_"): value for key, value in numbers.items()}, found, 1e-12)
    finally:
        server.stop()


def main():
    run = Path("run")
    shutil.copytree(os.environ["RUN"], run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    expected = [(line["step"], line["data"]) for line in lines]
    assert expected and all(len(numbers) > 100 for _, numbers in expected), lines
    # What servers publish at their metrics endpoints has a colon in its name; none of it is ever sent.
    assert not [name for _, numbers in expected for name in numbers if ":" in name or name.startswith("sglang")]

    targets = ["wandb:interop/demo", "tensorboard:board", "jsonl:lines.jsonl"]
    print(track(run, *targets).strip())
    for said in track(run, *targets).splitlines():
        assert said.startswith("0 steps sent"), said
    sent = [json.loads(line) for line in Path("lines.jsonl").read_text().splitlines()]
    assert [line["step"] for line in sent] == [step for step, _ in expected], sent
    for line, (step, numbers) in zip(sent, expected):
        check(f"jsonl, step {step}", numbers, line["data"], 1e-12)
    check_wandb(run, expected)
    check_tensorboard("board", expected)
    check_mlflow(run, expected)


if __name__ == "__main__":
    main()
