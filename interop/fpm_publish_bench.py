"""SGLang's publisher as its scheduler calls it: prints what `publish` took, in nanoseconds. A part of `cargo xtask bench fpm`."""

import sys
import time

from wheels import module

# What the scheduler does between two passes takes the caches, as in the publisher that this is compared with.
WORK_BYTES = 1 << 20
LINE_BYTES = 64
# Between two of the passes that go before, and what the publisher gets to hand all of them on.
BEFORE_EVERY_S = 0.0001
BEFORE_ENDS_S = 0.2


def main():
    endpoint, [before, passes, interval_us] = sys.argv[1], map(int, sys.argv[2:])
    sglang = module("sglang")
    publisher = sglang._FpmPublisherThread(endpoint, "bench", 0)
    print("bound", flush=True)
    sys.stdin.readline()
    scheduled = sglang.ScheduledRequestMetrics(num_decode_requests=48, sum_decode_kv_tokens=48 * 1800)
    record = sglang.ForwardPassMetrics(worker_id="bench", wall_time=0.012, scheduled_requests=scheduled)
    for _ in range(before):
        publisher.publish(record)
        time.sleep(BEFORE_EVERY_S)
    time.sleep(BEFORE_ENDS_S)
    work, touched = bytearray(WORK_BYTES), bytes(WORK_BYTES // LINE_BYTES)
    took_ns, due = [], time.perf_counter()
    for _ in range(passes):
        due += interval_us / 1e6
        while time.perf_counter() < due:
            work[::LINE_BYTES] = touched
        begun = time.perf_counter_ns()
        publisher.publish(record)
        took_ns.append(time.perf_counter_ns() - begun)
    took_ns.sort()
    median, p99 = took_ns[len(took_ns) // 2], took_ns[len(took_ns) * 99 // 100]
    print(f"median_ns {median} p99_ns {p99} max_ns {took_ns[-1]}", flush=True)
    # Subscribers take what waits for them.
    sys.stdin.readline()
    publisher.shutdown()


if __name__ == "__main__":
    main()
