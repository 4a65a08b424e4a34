"""How long slime takes for its numbers of the requests of a dump: what its `_compute_sglang_request_perf_metrics` does, written
from what is known of it. Of every event of every sample that is the end of a call, those attributes are collected that are
numbers, and reduced by numpy to mean, median, largest and least. (Calls that were streamed, which slime passes over, are
taken as the others.) Reading the dump is not counted, and time is the processor's. Prints the median over the rounds.

Usage: slime_metrics_bench.py DUMP.pt [ROUNDS]
"""

import io
import pickle
import statistics
import sys
import time
import zipfile

import numpy as np

CALLS = ("sglang_generate", "sglang_generate_stream")
# The number's name below perf/, and the attribute that it is made of.
METRICS = [
    ("request/e2e_latency", "e2e_latency"),
    ("request/queue_time", "queue_time"),
    ("decode/throughput", "decode_throughput"),
    ("prefill/bootstrap_queue_duration", "pd_prefill_bootstrap_queue_duration"),
    ("prefill/bootstrap_duration", "pd_prefill_bootstrap_duration"),
    ("prefill/alloc_wait_duration", "pd_prefill_alloc_wait_duration"),
    ("prefill/forward_duration", "pd_prefill_forward_duration"),
    ("prefill/transfer_queue_duration", "pd_prefill_transfer_queue_duration"),
    ("prefill/transfer_speed_gb_s", "pd_transfer_speed_gb_s"),
    ("prefill/transfer_total_mb", "pd_transfer_total_mb"),
    ("prefill/retry_count", "pd_prefill_retry_count"),
    ("decode/prealloc_duration", "pd_decode_prealloc_duration"),
    ("decode/bootstrap_duration", "pd_decode_bootstrap_duration"),
    ("decode/alloc_wait_duration", "pd_decode_alloc_wait_duration"),
    ("decode/transfer_duration", "pd_decode_transfer_duration"),
    ("decode/forward_duration", "pd_decode_forward_duration"),
]


class Plain(pickle.Unpickler):
    """A dump of plain values names no class."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name}")


def load(path):
    with zipfile.ZipFile(path) as file:
        name = next(name for name in file.namelist() if name.endswith("data.pkl"))
        return Plain(io.BytesIO(file.read(name))).load()["samples"]


def calls(samples):
    """What the end of each call tells."""
    for sample in samples:
        for event in sample["trace"].get("events") or []:
            if event.get("type") != "span_end" or event.get("name") not in CALLS:
                continue
            yield event.get("attrs") or {}


def numbers(samples):
    values = {}

    def take(name, attribute, attrs):
        value = attrs.get(attribute)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not np.isfinite(value):
            return False
        values.setdefault(name, []).append(float(value))
        return True

    requests = list(calls(samples))
    profiled = 0
    for attrs in requests:
        is_told = False
        for name, attribute in METRICS:
            is_told |= take(name, attribute, attrs)
        profiled += is_told
    result = {"perf/request/count": len(requests), "perf/request/profiled_count": profiled}
    for name, of in values.items():
        array = np.array(of)
        result[f"perf/{name}/mean"] = np.mean(array).item()
        result[f"perf/{name}/median"] = np.median(array).item()
        result[f"perf/{name}/max"] = np.max(array).item()
        result[f"perf/{name}/min"] = np.min(array).item()
    return result


def main():
    samples = load(sys.argv[1])
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    times_s = []
    for _ in range(rounds):
        begun = time.process_time()
        told = numbers(samples)
        times_s.append(time.process_time() - begun)
    print(f"{len(samples)} samples, {len(told)} numbers, median_s {statistics.median(times_s):.5f}")


if __name__ == "__main__":
    main()
