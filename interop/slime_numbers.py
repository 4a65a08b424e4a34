"""The numbers of a step against slime's formulas, written out in Python over the same dump, to 1e-9.

slime itself needs a GPU's software to be installed, so that what its `rollout_metrics` computes is written here from what
is known of it: of every sample the numbers of its calls, reduced by numpy. Where slime's are not right (its numbers of
prefill/decode stages read attributes that moved into spans of their own, so that they never appear; calls that were
streamed have another name and are left out), the formula is the one that is meant: the same, over what the spans hold."""

import json
import math
import os
import pathlib
import subprocess

import numpy as np

ROLLSCOPE, RUN = os.environ["ROLLSCOPE"], os.environ["RUN"]
GPUS, ROLLOUT_TIME = 8, 321.7

# What a number below perf/ is made of, by the attribute that tells it.
CALL = {
    "request/e2e_latency": "e2e_latency",
    "request/queue_time": "queue_time",
    "decode/throughput": "decode_throughput",
}
STAGES = {
    **{
        f"prefill/{stage}_duration": f"pd_prefill_{stage}_duration"
        for stage in ("bootstrap_queue", "bootstrap", "alloc_wait", "forward", "transfer_queue")
    },
    **{
        f"decode/{stage}_duration": f"pd_decode_{stage}_duration"
        for stage in ("prealloc", "bootstrap", "alloc_wait", "transfer", "forward")
    },
    "prefill/transfer_speed_gb_s": "pd_transfer_speed_gb_s",
    "prefill/transfer_total_mb": "pd_transfer_total_mb",
    "prefill/retry_count": "pd_prefill_retry_count",
}


def events(sample):
    return sample["trace"]["events"]


def told(samples, attribute, calls_only):
    """Every value of an attribute that a call's end, or a span or event within it, tells."""
    found = []
    for sample in samples:
        for event in events(sample):
            is_call = event["type"] == "span_end" and event["name"].startswith("sglang_generate")
            value = event.get("attrs", {}).get(attribute)
            if (is_call or not calls_only and event["name"].startswith("sglang_pd_")) and value is not None:
                found.append(float(value))
    return found


def statistics(values):
    array = np.array(values)
    return {
        "mean": array.mean(),
        "median": np.median(array),
        "max": array.max(),
        "min": array.min(),
        "std": array.std(),
        "p90": np.quantile(array, 0.9),
        "p99": np.quantile(array, 0.99),
        "count": len(array),
    }


def perf(samples):
    numbers = {}
    for name, attribute in CALL.items():
        values = told(samples, attribute, True)
        numbers |= {f"{name}/{key}": value for key, value in statistics(values).items()} if values else {}
    for name, attribute in STAGES.items():
        values = told(samples, attribute, False)
        numbers |= {f"{name}/{key}": value for key, value in statistics(values).items()} if values else {}
    lengths = np.array([sample["response_length"] for sample in samples])
    numbers["rollout_time"] = ROLLOUT_TIME
    numbers["tokens_per_gpu_per_sec"] = lengths.sum() / ROLLOUT_TIME / GPUS
    numbers["longest_sample_tokens_per_sec"] = lengths.max() / ROLLOUT_TIME
    numbers["request/count"] = sum(
        event["type"] == "span_end" and event["name"].startswith("sglang_generate")
        for sample in samples
        for event in events(sample)
    )
    return {f"perf/{name}": value for name, value in numbers.items()}


def pass_rate(right, count, k):
    """Of k of `count` samples at least one is right: 1 - C(count - right, k) / C(count, k)."""
    return 1.0 - math.comb(count - right, k) / math.comb(count, k)


def rollout(samples):
    groups = {}
    for sample in samples:
        groups.setdefault(sample["group_index"], []).append(sample["reward"])
    numbers = {f"response_len/{key}": value for key, value in statistics([s["response_length"] for s in samples]).items()}
    numbers |= {f"reward/{key}": value for key, value in statistics([s["reward"] for s in samples]).items()}
    numbers["truncated_ratio"] = np.mean([sample["status"] == "truncated" for sample in samples])
    numbers["zero_std/count"] = sum(len(rewards) > 1 and np.std(rewards) == 0 for rewards in groups.values())
    largest = max(map(len, groups.values()))
    for k in (1 << power for power in range(largest.bit_length()) if 1 << power <= largest):
        rates = [pass_rate(sum(r == 1 for r in rewards), len(rewards), k) for rewards in groups.values() if len(rewards) >= k]
        numbers[f"pass@{k}"] = np.mean(rates)
    return {f"rollout/{name}": value for name, value in numbers.items()}


def main():
    dump = pathlib.Path("dump.jsonl")
    subprocess.run([ROLLSCOPE, "export", RUN, "--to", "slime-json", str(dump)], check=True)
    samples = json.loads(dump.read_text())["samples"]
    imported = pathlib.Path("imported")
    command = [ROLLSCOPE, "import", str(dump), "--out", str(imported)]
    subprocess.run([*command, "--gpus", str(GPUS), "--rollout-time", str(ROLLOUT_TIME)], check=True)
    report = subprocess.run([ROLLSCOPE, "report", str(imported), "--json"], check=True, capture_output=True)
    metrics = json.loads(report.stdout)["steps"][0]["metrics"]
    expected = perf(samples) | rollout(samples)
    assert len(expected) > 120, sorted(expected)
    wrong = {
        name: (metrics.get(name), float(value))
        for name, value in expected.items()
        if name not in metrics or abs(metrics[name] - value) > 1e-9 * max(1.0, abs(value))
    }
    assert not wrong, wrong
    assert metrics["perf/decode/forward_duration/count"] == metrics["perf/request/count"], "every stage is there"
    print(f"{len(expected)} numbers of {len(samples)} samples agree with the formulas to 1e-9")


if __name__ == "__main__":
    main()
