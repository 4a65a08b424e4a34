"""Dynamo reads what the engine publishes: its relay carries it to its event plane, its subscriber and its recorder take it
from there. Of a stream of passes that a formula gives, its planner's regressions are those of `rollscope report --plan`.

Dynamo's event plane listens on every address of the machine, so all of this runs in a network of its own."""

import asyncio
import ctypes
import fcntl
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import time
import types
import urllib.request

import duckdb
import numpy
import scipy.optimize
import zmq

from servers import Servers

PATIENCE_S = 60
PASSES = 60
CLOSE = 1e-6
# Passes of a rank of each kind.
STREAM = 240
# In the order of Dynamo's regressions.
FEATURES = {
    "prefill": ["prefill_tokens"],
    "decode": ["decode_requests", "decode_kv_tokens"],
    "mixed": ["prefill_tokens", "decode_kv_tokens"],
}


def own_network():
    """Goes on in a network that has nothing but the loopback interface."""
    if os.environ.get("OWN_NETWORK") != "yes":
        root = [] if os.getuid() == 0 else ["--map-root-user"]
        command = ["unshare", "--net", *root, sys.executable, *sys.argv]
        os.execvpe(command[0], command, os.environ | {"OWN_NETWORK": "yes"})
    up, set_flags = 1, 0x8914
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sh14x", b"lo", up))


def get(url):
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as reply:
        return json.load(reply)


def generate(url, prompt_tokens, new_tokens):
    sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
    body = {"input_ids": [5 + index % 10 for index in range(prompt_tokens)], "sampling_params": sampling}
    request = urllib.request.Request(url + "/generate", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        return json.load(reply)["meta_info"]


def until(what, condition):
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)
    return found


class Recorder:
    """Dynamo's recorder, a process of its own."""

    def __init__(self):
        self.output, self.log = pathlib.Path("recorded.jsonl"), pathlib.Path("recorder.log")
        command = [sys.executable, "-m", "dynamo.common.recv_forward_pass_metrics", "--output", str(self.output)]
        command += ["--flush-interval", "0.1", "--discovery-backend", "file", "--request-plane", "tcp"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def records(self):
        lines = self.output.read_text().splitlines() if self.output.exists() else []
        return [json.loads(line)["metrics"] for line in lines]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE_S)
        return self.log.read_text()


async def relay(servers):
    """Every pass of a request, by the relay, at the subscriber and in the recorder's file."""
    from dynamo.common.forward_pass_metrics import decode
    from dynamo.llm import FpmEventRelay, FpmEventSubscriber
    from dynamo.runtime import DistributedRuntime

    engine = servers.start("engine", "--model-path", "bundled", "--port", "0", "--enable-forward-pass-metrics")
    base = get(engine.url + "/server_info")["internal_states"][0]["forward_pass_metrics_ipc_name"]
    direct = zmq.Context.instance().socket(zmq.SUB)
    direct.setsockopt(zmq.RCVTIMEO, PATIENCE_S * 1000)
    direct.subscribe(b"")
    direct.connect(f"{base}.0")
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")
    endpoint = runtime.endpoint("dynamo.backend.generate")
    relay = FpmEventRelay(endpoint, f"{base}.0")
    subscriber, recorder = FpmEventSubscriber(endpoint), Recorder()
    try:
        # Heartbeats tell that everybody has found the relay.
        first = decode(await asyncio.to_thread(subscriber.recv))
        assert first.wall_time == 0, first
        await asyncio.to_thread(until, "the recorder hears the relay", recorder.records)
        meta = await asyncio.to_thread(generate, engine.url, 20, PASSES)
        first, last = meta["forward_pass_first_counter_id"], meta["forward_pass_last_counter_id"]
        relayed, sent = {}, {}
        while last not in relayed:
            payload = await asyncio.to_thread(subscriber.recv)
            relayed[decode(payload).counter_id] = payload
        while last not in sent:
            _, number, payload = direct.recv_multipart()
            sent[int.from_bytes(number, "big")] = payload
        wanted = range(first, last + 1)
        assert len(wanted) >= PASSES
        assert [relayed.get(number) for number in wanted] == [sent.get(number) for number in wanted]
        is_recorded = lambda: any(record["counter_id"] >= last for record in recorder.records())
        await asyncio.to_thread(until, "the recorder has the last pass", is_recorded)
        numbers = [record["counter_id"] for record in recorder.records()]
        assert set(wanted) <= set(numbers), numbers
        assert numbers == list(range(numbers[0], numbers[-1] + 1)), numbers
    finally:
        log = recorder.stop()
        relay.shutdown()
        subscriber.shutdown()
        runtime.shutdown()
    assert "rejected=0" in log and "counter_gaps=0" in log, log
    servers.stop()
    print(f"{len(wanted)} passes relayed, subscribed to and recorded by Dynamo")


def load_planner():
    """The planner's regressions, without the packages that stand around them and want a cluster."""
    root = pathlib.Path(importlib.util.find_spec("dynamo.common").submodule_search_locations[0]).parent
    for name in ["dynamo.planner", "dynamo.planner.core", "dynamo.planner.core.perf_model"]:
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    from dynamo.planner.core.perf_model.agg import AggRegressionModel
    from dynamo.planner.core.perf_model.decode import DecodeRegressionModel
    from dynamo.planner.core.perf_model.prefill import PrefillRegressionModel

    return {"prefill": PrefillRegressionModel, "decode": DecodeRegressionModel, "mixed": AggRegressionModel}


def passes_of(run):
    """The recorded passes by endpoint, in the order in which they were heard of, as Dynamo has them."""
    from dynamo.common.forward_pass_metrics import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

    parts = f"{run}/steps/step=*/forward_passes/*.parquet"
    rows = duckdb.sql(f"select * from read_parquet('{parts}') order by received_ns, endpoint, counter_id")
    passes = {}
    for row in (dict(zip(rows.columns, values)) for values in rows.fetchall()):
        of = lambda prefix: {
            "num_prefill_requests": row[f"{prefix}_prefill_requests"],
            "sum_prefill_tokens": row[f"{prefix}_prefill_tokens"],
            "num_decode_requests": row[f"{prefix}_decode_requests"],
            "sum_decode_kv_tokens": row[f"{prefix}_decode_kv_tokens"],
        }
        record = ForwardPassMetrics(
            counter_id=row["counter_id"],
            wall_time=row["wall_ns"] / 1e9,
            scheduled_requests=ScheduledRequestMetrics(**of("scheduled")),
            queued_requests=QueuedRequestMetrics(**of("queued")),
        )
        passes.setdefault(row["endpoint"], []).append(record)
    return passes


def stream(kind):
    """Passes of a rank: loads that go up and down, and times of which each load takes its share, but for a little."""
    from dynamo.common.forward_pass_metrics import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

    for number in range(STREAM):
        prompt, requests = 40 + 97 * number % 1500, 1 + 13 * number % 30
        kv_tokens, noise_s = 500 + 331 * number % 20_000, 1e-5 * (7 * number % 5)
        scheduled, wall_s = {}, 0.004 + noise_s
        if kind != "decode":
            scheduled |= {"num_prefill_requests": 1 + number % 3, "sum_prefill_tokens": prompt}
            wall_s += 4e-5 * prompt
        if kind != "prefill":
            scheduled |= {"num_decode_requests": requests, "sum_decode_kv_tokens": kv_tokens}
            wall_s += 8e-7 * kv_tokens + (8e-4 * requests if kind == "decode" else 0)
        queued = {"num_prefill_requests": 2, "sum_prefill_tokens": 3000, "num_decode_requests": 1, "sum_decode_kv_tokens": 700}
        yield ForwardPassMetrics(
            worker_id=kind,
            counter_id=number,
            wall_time=wall_s,
            scheduled_requests=ScheduledRequestMetrics(**scheduled),
            queued_requests=QueuedRequestMetrics(**queued),
        )


def record(servers, run):
    """A run with a stream of each kind of rank, in Dynamo's bytes, as fast as they go through. It takes no time of a machine,
    so the same is recorded by any."""
    from dynamo.common.forward_pass_metrics import encode

    sockets, bases = {}, []
    for kind in FEATURES:
        # An XPUB tells when somebody listens, so that nothing is sent before.
        sockets[kind] = zmq.Context.instance().socket(zmq.XPUB)
        sockets[kind].setsockopt(zmq.RCVTIMEO, PATIENCE_S * 1000)
        bases.append(f"ipc://{os.getcwd()}/{kind}")
        sockets[kind].bind(f"{bases[-1]}.0")
    engine = servers.start("engine", "--model-path", "bundled", "--port", "0")
    gateway = servers.start("gateway", "--port", "0", "--record", run, "--worker-urls", engine.url, "--fpm", *bases)
    # A step begins with its first request.
    generate(gateway.url, 8, 2)
    for kind, socket in sockets.items():
        assert socket.recv() == b"\x01", "somebody subscribes to everything"
        for one in stream(kind):
            socket.send_multipart([b"", one.counter_id.to_bytes(8, "big"), encode(one)])
    until("all passes are recorded", lambda: [plan["passes"] for plan in plans_of(run).values()] == [STREAM] * 3)
    servers.stop()


def plans_of(run):
    told = subprocess.run(
        [os.environ["ROLLSCOPE"], "report", run, "--plan", "--json"], check=True, stdout=subprocess.PIPE
    )
    return {plan["kind"]: plan for plan in json.loads(told.stdout)["plan"]}


def same(name, ours, theirs):
    assert abs(ours - theirs) <= CLOSE * max(abs(theirs), 1e-9), f"{name}: {ours} is not {theirs}"


def planner(servers):
    models, run = load_planner(), "planner"
    record(servers, run)
    plans, recorded = plans_of(run), passes_of(run)
    assert len(plans) == len(recorded) == len(FEATURES), (plans, list(recorded))
    for endpoint, passes in recorded.items():
        kind = pathlib.Path(endpoint).stem
        model = models[kind](64)
        model.load_benchmark_fpms(passes)
        compare(kind, plans[kind], model, passes)
    print(f"regressions, TTFT and ITL of {STREAM} passes each to 1e-6 of Dynamo's: {', '.join(plans)}")


def compare(kind, plan, model, passes):
    assert plan["passes"] == len(passes), (kind, plan, len(passes))
    latest = passes[-1]
    most = max(one.scheduled_requests.sum_prefill_tokens for one in passes)
    queued, scheduled = latest.queued_requests, latest.scheduled_requests
    # Dynamo fits when it is asked.
    ttft = itl = None
    if kind == "prefill":
        ttft = model.estimate_next_ttft(queued.sum_prefill_tokens, most)
    elif kind == "decode":
        itl = model.estimate_next_itl(scheduled.sum_decode_kv_tokens, queued.sum_decode_kv_tokens)
    else:
        ttft = model.estimate_next_ttft(queued.sum_prefill_tokens, most, scheduled.sum_decode_kv_tokens)
        itl = model.estimate_next_itl(scheduled.sum_decode_kv_tokens, queued.sum_decode_kv_tokens)
    # What ours is by its own word: least squares without a negative term, over the samples that Dynamo keeps.
    samples = [(*numpy.atleast_1d(features), 1.0, wall) for features, wall in model._gather_observations()]
    matrix = numpy.array(samples)
    fit, terms = plan["fit"], scipy.optimize.nnls(matrix[:, :-1], matrix[:, -1])[0]
    ours = [*(fit["coefficients_s"][name] for name in FEATURES[kind]), fit["intercept_s"]]
    for name, our, term in zip([*FEATURES[kind], "intercept"], ours, terms, strict=True):
        same(f"{kind} {name}", our, term)
    # Dynamo's has no negative term either, so it is the same.
    dynamos = [*model._model.coef_, model._model.intercept_]
    assert min(dynamos) > 0, (kind, dynamos)
    for name, our, theirs in zip([*FEATURES[kind], "intercept"], ours, dynamos, strict=True):
        same(f"{kind} {name}", our, theirs)
    for name, theirs in [("ttft_s", ttft), ("itl_s", itl)]:
        assert (plan[name] is None) == (theirs is None), (kind, name, plan[name], theirs)
        if theirs is not None:
            same(f"{kind} {name}", plan[name], theirs)


def main():
    own_network()
    # Where Dynamo's parts find each other.
    os.environ["DYN_FILE_KV"] = os.path.abspath("discovery")
    os.environ["DYN_EVENT_PLANE"] = "zmq"
    os.environ["DYN_EVENT_PLANE_HOST"] = "127.0.0.1"
    with Servers() as servers:
        asyncio.run(relay(servers))
        planner(servers)
        servers.stop()


if __name__ == "__main__":
    main()
