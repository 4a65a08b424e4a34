"""The numbers of made-up dumps against those that slime's own module gives of them, to 1e-9. `SLIME_SOURCE` is the folder of a
checkout of slime, of a version that has `slime/observability/rollout_metrics.py`.

slime's package needs a GPU's software to be installed; this module needs numpy and a little of torch. What it imports besides and
is not installed is stood in for: torch by numpy, all else by what does nothing.

What slime gave is left in `slime_made_up.metrics.json`, beside the dumps; the tests of the program have copies of these files."""

import importlib
import importlib.abc
import importlib.util
import json
import os
import pathlib
import sys
import types
from unittest import mock

import numpy as np
from slime_dumps import CATEGORY_KEY, DATASET, GPUS, GROUP, REWARD_KEY, ROLLOUT_TIME, evaluation, loosely_typed, training
from slime_numbers import compare, made_up, under

MODULE = "slime.observability.rollout_metrics"


class Tensor(np.ndarray):
    """As much of torch's as is asked of it."""

    device = None

    def numel(self):
        return self.size


class StandIn(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock(name=f"{self.__name__}.{name}")


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for packages that are not installed, with all that is below them."""

    def __init__(self):
        self.packages = set()

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.packages:
            return importlib.util.spec_from_loader(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        if module.__name__ == "torch":
            module.Tensor, module.dtype, module.Size = Tensor, np.dtype, tuple
            module.int64, module.bool = np.int64, np.bool_
            module.as_tensor = lambda values, dtype=None, device=None: np.asarray(values, dtype).view(Tensor)
            module.diff = np.diff


def slime_module():
    sys.path.insert(0, os.environ["SLIME_SOURCE"])
    stand_ins = StandIns()
    sys.meta_path.append(stand_ins)
    while True:
        try:
            return importlib.import_module(MODULE)
        except ModuleNotFoundError as missing:
            package = missing.name.partition(".")[0]
            if package == "slime" or package in stand_ins.packages:
                raise
            stand_ins.packages.add(package)


def arguments():
    return types.SimpleNamespace(
        advantage_estimator="grpo",
        custom_eval_rollout_log_function_path=None,
        log_passrate=True,
        log_reward_category=CATEGORY_KEY,
        n_samples_per_eval_prompt=GROUP,
        reward_key=REWARD_KEY,
        rollout_num_gpus=GPUS,
        sglang_speculative_algorithm="EAGLE",
        wandb_always_use_train_step=False,
    )


def of_training(slime, samples):
    perf = slime.compute_perf_metrics_from_samples(arguments(), samples, ROLLOUT_TIME)
    return under("perf/", perf) | under("rollout/", slime.compute_metrics_from_samples(arguments(), samples))


def of_evaluation(slime, samples):
    rewards = [sample.get_reward_value(arguments()) for sample in samples]
    truncated = [sample.status == slime.Sample.Status.TRUNCATED for sample in samples]
    data = {DATASET: {"rewards": rewards, "truncated": truncated, "samples": samples}}
    with mock.patch.object(slime, "logging_utils"):
        numbers = slime.log_eval_rollout_data(3, arguments(), data)
    return {name: value for name, value in numbers.items() if name != "eval/step"}


def main():
    if "SLIME_SOURCE" not in os.environ:
        sys.exit("SLIME_SOURCE is not set: the folder of a checkout of slime")
    slime = slime_module()
    told = {}
    for name, dump, of in (
        ("training", training(), of_training),
        ("loosely_typed", loosely_typed(), of_training),
        ("evaluation", evaluation(), of_evaluation),
    ):
        samples, metrics = made_up(dump, name)
        numbers = of(slime, [slime.Sample.from_dict(sample) for sample in samples])
        told[name] = {key: float(value) for key, value in sorted(numbers.items())}
        assert len(numbers) > 20, numbers
        compare(f"slime's own numbers, {name}", numbers, metrics)
    pathlib.Path("slime_made_up.metrics.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
