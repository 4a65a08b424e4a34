"""The gateway's figures, and its workers' put together, read by the parser of Prometheus' own Python client: workers with
other labels, values that are no numbers, a worker that is dead."""

import http.server
import json
import threading
import urllib.request

from prometheus_client.parser import text_string_to_metric_families as families

from servers import Servers

PAGES = [
    """# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0"} 3.0
# HELP sglang:time_to_first_token_seconds Time to first token.
# TYPE sglang:time_to_first_token_seconds histogram
sglang:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 1.0
sglang:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 2.0
sglang:time_to_first_token_seconds_count{model_name="m"} 2.0
sglang:time_to_first_token_seconds_sum{model_name="m"} 0.75
# TYPE sglang:fwd_occupancy gauge
sglang:fwd_occupancy{model_name="m"} NaN
""",
    """# HELP sglang:num_running_reqs Requests that run.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m \\"x\\" \\\\",dp_rank="1",worker_addr="w"} 5.0
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="m"} 1e+06
sglang:fwd_occupancy -nan
<html>no sample</html>
""",
]
ODD_MODEL = "a-model-that-nobody-has"


class Worker(http.server.BaseHTTPRequestHandler):
    page = ""

    def do_GET(self):
        self.reply(self.page if self.path == "/metrics" else "{}")

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.reply(json.dumps({"text": "x", "meta_info": {"finish_reason": {"type": "stop"}}}))

    def reply(self, text):
        body = text.encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def worker(page):
    handler = type("Handler", (Worker,), {"page": page})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}"


def get(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=60) as response:
        return response.read().decode()


def read(page):
    """Samples by name, each a dict of labels and a value; every family stands there once."""
    samples, names = {}, set()
    for family in families(page):
        assert family.name not in names, f"twice: {family.name}"
        names.add(family.name)
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples, f"twice: {key}"
            samples[key] = sample.value
    return samples


def values(samples, name):
    return sorted((labels, value) for (other, labels), value in samples.items() if other == name)


def main(servers):
    (first, a), (second, b), (dead, c) = worker(PAGES[0]), worker(PAGES[1]), worker("")
    dead.shutdown()
    dead.server_close()
    gateway = servers.start("gateway", "--port", "0", "--disable-health-check", "--worker-urls", a, b)
    for _ in range(3):
        get(f"{gateway.url}/generate", {"text": "x", "model": ODD_MODEL})
    get(f"{gateway.url}/workers", {"url": c})

    engines = read(get(f"{gateway.url}/engine_metrics"))
    running = {dict(labels)["worker_addr"]: (dict(labels), value) for labels, value in values(engines, "sglang_num_running_reqs")}
    assert running[a] == ({"worker_addr": a, "model_name": "m", "tp_rank": "0"}, 3.0), running
    assert running[b][1] == 5.0, running
    assert running[b][0] == {"worker_addr": b, "exported_worker_addr": "w", "model_name": 'm "x" \\', "dp_rank": "1"}, running
    assert [value for _, value in values(engines, "sglang_time_to_first_token_seconds_sum")] == [0.75]
    assert [value for _, value in values(engines, "sglang_prompt_tokens_total")] == [1e6]
    assert not values(engines, "sglang_fwd_occupancy"), engines
    up = {dict(labels)["worker_addr"]: value for labels, value in values(engines, "rollscope_engine_up")}
    assert up == {a: 1.0, b: 1.0, c: 0.0}, up
    dropped = {dict(labels)["worker_addr"]: value for labels, value in values(engines, "rollscope_engine_lines_dropped")}
    assert dropped == {a: 1.0, b: 2.0, c: 0.0}, dropped

    page = get(f"{gateway.url}/metrics")
    assert ODD_MODEL not in page
    own = read(page)
    assert [value for _, value in values(own, "rollscope_requests_started_total")] == [3.0]
    [(labels, count)] = values(own, "smg_router_request_duration_seconds_count")
    assert (dict(labels)["endpoint"], count) == ("generate", 3.0), (labels, count)
    buckets = [value for labels, value in values(own, "smg_router_request_duration_seconds_bucket") if dict(labels)["le"] == "+Inf"]
    assert buckets == [3.0], buckets
    assert len(values(own, "smg_worker_health")) == 3
    print(f"{len(engines)} samples of workers, {len(own)} of the gateway")
    servers.stop()
    first.shutdown()
    second.shutdown()


if __name__ == "__main__":
    with Servers() as servers:
        main(servers)
