"""Forward-pass metrics: SGLang's own publisher is heard by `rollscope fpm tail`, also after it was killed, and what the engine
publishes, by libzmq's SUB, is decoded by SGLang's and by Dynamo's own code. A SUB whose process stands still costs the engine
nothing, and is told by the numbers what it has lost.

Both are single files out of their projects' wheels, which need msgspec and pyzmq and nothing else of them."""

import json
import os
import pathlib
import pty
import queue
import re
import select
import signal
import subprocess
import sys
import termios
import threading
import time
import urllib.request

import zmq

from servers import Servers
from wheels import module

PASSES = 50
PATIENCE_S = 60
# What the engine keeps for a subscriber that does not read.
QUEUE = 10_000
# Passes while a subscriber stands still: far more than the engine and the operating system keep for it.
STALLED_PASSES = 3 * QUEUE

# A subscriber by itself: prints the number of each message.
SUBSCRIBER = """
import sys, zmq
socket = zmq.Context().socket(zmq.SUB)
socket.setsockopt(zmq.RCVHWM, 0)
socket.subscribe(b"")
socket.connect(sys.argv[1])
while True:
    print(int.from_bytes(socket.recv_multipart()[1], "big"), flush=True)
"""

# SGLang's publisher by itself: sends so many passes, and from then on heartbeats.
PUBLISHER = """
import sys, time
from wheels import module
sglang = module("sglang")
publisher = sglang._FpmPublisherThread(sys.argv[1], "w", 0)
for _ in range(int(sys.argv[2])):
    publisher.publish(sglang.ForwardPassMetrics(worker_id="w", wall_time=0.25))
while True:
    time.sleep(60)
"""


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=600))


def script(text, *args, **options):
    """A script of ours as a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parent)}
    return subprocess.Popen([sys.executable, "-c", text, *args], env=environment, text=True, **options)


def seconds_until(deadline):
    return max(deadline - time.monotonic(), 0)


def state_of(process):
    """What the operating system says that a process does."""
    return pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def engine_is_read(servers, readers):
    engine = servers.start("engine", "--model-path", "bundled", "--port", "0", "--enable-forward-pass-metrics")
    info = json.load(urllib.request.urlopen(f"{engine.url}/server_info", timeout=60))
    base = info["internal_states"][0]["forward_pass_metrics_ipc_name"]
    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.setsockopt(zmq.RCVTIMEO, 1000 * PATIENCE_S)
    socket.subscribe(b"")
    socket.connect(f"{base}.0")
    socket.recv_multipart()  # a heartbeat: from here on nothing is missed
    sampling = {"temperature": 0, "max_new_tokens": PASSES, "ignore_eos": True}
    meta = post(f"{engine.url}/generate", {"text": "3+4=?\n", "sampling_params": sampling})["meta_info"]
    first, last = meta["forward_pass_first_counter_id"], meta["forward_pass_last_counter_id"]
    passes, number = 0, -1
    while number < last:
        topic, sequence, payload = socket.recv_multipart()
        number = int.from_bytes(sequence, "big")
        records = [reader.decode(payload) for reader in readers]
        for record in records:
            assert topic == b"" and record.counter_id == number, (topic, record)
        if first <= number <= last:
            # Both read the same.
            [_] = {str(record) for record in records}
            passes += 1
            assert all(record.wall_time > 0 for record in records), records
    assert passes == last - first + 1 >= PASSES, (passes, first, last)
    socket.close(0)
    print(f"{passes} passes of the engine read by {', '.join(reader.__name__ for reader in readers)}")


def publisher_is_heard(sglang):
    endpoint = f"ipc://{os.getcwd()}/sglang.0"
    publisher = sglang._FpmPublisherThread(endpoint, "w", 0)
    command = [os.environ["ROLLSCOPE"], "fpm", "tail", endpoint, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tail:
        try:
            # The first line is a heartbeat: from here on nothing is missed. Others may come between the passes.
            told = [json.loads(tail.stdout.readline())]
            for tokens in range(1, PASSES + 1):
                scheduled = sglang.ScheduledRequestMetrics(num_prefill_requests=1, sum_prefill_tokens=tokens)
                publisher.publish(sglang.ForwardPassMetrics(worker_id="w", wall_time=0.25, scheduled_requests=scheduled))
                while told[-1]["metrics"]["scheduled_requests"]["sum_prefill_tokens"] != tokens:
                    told.append(json.loads(tail.stdout.readline()))
            tail.send_signal(signal.SIGTERM)
            assert tail.wait(60) == 0
        finally:
            tail.kill()
    publisher.shutdown()
    numbers = [message["sequence"] for message in told]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), numbers
    assert all(message["metrics"]["counter_id"] == message["sequence"] for message in told)
    passes = [message["metrics"] for message in told if message["metrics"]["wall_time"] > 0]
    assert all(one["wall_time"] == 0.25 and one["worker_id"] == "w" for one in passes), passes
    print(f"{len(passes)} passes of SGLang's publisher heard")


def killed_publisher_is_heard_again():
    endpoint = f"ipc://{os.getcwd()}/killed.0"
    command = [os.environ["ROLLSCOPE"], "fpm", "tail", endpoint, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tail:
        publishers = []
        try:
            publishers.append(script(PUBLISHER, endpoint, "1000"))
            told = json.loads(tail.stdout.readline())
            while told["sequence"] < 1000:  # a heartbeat after all passes
                told = json.loads(tail.stdout.readline())
            publishers[0].kill()
            publishers[0].wait()
            publishers.append(script(PUBLISHER, endpoint, "0"))
            told = json.loads(tail.stdout.readline())
            while told["sequence"] >= 1000:
                told = json.loads(tail.stdout.readline())
            assert told["arrival"] == "restart", told
        finally:
            for publisher in publishers:
                publisher.kill()
                publisher.wait()
            tail.send_signal(signal.SIGTERM)
    print("a publisher of SGLang's that was killed is heard again, as started anew")


def screen_is_drawn_on_a_terminal(servers):
    """`rollscope fpm top` on a terminal of its own: it draws the rank, within the terminal's width, and leaves the terminal as it was."""
    engine = servers.start(
        "engine", "--model-path", "bundled", "--port", "0",
        "--enable-forward-pass-metrics", "--forward-pass-metrics-worker-id", "w7",
    )
    ours, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (10, 60))
    before = termios.tcgetattr(terminal)
    command = [os.environ["ROLLSCOPE"], "fpm", "top", "--server", engine.url]
    shown = b""
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=subprocess.DEVNULL) as top:
        try:
            # Until it has drawn a rank that was heard of, twice.
            deadline = time.monotonic() + PATIENCE_S
            while len(re.findall(rb"w7 dp0 .*?\x1b\[K\r\n.*?\x1b\[J", shown, re.DOTALL)) < 2:
                readable, _, _ = select.select([ours], [], [], seconds_until(deadline))
                assert readable and time.monotonic() < deadline, f"no rank is drawn: {shown}"
                shown += os.read(ours, 65536)
            top.send_signal(signal.SIGINT)
            assert top.wait(60) == 0
        finally:
            top.kill()
    assert termios.tcgetattr(terminal) == before, "the terminal is left in another state"
    shown = shown.decode()
    # Home, the rest of a line, the rest of the screen: nothing that would have to be taken back.
    assert set(re.findall(r"\x1b\[[0-9;?]*[a-zA-Z]", shown)) == {"\x1b[H", "\x1b[K", "\x1b[J"}, shown
    lines = [line for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).splitlines()]
    assert max(map(len, lines)) <= 60, lines
    os.close(ours)
    os.close(terminal)
    print("a rank is drawn on a terminal, which is left as it was")


def stalled_subscriber_costs_nothing(servers):
    costs = {
        "prefill": {"base_s": 0, "per_token_s": 0},
        "decode": {"base_s": 0, "per_request_s": 0, "per_kv_token_s": 0},
        "context_length": 2 * STALLED_PASSES,
    }
    pathlib.Path("costs.json").write_text(json.dumps(costs))
    engine = servers.start(
        "engine", "--model-path", "sim:costs.json", "--port", "0", "--enable-forward-pass-metrics"
    )
    info = json.load(urllib.request.urlopen(f"{engine.url}/server_info", timeout=60))
    endpoint = info["internal_states"][0]["forward_pass_metrics_ipc_name"] + ".0"
    stalled, reading = (script(SUBSCRIBER, endpoint, stdout=subprocess.PIPE) for _ in range(2))
    numbers = queue.SimpleQueue()

    def read():
        for line in reading.stdout:
            numbers.put(int(line))

    try:
        # Heartbeats: from here on nothing is missed.
        before = int(stalled.stdout.readline())
        heard = [int(reading.stdout.readline())]
        threading.Thread(target=read, daemon=True).start()
        stalled.send_signal(signal.SIGSTOP)
        sampling = {"temperature": 0, "max_new_tokens": STALLED_PASSES, "ignore_eos": True}
        reply = post(f"{engine.url}/generate", {"text": "1+2=?\n", "sampling_params": sampling})
        # The scheduler has come to its end while it stood still.
        assert state_of(stalled) == "T", state_of(stalled)
        meta = reply["meta_info"]
        assert meta["completion_tokens"] == STALLED_PASSES, meta
        last = meta["forward_pass_last_counter_id"]
        metrics = urllib.request.urlopen(f"{engine.url}/metrics", timeout=60).read().decode()
        [dropped] = [line for line in metrics.splitlines() if line.startswith("rollscope_engine_forward_passes_dropped_total")]
        stalled.send_signal(signal.SIGCONT)
        kept, lost, number = 0, 0, before
        while number < last:
            following = int(stalled.stdout.readline())
            lost += following - number - 1
            kept, number = kept + 1, following
        deadline = time.monotonic() + PATIENCE_S
        while heard[-1] < last:
            heard.append(numbers.get(timeout=seconds_until(deadline)))
    finally:
        for process in (stalled, reading):
            process.kill()
            process.wait()
    # What is lost before its queue is lost for everybody. The one that reads loses more only while its own queue is full, on a
    # machine where the scheduler is quicker than it is, and has what was in that queue then.
    dropped = int(float(dropped.split()[-1]))
    heard_lost = sum(later - sooner - 1 for sooner, later in zip(heard, heard[1:]))
    assert heard == sorted(set(heard)), "numbers go back"
    assert len(heard) + heard_lost == heard[-1] - heard[0] + 1 and len(heard) >= QUEUE, (len(heard), heard_lost)
    assert dropped <= min(lost, heard_lost), (dropped, lost, heard_lost)
    assert kept >= QUEUE and lost >= QUEUE // 2, (kept, lost)
    assert kept + lost == number - before, (kept, lost, number, before)
    print(f"a subscriber that stood still for {STALLED_PASSES} passes got {kept} messages and knows of {lost} that are lost")


def main():
    sglang, dynamo = module("sglang"), module("dynamo")
    with Servers() as servers:
        engine_is_read(servers, [sglang, dynamo])
        publisher_is_heard(sglang)
        killed_publisher_is_heard_again()
        screen_is_drawn_on_a_terminal(servers)
        stalled_subscriber_costs_nothing(servers)
        servers.stop()


if __name__ == "__main__":
    main()
