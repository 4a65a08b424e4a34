"""The numbers of a step against slime's formulas, written out in Python over the same dumps, to 1e-9: a demo's, and some that are
made up so that they have everything.

slime itself needs a GPU's software to be installed, so that what its `rollout_metrics` computes is written here from what
is known of it: of every sample the numbers of its calls, reduced by numpy. Where slime's are not right (its numbers of
prefill/decode stages read attributes that moved into spans of their own, so that they never appear; calls that were
streamed have another name and are left out), the formula is the one that is meant: the same, over what the spans hold."""

import json
import math
import os
import pathlib
import subprocess
import zlib

import numpy as np
from slime_dumps import CATEGORY_KEY, DATASET, GPUS, REWARD_KEY, ROLLOUT_TIME, evaluation, loosely_typed, training

ROLLSCOPE = os.environ["ROLLSCOPE"]

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
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if (is_call or not calls_only and event["name"].startswith("sglang_pd_")) and is_number:
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


def response_length(sample):
    return sample["response_length"]


def effective_length(sample):
    mask = sample.get("loss_mask")
    return response_length(sample) if mask is None else sum(mask)


def reward(sample):
    return sample["reward"][REWARD_KEY] if isinstance(sample["reward"], dict) else sample["reward"]


def perf(samples):
    numbers = {}
    for name, attribute in CALL.items():
        values = told(samples, attribute, True)
        numbers |= {f"{name}/{key}": value for key, value in statistics(values).items()} if values else {}
    for name, attribute in STAGES.items():
        values = told(samples, attribute, False)
        numbers |= {f"{name}/{key}": value for key, value in statistics(values).items()} if values else {}
    numbers["rollout_time"] = ROLLOUT_TIME
    outside = np.array([sample.get("non_generation_time") or 0.0 for sample in samples])
    if outside.max() > 0:
        numbers |= {f"non_generation_time/{key}": value for key, value in statistics(outside).items()}
    for kind, of in ("", response_length), ("effective_", effective_length):
        lengths = np.array([of(sample) for sample in samples])
        numbers[f"{kind}tokens_per_gpu_per_sec"] = lengths.sum() / ROLLOUT_TIME / GPUS
        numbers[f"longest_{kind}sample_tokens_per_sec"] = lengths.max() / ROLLOUT_TIME
        if outside.max() > 0:
            # There may be several that are as long.
            longest = outside[lengths == lengths.max()].mean()
            numbers[f"longest_{kind}sample_non_generation_time"] = longest
            pace = lengths.max() / (ROLLOUT_TIME - longest)
            numbers[f"longest_{kind}sample_tokens_per_sec_without_non_generation"] = pace
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
        groups.setdefault(sample["group_index"], []).append(reward(sample))
    numbers = {f"response_len/{key}": value for key, value in statistics([effective_length(s) for s in samples]).items()}
    numbers |= {f"reward/{key}": value for key, value in statistics([reward(s) for s in samples]).items()}
    numbers["truncated_ratio"] = np.mean([sample["status"] == "truncated" for sample in samples])
    numbers |= zero_std([rewards for rewards in groups.values() if len(rewards) > 1 and len(set(rewards)) == 1])
    is_verdict = all(reward in (-1, 0, 1) for rewards in groups.values() for reward in rewards)
    largest = max(map(len, groups.values())) if is_verdict else 0
    for k in (1 << power for power in range(largest.bit_length()) if 1 << power <= largest):
        rates = [pass_rate(sum(r == 1 for r in rewards), len(rewards), k) for rewards in groups.values() if len(rewards) >= k]
        numbers[f"pass@{k}"] = np.mean(rates)
    return numbers


def zero_std(alike):
    """Groups whose rewards are all the same, also by that reward."""
    rounded = [round(rewards[0], 1) for rewards in alike]
    return {"zero_std/count": len(alike)} | {f"zero_std/count_{value}": rounded.count(value) for value in rounded}


def told_by_samples(samples):
    """What is made of a sample's own members, where it has them."""
    spec = [sample["spec_info"] for sample in samples]
    accepted = [s["spec_accept_token_num"] / s["spec_draft_token_num"] if s["spec_draft_token_num"] else 0.0 for s in spec]
    lengths = [s["completion_token_num"] / s["spec_verify_ct"] if s["spec_verify_ct"] else 0.0 for s in spec]
    cached = sum(sample["prefix_cache_info"]["cached_tokens"] for sample in samples)
    prompts = sum(sample["prefix_cache_info"]["total_prompt_tokens"] for sample in samples)
    kinds = [str(sample["reward"][CATEGORY_KEY]) for sample in samples]
    return {
        "spec_accept_rate": np.mean(accepted),
        "spec_accept_length": np.mean(lengths),
        "prefix_cache_hit_rate": cached / prompts,
        "avg_cached_tokens_per_sample": cached / len(samples),
        "top_p_kept_vocab_per_token": kept_per_token(samples),
        "repetition_frac": np.mean([repeats(sample["response"]) for sample in samples]),
    } | {f"error_cat/{kind}": kinds.count(kind) / len(kinds) for kind in kinds}


def kept_per_token(samples):
    """What nucleus sampling kept for a token, of those that are trained on."""
    kept = tokens = 0
    for sample in samples:
        offsets = sample["rollout_top_p_token_offsets"]
        if not offsets or sample["response_length"] == 0 or sample["remove_sample"]:
            continue
        mask = sample["loss_mask"] or [1] * sample["response_length"]
        kept += sum(each for each, trained in zip(np.diff(offsets), mask) if trained)
        tokens += sum(mask)
    return kept / tokens


def repeats(text):
    """The last 10,000 characters of more are more than ten times as long as what zlib makes of them."""
    last = text[-10000:].encode()
    return len(text) > 10000 and len(last) / len(zlib.compress(last, 9)) > 10


def under(prefix, numbers):
    return {f"{prefix}{name}": value for name, value in numbers.items()}


def of_evaluation(samples):
    """slime's names: what tells of a data set as a whole stands beside it, and not below."""
    numbers = rollout(samples) | told_by_samples(samples)
    beside = {name: numbers.pop(name) for name in list(numbers) if name.startswith("pass@")}
    beside["truncated_ratio"] = numbers["truncated_ratio"]
    mean = np.mean([reward(sample) for sample in samples])
    return {f"eval/{DATASET}": mean} | under(f"eval/{DATASET}-", beside) | under(f"eval/{DATASET}/", numbers)


def reported(dump, out):
    """The numbers that come of a dump."""
    command = [ROLLSCOPE, "import", str(dump), "--out", out, "--reward-key", REWARD_KEY, "--category-key", CATEGORY_KEY]
    subprocess.run([*command, "--gpus", str(GPUS), "--rollout-time", str(ROLLOUT_TIME)], check=True)
    report = subprocess.run([ROLLSCOPE, "report", out, "--json"], check=True, capture_output=True)
    return json.loads(report.stdout)["steps"][0]["metrics"]


def compare(what, expected, metrics):
    wrong = {
        name: (metrics.get(name), float(value))
        for name, value in expected.items()
        if name not in metrics or abs(metrics[name] - value) > 1e-9 * max(1.0, abs(value))
    }
    assert not wrong, (what, wrong)
    print(f"{what}: {len(expected)} numbers agree to 1e-9")


def made_up(dump, name):
    """A made-up dump in a file, and the numbers that come of it."""
    path = pathlib.Path(f"slime_{name}.jsonl")
    path.write_text(json.dumps(dump, ensure_ascii=False, separators=(",", ":")) + "\n")
    return dump["samples"], reported(path, name)


def main():
    dump = pathlib.Path("demo.jsonl")
    subprocess.run([ROLLSCOPE, "export", os.environ["RUN"], "--to", "slime-json", str(dump)], check=True)
    samples = json.loads(dump.read_text())["samples"]
    metrics = reported(dump, "demo")
    expected = perf(samples) | under("rollout/", rollout(samples))
    assert len(expected) > 120, sorted(expected)
    compare("a demo by the formulas", expected, metrics)
    assert metrics["perf/decode/forward_duration/count"] == metrics["perf/request/count"], "every stage is there"

    samples, metrics = made_up(training(), "training")
    expected = perf(samples) | under("rollout/", rollout(samples) | told_by_samples(samples))
    for name in ("zero_std/count_1.0", "zero_std/count_0.2", "error_cat/None", "error_cat/0.5", "top_p_kept_vocab_per_token"):
        assert f"rollout/{name}" in expected, name
    compare("a made-up step by the formulas", expected, metrics)
    samples, metrics = made_up(loosely_typed(), "loosely_typed")
    expected = perf(samples) | under("rollout/", rollout(samples) | told_by_samples(samples))
    assert any(True in (sample["loss_mask"] or []) for sample in samples), "a mask of truths"
    for name in ("zero_std/count_-1.0", "zero_std/count_0.1", "zero_std/count_2.0"):
        assert f"rollout/{name}" in expected, name
    compare("a made-up step of loose types by the formulas", expected, metrics)
    samples, metrics = made_up(evaluation(), "evaluation")
    compare("a made-up evaluation by the formulas", of_evaluation(samples), metrics)


if __name__ == "__main__":
    main()
