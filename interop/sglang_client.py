"""SGLang's own way of calling a server, by `urllib` and lines of a stream, against the gateway in front of a pair of
engines and of one engine: single, batched and streamed, and the calls that are no generations."""

import json
import urllib.error
import urllib.request

from openai_client import ANSWER, PROMPT, start
from servers import Servers

GREEDY = {"temperature": 0, "max_new_tokens": 60}


def main(servers):
    for is_pair in (True, False):
        gateway, workers = start(servers, is_pair, "bundled")
        info = json.loads(call(gateway, "/get_model_info"))
        assert info["is_generation"] is True, info
        whole = json.loads(call(gateway, "/generate", {"text": PROMPT, "sampling_params": GREEDY}))
        assert ANSWER in whole["text"], whole
        check_prefill(whole["meta_info"], is_pair)
        streamed = stream(gateway, {"text": PROMPT, "sampling_params": GREEDY, "stream": True})
        assert streamed["text"] == whole["text"], (streamed, whole)
        check_prefill(streamed["meta_info"], is_pair)
        batch = {"text": [PROMPT, PROMPT], "sampling_params": GREEDY, "return_logprob": True, "logprob_start_len": 0}
        for reply in json.loads(call(gateway, "/generate", batch)):
            assert reply["text"] == whole["text"], (reply, whole)
            meta = reply["meta_info"]
            assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"], meta
            check_prefill(meta, is_pair)
        several = {"text": PROMPT, "sampling_params": GREEDY | {"n": 3}}
        assert len(json.loads(call(gateway, "/generate", several))) == 3
        flushed = json.loads(call(gateway, "/flush_cache", {}))
        assert {result["worker"] for result in flushed["results"]} == {worker.url for worker in workers}, flushed
        refused(gateway)
        print("pair:" if is_pair else "one engine:", "ok")
        servers.kill()


def call(gateway, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(gateway.url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        return reply.read()


def stream(gateway, body):
    """The last chunk, as SGLang's client reads them: line by line, each with all of the text so far."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{gateway.url}/generate", data, {"Content-Type": "application/json"})
    last = None
    with urllib.request.urlopen(request, timeout=120) as reply:
        for line in reply:
            line = line.decode().strip()
            if line == "data: [DONE]":
                assert last is not None, "the stream ended before it began"
                return last
            if line.startswith("data:"):
                last = json.loads(line[len("data:"):])
    raise AssertionError("the stream has no [DONE]")


def check_prefill(meta, is_pair):
    """What only the prefill worker knows is in a pair's reply, once."""
    known = [name for name in meta if name.startswith("pd_prefill_")]
    assert bool(known) == is_pair, meta
    if is_pair:
        assert meta["pd_prefill_forward_duration"] >= 0 and meta["pd_prefill_e2e_latency"] > 0, meta


def refused(gateway):
    try:
        call(gateway, "/generate", {"sampling_params": GREEDY})
    except urllib.error.HTTPError as error:
        assert error.code == 400 and json.load(error), error
    else:
        raise AssertionError("a request without a prompt was answered")


if __name__ == "__main__":
    with Servers() as servers:
        main(servers)
