"""Which library carries CUDA tensors, decided from made-up numbers of GPUs."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from helpers import Meeting, run_together
from paceline.comm import CommConfig
from paceline.comm.torch import TorchComm

HOST_GPUS = threading.local()


def uses_nccl(monkeypatch: pytest.MonkeyPatch, layout: str, gpus: dict[str, int], device: str = "cuda") -> list[bool]:
    """What each worker decides; the layout names the host of each, and hosts have so many GPUs."""
    store = Meeting()

    def remember(self: TorchComm, rank: int, world_size: int, store: Any, *, use_nccl: bool, **_: Any) -> None:
        del rank, world_size, store
        self.use_nccl = use_nccl  # type: ignore[attr-defined]

    monkeypatch.setattr(TorchComm, "__init__", remember)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: HOST_GPUS.count)

    def connect(rank: int) -> bool:
        HOST_GPUS.count = gpus[layout[rank]]
        local_rank = layout[:rank].count(layout[rank])
        place = CommConfig(
            rank=rank, world_size=len(layout), store=store, node=layout[rank], local_rank=local_rank, device=device
        )
        return TorchComm.connect(place).use_nccl  # type: ignore[attr-defined]

    return run_together([lambda rank=rank: connect(rank) for rank in range(len(layout))], timeout_s=20.0)


def test_two_hosts_with_a_gpu_for_each_worker_use_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    assert uses_nccl(monkeypatch, "a" * 8 + "b" * 8, {"a": 8, "b": 8}) == [True] * 16


@pytest.mark.parametrize(
    ("layout", "gpus", "expected"),
    [
        ("aaaa", {"a": 4}, True),
        ("aaaa", {"a": 8}, True),
        ("aaaa", {"a": 3}, False),  # two workers share a GPU
        ("aabb", {"a": 2, "b": 1}, False),  # one host lacks a GPU: nobody may use nccl
        ("aabb", {"a": 4, "b": 0}, False),
        ("abab", {"a": 2, "b": 2}, True),
        ("ab", {"a": 1, "b": 1}, True),
    ],
)
def test_every_host_needs_a_gpu_for_each_of_its_workers(
    monkeypatch: pytest.MonkeyPatch, layout: str, gpus: dict[str, int], expected: bool
) -> None:
    assert uses_nccl(monkeypatch, layout, gpus) == [expected] * len(layout)


def test_workers_on_cpus_never_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    assert uses_nccl(monkeypatch, "aa", {"a": 8}, device="cpu") == [False, False]
