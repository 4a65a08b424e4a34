"""A run's tables, read by DuckDB and Polars as anybody would: the recipes are those of the guide, word for word, the rows
agree with the report."""

import ast
import json
import math
import os
import pathlib
import re
import subprocess

import duckdb

RUN = os.environ["RUN"]
STAGES = [
    "pd_prefill_bootstrap_queue_duration",
    "pd_prefill_forward_duration",
    "pd_decode_prealloc_duration",
    "pd_decode_transfer_duration",
    "pd_decode_forward_duration",
]


def table(name):
    return f"read_parquet('{RUN}/steps/step=*/{name}/*.parquet', hive_types = {{step: bigint}})"


def one(query):
    [row] = duckdb.sql(query).fetchall()
    return row


def recipe(guide, language):
    """The first block of code in a language after the guide's `Polars:` or `DuckDB:`, for this run."""
    found = re.search(rf"```{language}\n(.*?)```", guide, re.DOTALL)
    assert found, f"no {language} in the guide"
    return found.group(1).replace("RUN/", f"{RUN}/")


def value_of(source):
    """What the last expression of a program gives."""
    tree = ast.parse(source)
    last = ast.Expression(tree.body.pop().value)
    names = {}
    exec(compile(tree, "guide", "exec"), names)
    return eval(compile(last, "guide", "eval"), names)


def recipes():
    """By worker, the mean of decode's forward stage, as each recipe has it."""
    docs = pathlib.Path(__file__).parent.parent / "docs"
    found = []
    for language in ("en", "zh"):
        guide = (docs / language / "observability.md").read_text()
        asking = guide[guide.index("\nDuckDB"):]
        by_duckdb = {url: mean for url, _, mean in duckdb.sql(recipe(asking, "sql")).fetchall()}
        polars = value_of(recipe(asking, "python"))
        found += [by_duckdb, dict(polars.rows())]
    assert found[0] and all(found[0].keys() == other.keys() for other in found), found
    for other in found[1:]:
        assert all(abs(found[0][url] - mean) <= 1e-12 for url, mean in other.items()), found
    return found[0]


def main():
    report = subprocess.run([os.environ["ROLLSCOPE"], "report", RUN, "--json"], check=True, capture_output=True, text=True)
    [step] = json.loads(report.stdout)["steps"]
    metrics = step["metrics"]

    count, completed, steps, duration_s = one(f"""
        select count(*), count(*) filter (outcome = 'completed'), list(distinct step), avg(duration_ns) / 1e9
        from {table('requests')}""")
    assert count == metrics["perf/request/count"], (count, metrics)
    assert count == completed > 0, (count, completed)
    assert steps == [step["step"]], steps
    assert 0 < duration_s < 600, duration_s

    roles = dict(duckdb.sql(f"select role, count(*) from {table('legs')} group by role").fetchall())
    assert roles == {"prefill": count, "decode": count}, roles
    for stage in STAGES:
        side = stage.split("_")[1]
        told, least, mean = one(
            f"select count({stage}), min({stage}), avg({stage}) from {table('legs')} where role = '{side}'"
        )
        assert told == count and least >= 0, (stage, told, least)
        name = stage.removeprefix(f"pd_{side}_").removesuffix("_duration")
        reported = metrics[f"perf/{side}/{name}_duration/mean"]
        assert math.isclose(mean, reported, rel_tol=1e-9), (stage, mean, reported)

    samples, reward = one(f"select count(*), avg(reward) from {table('samples')}")
    assert samples == step["samples"], (samples, step["samples"])
    assert 0 < reward <= 1, reward

    # Joined by their ids: legs lie within their requests, and the rollout code's own spans belong to samples.
    outside = one(f"""
        select count(*) from {table('legs')} as leg join {table('requests')} as request using (request_id)
        where leg.end_after_ns > request.duration_ns""")[0]
    assert outside == 0, f"{outside} legs end after their requests"
    own, strangers = one(f"""
        select count(*), count(*) filter (sample_id not in (select sample_id from {table('samples')}))
        from {table('spans')}""")
    assert own > 0 and strangers == 0, (own, strangers)
    workers = recipes()
    assert len(workers) == metrics["perf/worker/count"] / 2, (workers, metrics["perf/worker/count"])
    print(f"{count} requests, {samples} samples, mean reward {reward:.3f}; {len(workers)} decode worker by both recipes")


if __name__ == "__main__":
    main()
