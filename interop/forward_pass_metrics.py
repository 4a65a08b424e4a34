"""Forward-pass metrics: SGLang's own publisher is heard by `rollscope fpm tail`, and what the engine publishes, by
libzmq's SUB, is decoded by SGLang's and by Dynamo's own code.

Both are single files out of their projects' wheels, which need msgspec and pyzmq and nothing else of them."""

import json
import os
import signal
import subprocess
import urllib.request

import zmq

from servers import Servers
from wheels import module

PASSES = 50
PATIENCE_MS = 60_000


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=60))


def engine_is_read(servers, readers):
    engine = servers.start("engine", "--model-path", "bundled", "--port", "0", "--enable-forward-pass-metrics")
    info = json.load(urllib.request.urlopen(f"{engine.url}/server_info", timeout=60))
    base = info["internal_states"][0]["forward_pass_metrics_ipc_name"]
    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
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
        # The first line is a heartbeat: from here on nothing is missed. Others may come between the passes.
        told = [json.loads(tail.stdout.readline())]
        for tokens in range(1, PASSES + 1):
            scheduled = sglang.ScheduledRequestMetrics(num_prefill_requests=1, sum_prefill_tokens=tokens)
            publisher.publish(sglang.ForwardPassMetrics(worker_id="w", wall_time=0.25, scheduled_requests=scheduled))
            while told[-1]["metrics"]["scheduled_requests"]["sum_prefill_tokens"] != tokens:
                told.append(json.loads(tail.stdout.readline()))
        tail.send_signal(signal.SIGTERM)
        assert tail.wait(60) == 0
    publisher.shutdown()
    numbers = [message["sequence"] for message in told]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), numbers
    assert all(message["metrics"]["counter_id"] == message["sequence"] for message in told)
    passes = [message["metrics"] for message in told if message["metrics"]["wall_time"] > 0]
    assert all(one["wall_time"] == 0.25 and one["worker_id"] == "w" for one in passes), passes
    print(f"{len(passes)} passes of SGLang's publisher heard")


def main():
    sglang, dynamo = module("sglang"), module("dynamo")
    with Servers() as servers:
        engine_is_read(servers, [sglang, dynamo])
        publisher_is_heard(sglang)
        servers.stop()


if __name__ == "__main__":
    main()
