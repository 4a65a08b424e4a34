"""A run's tables, read by DuckDB as anybody would: the names are those of the documentation, the rows agree with the
report."""

import json
import os
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
        assert abs(mean - reported) <= 1e-9 + 1e-6 * reported, (stage, mean, reported)

    samples, reward = one(f"select count(*), avg(reward) from {table('samples')}")
    assert samples == step["samples"], (samples, step["samples"])
    assert 0 < reward <= 1, reward

    # Joined by their ids: the longest request's own spans lie within it.
    outside = one(f"""
        select count(*) from {table('spans')} as span join {table('requests')} as request using (request_id)
        where span.start_ns < request.arrival_ns or span.end_ns > request.arrival_ns + request.duration_ns""")[0]
    assert outside == 0, f"{outside} spans lie outside of their requests"
    print(f"{count} requests, {samples} samples, mean reward {reward:.3f}")


if __name__ == "__main__":
    main()
