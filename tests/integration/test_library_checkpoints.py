"""`paceline.save` and `paceline.load` in a user's own loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import paceline
from helpers import on_pool
from paceline.checkpoint import step_folders
from paceline.checkpoint.rank_files import header_file
from paceline.errors import RunError, UsageError, WorkerError
from paceline.launch.local import LocalPool
from resume_jobs import load_toy, own_loop

# 25 samples in batches of 3 for each of 3 workers: 3 steps per epoch, the last one with 7 samples.
MID_EPOCH, END_OF_EPOCH, NUM_STEPS = 4, 6, 9


@pytest.mark.parametrize(
    ("strategy", "save_at", "optimizer"),
    [
        ("overlap", MID_EPOCH, "Adam"),
        ("sharded", MID_EPOCH, "Adam"),
        pytest.param("overlap", END_OF_EPOCH, "Adam", marks=pytest.mark.slow),
        *(
            pytest.param(strategy, MID_EPOCH, optimizer, marks=pytest.mark.slow)
            for strategy in (
                "ring",
                "ring+topk:ratio=0.1",
                "stepwise:correct=delayed",
                "gossip",
                "local-sgd:sync_every=2",
            )
            for optimizer in ("SGD", "Adam")
        ),
    ],
)
def test_a_loaded_loop_ends_with_the_same_bits(
    tmp_path: Path, pool: LocalPool, strategy: str, save_at: int, optimizer: str
) -> None:
    arguments = {"strategy": strategy, "folder": str(tmp_path), "optimizer": optimizer}
    whole = on_pool(pool, 3, own_loop, save_at=save_at, **arguments)
    loaded = on_pool(pool, 3, own_loop, **arguments)
    for (digest, buffers, step, losses), (digest_2, buffers_2, step_2, losses_2) in zip(whole, loaded, strict=True):
        assert step == step_2 == NUM_STEPS
        assert losses[save_at:] == losses_2
        assert (digest, buffers) == (digest_2, buffers_2)


def test_an_interrupted_save_leaves_the_one_before(tmp_path: Path, pool: LocalPool) -> None:
    arguments = {"strategy": "overlap", "folder": str(tmp_path)}
    whole = on_pool(pool, 2, own_loop, save_at=MID_EPOCH, **arguments)
    [folder] = step_folders(tmp_path)
    (tmp_path / "step-00000002").mkdir()
    for name in ("rank-0.json", "rank-0.safetensors"):
        (tmp_path / "step-00000002" / name).write_bytes((folder / name).read_bytes())
    loaded = on_pool(pool, 2, own_loop, **arguments)
    assert [worker[0] for worker in loaded] == [worker[0] for worker in whole]


def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path: Path, pool: LocalPool) -> None:
    on_pool(pool, 2, own_loop, strategy="overlap", folder=str(tmp_path), save_at=MID_EPOCH)
    for arguments, reason in (
        ({}, "the checkpoint is of another model: "),
        ({"hidden": 20}, "the checkpoint is of another model: "),
    ):
        with pytest.raises(WorkerError, match=reason):
            on_pool(pool, 2, load_toy, folder=str(tmp_path), **arguments)
    with pytest.raises(WorkerError, match="it was written by 2 workers; start as many workers as when it was written"):
        on_pool(pool, 1, load_toy, folder=str(tmp_path))


def objects() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.usefixtures("session")
def test_extra_values_and_the_last_two_checkpoints(tmp_path: Path) -> None:
    model, optimizer = objects()
    assert paceline.load(tmp_path / "none", model, optimizer) == {}
    for step in range(4):
        paceline.save(tmp_path / "run", model, optimizer, step=step, best=torch.tensor(0.5), notes=["a", {"b": None}])
    assert [path.name for path in step_folders(tmp_path / "run")] == ["step-00000004", "step-00000003"]
    extra = paceline.load(tmp_path / "run", model, optimizer)
    assert extra == {"step": 3, "best": torch.tensor(0.5), "notes": ["a", {"b": None}]}
    header_file(tmp_path / "run" / "step-00000004", 0).write_text("damaged")
    with pytest.warns(UserWarning, match=r"checkpoint step-00000004 is skipped: rank-0.json is damaged"):
        assert paceline.load(tmp_path / "run", model, optimizer)["step"] == 2


@pytest.mark.usefixtures("session")
def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    model, optimizer = objects()
    with pytest.raises(UsageError, match="a checkpoint cannot hold 'extra/odd', which is a object"):
        paceline.save(tmp_path, model, optimizer, odd=object())
    with pytest.raises(UsageError, match=r"the optimizer is a Linear; pass a torch\.optim\.Optimizer to save\(\)"):
        paceline.save(tmp_path, model, model)  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="the checkpoint cannot be written to"):
        paceline.save(tmp_path / "file", model, optimizer)
    paceline.save(tmp_path / "run", model, optimizer)
    other = nn.Linear(2, 3)
    with pytest.raises(UsageError, match="the checkpoint is of another model"):
        paceline.load(tmp_path / "run", other, torch.optim.SGD(other.parameters(), lr=0.1))
    paceline.shard(DataLoader(list(range(8)), batch_size=2))
    with pytest.raises(UsageError, match="has the positions of 0 loaders, and this session has 1"):
        paceline.load(tmp_path / "run", model, optimizer)


def test_without_a_session_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"paceline\.save\(\) was called without a session"):
        paceline.save(tmp_path, *objects())


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("data", [list(range(10)), Stream()])
def test_a_loader_continues_where_it_was(data: Any) -> None:
    first, second = (paceline.shard(DataLoader(data, batch_size=3)) for _ in range(2))
    assert first.position == {"epoch": 0, "batches": 0}
    seen = []
    for batch in first:
        seen.append(batch.tolist())
        if len(seen) == 2:
            second.position = first.position
    assert first.position == {"epoch": 1, "batches": 0}
    assert second.position == {"epoch": 0, "batches": 2}
    assert [batch.tolist() for batch in second] == seen[2:]
    assert [batch.tolist() for batch in second] == [batch.tolist() for batch in first]
    for _ in first:
        break
    assert first.position == {"epoch": 3, "batches": 0}
