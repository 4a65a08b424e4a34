"""Makes the small torch files of crates/formats/tests/data: objects that a rollout's dump may hold, by real torch.

Run with torch and numpy installed: `python tools/make_torch_dumps.py crates/formats/tests/data`.
Files that hold classes of slime need no slime: the classes are made here under slime's names.
"""

import dataclasses
import enum
import pathlib
import pickle
import sys
import types

import numpy
import torch


def slime_types() -> types.ModuleType:
    """The part of `slime.utils.types` that a raw sample consists of."""
    for name in ("slime", "slime.utils", "slime.utils.types"):
        sys.modules[name] = types.ModuleType(name)
    module = sys.modules["slime.utils.types"]

    @dataclasses.dataclass
    class Sample:
        class Status(enum.Enum):
            COMPLETED = "completed"
            TRUNCATED = "truncated"

        index: int = 0
        group_index: int = 0
        reward: object = None
        status: object = None
        response_length: int = 0
        metadata: dict = dataclasses.field(default_factory=dict)

    for cls in (Sample, Sample.Status):
        cls.__module__ = module.__name__
    Sample.__qualname__ = "Sample"
    Sample.Status.__qualname__ = "Sample.Status"
    module.Sample = Sample
    return module


def trace(sample: int) -> dict:
    """A carrier with one request of one worker."""
    head = {"trace_id": f"{sample:032x}", "sample_id": sample, "group_id": 0, "attempt": 0}
    span = f"{sample + 1000:032x}"
    events = [
        {"type": "span_start", "name": "sglang_generate", "ts": 1790000000.25, **head, "span_id": span},
        {
            "type": "span_end", "name": "sglang_generate", "ts": 1790000001.5, **head, "span_id": span,
            "attrs": {"prompt_tokens": 3, "completion_tokens": 5, "queue_time": 0.25, "e2e_latency": 1.25,
                      "finish_reason": "stop", "sglang_request_id": f"r{sample}"},
        },
    ]
    return {"version": 1, **head, "events": events}


def main(out: pathlib.Path) -> None:
    sample = slime_types().Sample
    raw = []
    for index, reward in enumerate([
        torch.tensor(0.5, dtype=torch.bfloat16),
        numpy.float32(0.25),
        numpy.array([2.0]),
        torch.tensor([[1, 2], [3, 4]], dtype=torch.int16).t()[1:, :1],
        {"score": 0.125, "kind": "format"},
        torch.tensor(-1.5, dtype=torch.float16),
    ]):
        one = sample(index=index, reward=reward, status=sample.Status.TRUNCATED, response_length=7,
                     metadata={"when": numpy.int64(3), "shape": numpy.zeros((2, 2)), "big": 1 << 80})
        one.trace = trace(index)
        raw.append(one)
    dump = {"rollout_id": 7, "samples": raw}
    torch.save(dump, out / "raw_samples.pt")
    torch.save(dump, out / "raw_samples_legacy.pt", _use_new_zipfile_serialization=False)
    # The step behind the samples, and each protocol of pickle.
    plain = [{"index": n, "group_index": 0, "reward": float(n), "status": "completed", "trace": trace(n)} for n in range(3)]
    for protocol in range(6):
        torch.save({"samples": plain, "rollout_id": 9}, out / f"protocol_{protocol}.pt",
                   pickle_protocol=protocol, pickle_module=pickle, _use_new_zipfile_serialization=protocol > 1)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
