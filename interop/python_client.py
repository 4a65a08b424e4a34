"""slime's own calls through the gateway, made with its HTTP client: workers register themselves, samples are
generated in groups, streamed and not, and what the trainer reads from a reply is there."""

import asyncio
import base64
import json
import math
import os
import re
import struct
import subprocess
import time

import httpx

from servers import Servers

PROMPT = "47+85+19=?\n"
ANSWER = "#151"
# The bundled model's tokens are bytes, after one that begins a text.
INPUT_IDS = [256, *PROMPT.encode()]
SAMPLING_PARAMS = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "max_new_tokens": 100,
    "stop": None,
    "stop_token_ids": None,
    "skip_special_tokens": True,
    "no_stop_trim": True,
    "spaces_between_special_tokens": False,
}
GREEDY = SAMPLING_PARAMS | {"temperature": 0.0}
# Long enough that a stream comes in pieces.
LONG = GREEDY | {"max_new_tokens": 400, "ignore_eos": True}
# Asks which tokens were kept for each choice.
KEPT = SAMPLING_PARAMS | {"top_p": 0.9, "custom_params": {"return_top_p_token_ids": True}}
STAGES = [
    "pd_prefill_bootstrap_queue_duration",
    "pd_prefill_bootstrap_duration",
    "pd_prefill_alloc_wait_duration",
    "pd_prefill_forward_duration",
    "pd_prefill_transfer_queue_duration",
    "pd_decode_prealloc_duration",
    "pd_decode_bootstrap_duration",
    "pd_decode_alloc_wait_duration",
    "pd_decode_transfer_duration",
    "pd_decode_forward_duration",
]
GROUP = 8
# Samples that are live when a rollout has enough.
ABORTED = 4
DECODED_BY = set()


async def main(servers):
    run = os.path.join(os.getcwd(), "run")
    policy = ("--policy", "consistent_hashing")
    gateway = servers.start("gateway", "--pd-disaggregation", *policy, "--port", "0", "--record", run)
    common = ("engine", "--model-path", "bundled", "--port", "0", "--disaggregation-mode")
    prefill = servers.start(*common, "prefill", "--disaggregation-bootstrap-port", "0")
    decodes = [servers.start(*common, "decode") for _ in range(2)]
    # As slime sets it up: no proxies, no limit on how long a sample takes.
    async with httpx.AsyncClient(timeout=httpx.Timeout(None), trust_env=False) as client:
        await find_nobody(client, gateway)
        await register(client, gateway, prefill, decodes)
        greedy = await generate(client, gateway, GREEDY)
        check_sample(greedy, "greedy")
        assert ANSWER in greedy["text"], greedy["text"]

        whole = await generate(client, gateway, LONG)
        streamed, chunks = await generate_streamed(client, gateway, LONG)
        check_sample(streamed, f"streamed in {chunks} chunks")
        for field in ("text", "output_ids"):
            assert streamed[field] == whole[field], (field, streamed, whole)
        assert streamed["meta_info"]["output_token_logprobs"] == whole["meta_info"]["output_token_logprobs"]

        group = await asyncio.gather(*(generate(client, gateway, SAMPLING_PARAMS) for _ in range(GROUP)))
        for sample in group:
            check_sample(sample, "sample")
        ids = {sample["meta_info"]["id"] for sample in group}
        assert len(ids) == GROUP, f"replies share ids: {ids}"

        check_kept(await generate(client, gateway, KEPT))
        await hang_up(client, gateway, decodes)
        await abort(client, gateway)
        await check_figures(client, gateway, [prefill, *decodes])
        await generate(client, gateway, GREEDY)
        # Best effort, to the router's URL; whatever the router makes of it, samples go on.
        await client.post(f"{gateway.url}/abort_request", json={"rid": "nobody's"})
        await leave(client, gateway)
    servers.stop()
    # A reply that was whole before its client left is completed too.
    check_run(run, completed=range(GROUP + 5, GROUP + 6 + ABORTED + 1))


async def find_nobody(client, gateway):
    """Before its engines have come, slime tries again each second on whatever is not 2xx."""
    response = await client.post(f"{gateway.url}/generate", json={"input_ids": INPUT_IDS, "sampling_params": GREEDY})
    assert not response.is_success and response.json()["error"], (response.status_code, response.text)


async def register(client, gateway, prefill, decodes):
    """As slime's engines make themselves known to the router."""
    info = (await client.get(f"{prefill.url}/server_info")).raise_for_status().json()
    assert info["disaggregation_mode"] == "prefill", info["disaggregation_mode"]
    bootstrap_port = info["internal_states"][0]["disaggregation_bootstrap_port"]
    workers = [
        {"url": prefill.url, "worker_type": "prefill", "bootstrap_port": bootstrap_port},
        *({"url": decode.url, "worker_type": "decode"} for decode in decodes),
    ]
    for worker in workers:
        (await client.post(f"{gateway.url}/workers", json=worker)).raise_for_status()
    listed = (await client.get(f"{gateway.url}/workers")).raise_for_status().json()["workers"]
    urls = [worker["url"] for worker in workers]
    assert {worker["url"] for worker in listed} == set(urls), listed
    for url in (*urls, gateway.url):
        (await client.get(f"{url}/health")).raise_for_status()
    print("registered", [worker["url"] for worker in listed])


async def generate(client, gateway, sampling_params):
    payload = {"input_ids": INPUT_IDS, "sampling_params": sampling_params, "return_logprob": True}
    headers = {"X-SMG-Routing-Key": "session-1", "x-rollscope-explain": "1"}
    response = await client.post(f"{gateway.url}/generate", json=payload, headers=headers)
    reply = response.raise_for_status().json()
    # All turns of a session are decoded where the first was, unless that worker has more than its share.
    decision = response.headers["x-rollscope-decision"]
    decode = re.search(r"decode consistent_hashing: by routing key(.*); (worker \d of 2)", decision)
    assert decode, decision
    if not decode[1]:
        DECODED_BY.add(decode[2])
    assert len(DECODED_BY) == 1, DECODED_BY
    return reply


async def generate_streamed(client, gateway, sampling_params):
    """As slime reads a stream: each chunk replaces what came before."""
    payload = {"input_ids": INPUT_IDS, "sampling_params": sampling_params, "return_logprob": True, "stream": True}
    reply, chunks, done = None, 0, False
    async with client.stream("POST", f"{gateway.url}/generate", json=payload) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data:"):
                continue
            data = line[len("data:"):].strip()
            if data == "[DONE]":
                done = True
                continue
            chunk = json.loads(data)
            if reply is not None:
                assert chunk["text"].startswith(reply["text"]), f"not cumulative: {chunk['text']}"
            reply, chunks = chunk, chunks + 1
    assert done, "the stream has no [DONE]"
    return reply, chunks


async def hang_up(client, gateway, decodes):
    """As slime aborts a streamed sample: it closes the connection, and the worker gets free."""
    payload = {
        "text": PROMPT,
        "sampling_params": LONG,
        "stream": True,
    }
    async with client.stream("POST", f"{gateway.url}/generate", json=payload) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data:"):
                break
    deadline = time.monotonic() + 60
    while sum([await live_requests(client, decode) for decode in decodes]) > 0:
        assert time.monotonic() < deadline, "a request whose client has left still runs"
        await asyncio.sleep(0.1)


async def abort(client, gateway):
    """As slime ends a rollout that has enough: the engines that the router names are told, and asked until they are idle;
    what was live comes back with the tokens that it had."""
    payload = {"input_ids": INPUT_IDS, "sampling_params": LONG, "return_logprob": True}
    live = [asyncio.create_task(client.post(f"{gateway.url}/generate", json=payload)) for _ in range(ABORTED)]
    listed = (await client.get(f"{gateway.url}/workers")).raise_for_status().json()["workers"]
    urls = [worker["url"] for worker in listed]
    deadline = time.monotonic() + 60
    while not all(task.done() for task in live):
        assert time.monotonic() < deadline, "aborted samples still run"
        for url in urls:
            (await client.post(f"{url}/abort_request", json={"abort_all": True})).raise_for_status()
        await asyncio.sleep(0.1)
    for url in urls:
        loads = (await client.get(f"{url}/v1/loads?include=core")).raise_for_status().json()["loads"]
        assert sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads) == 0, loads
    reasons = []
    for task in live:
        response = task.result()
        # One that no worker had begun may be refused as a whole; slime takes it up again.
        if response.is_success:
            meta = response.json()["meta_info"]
            tokens = [token for _, token, *_ in meta.get("output_token_logprobs", [])]
            assert tokens == response.json()["output_ids"], response.text
            reasons.append(meta["finish_reason"]["type"])
        else:
            reasons.append(response.status_code)
    print(f"a rollout that has enough: {reasons}")


async def live_requests(client, engine):
    loads = (await client.get(f"{engine.url}/v1/loads?include=core")).raise_for_status().json()["loads"]
    return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)


async def check_figures(client, gateway, workers):
    """The engines' own figures are one page, on which each says whose it is."""
    page = (await client.get(f"{gateway.url}/engine_metrics")).raise_for_status().text
    for worker in workers:
        up = re.search(rf'^rollscope_engine_up{{[^}}]*worker_addr="{worker.url}"[^}}]*}} (\d)', page, re.MULTILINE)
        assert up and up[1] == "1", (worker.url, page[:2000])
        figures = re.findall(rf'^sglang_\w+{{[^}}]*worker_addr="{worker.url}"', page, re.MULTILINE)
        assert figures, (worker.url, page[:2000])
    print(f"figures of {len(workers)} engines on one page")


async def leave(client, gateway):
    """As slime takes its engines out; without them the router says so."""
    for worker in (await client.get(f"{gateway.url}/workers")).raise_for_status().json()["workers"]:
        (await client.delete(f"{gateway.url}/workers/{worker['id']}")).raise_for_status()
    payload = {"input_ids": INPUT_IDS, "sampling_params": GREEDY}
    response = await client.post(f"{gateway.url}/generate", json=payload)
    assert response.status_code == 503, (response.status_code, response.text)


def check_sample(reply, what):
    """What slime reads from a reply, and that it makes sense."""
    meta = reply["meta_info"]
    logprobs = meta["output_token_logprobs"]
    assert meta["finish_reason"]["type"] in ("stop", "length"), (what, meta["finish_reason"])
    assert meta["prompt_tokens"] == len(INPUT_IDS), (what, meta["prompt_tokens"])
    assert meta["completion_tokens"] == len(logprobs) == len(reply["output_ids"]), (what, meta)
    assert [token for _, token, *_ in logprobs] == reply["output_ids"], (what, logprobs)
    assert all(logprob <= 0 and math.isfinite(logprob) for logprob, *_ in logprobs), (what, logprobs)
    assert isinstance(meta["weight_version"], str), (what, meta["weight_version"])
    missing = [stage for stage in STAGES if stage not in meta]
    assert not missing, (what, "stages missing", missing)
    assert all(meta[stage] >= 0 for stage in STAGES), (what, meta)
    inside = meta["pd_decode_prealloc_duration"] + meta["pd_decode_transfer_duration"] + meta["pd_decode_forward_duration"]
    assert 0 < inside <= meta["e2e_latency"] + 1e-3, (what, "stages are longer than the whole", meta)
    print(f"{what}: {reply['text'][:40]!r}, {meta['e2e_latency'] * 1e3:.1f} ms")


def check_kept(reply):
    """The tokens that top-p kept for each choice, as slime reads them: 32-bit numbers, one row a token of the reply."""
    meta = reply["meta_info"]
    ids, offsets = (base64.b64decode(meta[key]) for key in ("top_p_token_ids", "top_p_token_offsets"))
    offsets = [number for number, in struct.iter_unpack("<i", offsets)]
    assert offsets[0] == 0 and offsets[-1] * 4 == len(ids), (offsets, len(ids))
    assert len(offsets) == meta["completion_tokens"] + 1, (offsets, meta["completion_tokens"])
    assert offsets == sorted(offsets), offsets


def check_run(run, completed):
    """What the gateway recorded of it is on disk."""
    report = subprocess.run(
        [os.environ["ROLLSCOPE"], "report", run, "--json"], check=True, capture_output=True, text=True
    )
    steps = json.loads(report.stdout)["steps"]
    counted = sum(step["metrics"]["perf/request/e2e_latency/count"] for step in steps)
    assert counted in completed, (counted, steps)
    print(f"recorded {counted:.0f} completed requests")


if __name__ == "__main__":
    with Servers() as servers:
        asyncio.run(main(servers))
