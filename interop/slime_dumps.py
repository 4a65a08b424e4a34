"""Makes rollout dumps as slime writes them, in which everything occurs that its numbers of a step are made of: rewards of several
parts, groups in which all are alike, categories, masks, what nucleus sampling kept, speculative decoding, the prefix cache, time
outside of generation, responses that repeat themselves, and calls of which some tell what is no number. Always the same."""

import random

REWARD_KEY, CATEGORY_KEY = "score", "kind"
GPUS, ROLLOUT_TIME = 8, 321.7
GROUP = 4
DATASET = "aime"

# Longer than what slime judges by; of 10,500 characters, not all of one byte.
REPETITIVE = "again and again" * 700
VARIED = "".join(random.Random(3).choices("etaoin shrdlu+-=0123456789é数", k=10_500))


def trace(rng, start):
    """Two calls, of which slime passes over what is no number."""
    events = []
    for turn in range(2):
        latency = rng.uniform(0.5, 20)
        # Longer than what the worker tells: a value that is longer than its call is left out.
        end = start + latency + 0.1
        attrs = {
            "e2e_latency": latency,
            "queue_time": rng.choice([rng.uniform(0, 0.2), None, True]),
            "decode_throughput": rng.uniform(20, 90),
            "prompt_tokens": 100,
            "completion_tokens": 20,
        }
        span = {"name": "sglang_generate", "span_id": f"{start}-{turn}", "attempt": 0}
        events.append(span | {"type": "span_start", "ts": start})
        events.append(span | {"type": "span_end", "ts": end, "attrs": attrs})
        start = end
    return {"version": 1, "trace_id": f"{start}", "events": events, "attempt": 0}


def sample(rng, group, index, rewards):
    length = 0 if index == 5 else rng.choice([7, 30, 48])
    offsets = [3]
    for _ in range(length):
        offsets.append(offsets[-1] + rng.randint(1, 40))
    # A sample that drafted nothing has no rate; slime takes it for 0.
    drafted = rng.choice([8, 10, 12])
    cached = rng.randint(0, 100)
    # Rewards of every third group are alike.
    alike = rewards[group // 3 % len(rewards)]
    return {
        "group_index": group,
        "index": index,
        "prompt": f"question {group}",
        "response": REPETITIVE if index == 0 else VARIED if index == 1 else "short " * 9,
        "response_length": length,
        "reward": {
            REWARD_KEY: alike if group % 3 == 0 else rng.choice(rewards),
            CATEGORY_KEY: rng.choice(["format", "timeout", 2, 0.5, True, None]),
        },
        "status": rng.choice(["completed", "completed", "truncated", "aborted", "failed"]),
        "loss_mask": [rng.randint(0, 1) for _ in range(length)] if index % 3 == 0 else None,
        "remove_sample": index % 8 == 1,
        "rollout_top_p_token_offsets": offsets if index % 4 != 2 else None,
        "non_generation_time": rng.choice([0.0, rng.uniform(0.1, 30)]),
        "spec_info": {
            "spec_accept_token_num": 0 if index % 6 == 4 else rng.randint(0, drafted),
            "spec_draft_token_num": drafted,
            "spec_verify_ct": drafted // 2,
            "completion_token_num": length,
        },
        "prefix_cache_info": {"cached_tokens": cached, "total_prompt_tokens": cached + rng.randint(0, 300)},
        "weight_versions": ["3"],
        "metadata": {},
        "trace": trace(rng, 1.76e9 + index),
    }


def training():
    """With graded rewards, of which there is no pass@K."""
    rng = random.Random(7)
    rewards = [1.0, 0.25, 0.0]
    samples = [sample(rng, group, group * GROUP + at, rewards) for group in range(12) for at in range(GROUP)]
    return {"rollout_id": 3, "samples": samples}


def loosely_typed():
    """With what Python takes for numbers and truths: masks of truths, samples that are removed by a 1, offsets of no token."""
    rng = random.Random(13)
    rewards = [-0.96, 0.15, 2.05]
    samples = [sample(rng, group, group * GROUP + at, rewards) for group in range(9) for at in range(GROUP)]
    for each in samples:
        mask, offsets = each["loss_mask"], each["rollout_top_p_token_offsets"]
        each |= {"response": "short", "remove_sample": int(each["remove_sample"])}
        each |= {"loss_mask": mask and [bool(weight) for weight in mask], "rollout_top_p_token_offsets": offsets or []}
    return {"rollout_id": 3, "samples": samples}


def evaluation():
    """With rewards that are verdicts. A dump does not tell of which data set its samples are; whoever knows says so in a member
    of ours."""
    rng = random.Random(11)
    rewards = [1.0, 0.0]
    samples = [sample(rng, group, group * GROUP + at, rewards) for group in range(6) for at in range(GROUP)]
    for each in samples:
        name = {"group": str(each["group_index"]), "sample": str(each["index"]), "dataset": DATASET}
        # Beside it sums are taken from there: slime's may be what the requests add up to.
        sums = {sum: each[sum] for sum in ("spec_info", "prefix_cache_info")}
        each |= {"evaluation": True, "rollscope": name | sums}
    return {"rollout_id": 3, "samples": samples}
