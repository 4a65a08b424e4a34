"""The `openai` package against the gateway, in front of a pair of engines and of one engine: whole replies, streams,
several choices, errors before and within a stream, and a client that leaves."""

import json
import time
import urllib.request

import httpx
import openai

from servers import Servers

PROMPT = "47+85+19=?\n"
ANSWER = "#151"
MESSAGES = [{"role": "user", "content": PROMPT}]
# An engine so slow that a stream is still running when something happens to it, on any machine.
SLOW = {
    "prefill": {"base_s": 0.001, "per_token_s": 0.00001},
    "decode": {"base_s": 0.05, "per_request_s": 0.0, "per_kv_token_s": 0.0},
    "context_length": 8192,
}
LONG = {"max_tokens": 4000, "temperature": 0, "extra_body": {"ignore_eos": True}}


def main(servers):
    for is_pair in (True, False):
        client, model, _ = fleet(servers, is_pair, "bundled")
        completions(client, model)
        chat(client, model)
        errors(client, model, is_pair)
        servers.kill()
        with open("slow.json", "w", encoding="utf-8") as file:
            json.dump(SLOW, file)
        slow = fleet(servers, is_pair, "sim:slow.json")
        leave(*slow)
        break_off(*slow)
        print("pair:" if is_pair else "one engine:", "ok")
        servers.kill()


def fleet(servers, is_pair, model_path):
    """A client, the name of its model, and the workers behind it."""
    gateway, workers = start(servers, is_pair, model_path)
    # As a program behind a proxy-less network has it; retries would hide what this check is about.
    http = httpx.Client(trust_env=False, timeout=120)
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0, http_client=http)
    return client, client.models.list().data[0].id, workers


def start(servers, is_pair, model_path):
    engine = ("engine", "--model-path", model_path, "--port", "0")
    if not is_pair:
        worker = servers.start(*engine)
        return servers.start("gateway", "--port", "0", "--worker-urls", worker.url), [worker]
    mode = (*engine, "--disaggregation-mode")
    prefill = servers.start(*mode, "prefill", "--disaggregation-bootstrap-port", "0")
    decode = servers.start(*mode, "decode")
    info = get(f"{prefill.url}/server_info")
    port = str(info["internal_states"][0]["disaggregation_bootstrap_port"])
    pair = ("--pd-disaggregation", "--prefill", prefill.url, port, "--decode", decode.url)
    return servers.start("gateway", "--port", "0", *pair), [decode, prefill]


def get(url):
    with urllib.request.urlopen(url, timeout=120) as reply:
        return json.load(reply)


def completions(client, model):
    asked = {"model": model, "prompt": PROMPT, "max_tokens": 60, "temperature": 0}
    whole = client.completions.create(**asked)
    [choice] = whole.choices
    assert ANSWER in choice.text and choice.finish_reason in ("stop", "length"), whole
    assert whole.usage.completion_tokens > 0, whole.usage
    chunks = list(client.completions.create(stream=True, **asked))
    streamed = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    assert streamed == choice.text, (streamed, choice.text)
    several = client.completions.create(n=2, **asked)
    assert [other.text for other in several.choices] == [choice.text] * 2, several
    batch = client.completions.create(**(asked | {"prompt": [PROMPT, PROMPT]}))
    assert len(batch.choices) == 2, batch


def chat(client, model):
    asked = {"model": model, "messages": MESSAGES, "max_tokens": 20, "temperature": 0}
    whole = client.chat.completions.create(**asked).choices[0].message.content
    chunks = client.chat.completions.create(stream=True, **asked)
    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(deltas) == whole, (deltas, whole)
    several = client.chat.completions.create(n=2, **asked)
    assert len(several.choices) == 2, several


def errors(client, model, is_pair):
    """The worker's own words and status, as the package's own exceptions."""
    try:
        client.completions.create(model=model, prompt=PROMPT, max_tokens=-1)
    except openai.BadRequestError as error:
        assert error.status_code == 400 and error.body, error
    else:
        raise AssertionError("a request that makes no sense was answered")
    # One engine answers this for itself, a pair can not.
    try:
        client.embeddings.create(model=model, input="a", encoding_format="float")
    except openai.NotFoundError as error:
        assert not is_pair or "/v1/embeddings" in str(error), error
    else:
        raise AssertionError("embeddings came out of an engine that has none")


def leave(client, model, workers):
    """A client that closes a stream frees the workers."""
    stream = client.completions.create(model=model, prompt=PROMPT, stream=True, **LONG)
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 60
    while sum(live(worker) for worker in workers) > 0:
        assert time.monotonic() < deadline, "a request whose client has left still runs"
        time.sleep(0.1)


def live(worker):
    loads = get(f"{worker.url}/v1/loads?include=core")["loads"]
    return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)


def break_off(client, model, workers):
    """A worker that dies within a stream is told of in an event that the package raises."""
    stream = iter(client.completions.create(model=model, prompt=PROMPT, stream=True, **LONG))
    next(stream)
    workers[0].kill()
    try:
        for _ in stream:
            pass
    except openai.APIError as error:
        assert workers[0].url in str(error), error
    else:
        raise AssertionError("a stream whose worker has died ended as if it were whole")


if __name__ == "__main__":
    with Servers() as servers:
        main(servers)
