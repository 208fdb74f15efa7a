"""Strategies in a user's own file: the example of CONTRIBUTING.md, and one derived from `Strategy` alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import jobs
from certified import assert_exact, assert_traffic_as_predicted
from helpers import REPOSITORY, on_threads

OWN_TRAFFIC = '''
from dataclasses import dataclass

from paceline import Guarantee, Operation, Strategy


@dataclass(kw_only=True)
class OwnTraffic(Strategy):
    """Each gradient is summed by the library's all-reduce."""

    @property
    def guarantee(self):
        return Guarantee.EXACT

    def after_backward(self):
        for parameter in self.worker.parameters:
            parameter.grad.mul_(self.worker.weight)
            self.worker.comm.all_reduce(parameter.grad)

    def traffic(self, tensors, rank, world_size, step):
        return [Operation("all_reduce", tensor.nbytes) for tensor in tensors]
'''


def star() -> str:
    """Return the example strategy of CONTRIBUTING.md."""
    blocks = re.findall(r"```python\n(.*?)```", (REPOSITORY / "CONTRIBUTING.md").read_text(), re.DOTALL)
    [code] = [block for block in blocks if "class Star(" in block]
    return code


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("name", ["Star", "Star:accumulate=2", "OwnTraffic"])
def test_a_strategy_of_a_user_is_exact(tmp_path: Path, name: str, world_size: int) -> None:
    file = tmp_path / "my_strategy.py"
    file.write_text(star() if name.startswith("Star") else OWN_TRAFFIC)
    workers = on_threads(world_size, jobs.certify, strategy=f"{file}:{name}", changes={})
    assert_exact(workers)
    assert_traffic_as_predicted(workers)
