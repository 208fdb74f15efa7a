"""Files of checkpoints: every value survives, every damage is named, and old checkpoints are deleted in order."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from paceline.checkpoint import (
    CheckpointRequest,
    CheckpointWriter,
    Damaged,
    Header,
    find_newest_whole,
    is_complete,
    next_attempt,
    prune,
    read_rank,
    rng_state,
    set_rng_state,
    step_folder,
    step_folders,
    write_rank,
)
from paceline.checkpoint.rank_files import header_file, tensor_file
from paceline.checkpoint.state_tree import join, split
from paceline.errors import UsageError
from paceline.recipe import CheckpointInterval, Recipe
from paceline.train.checkpointing import Timer


def header(step: int = 5, rank: int = 0, workers: int = 2, **changes: Any) -> Header:
    plain = {"epoch": 0, "servers": 0, "strategy": "ring", "recipe": "abc", "attempt": 0}
    return Header(step=step, rank=rank, workers=workers, **{**plain, **changes})


def state(factor: float = 1.0) -> dict[str, Any]:
    layout = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(1)).to(memory_format=torch.channels_last)
    return {
        "numbers": [1, 2.5, float("nan"), float("-inf"), True, None, "text"],
        "by number": {0: {"step": torch.tensor(3.0), "empty": torch.empty(0)}, 10: (1, [2])},
        "$odd": {"$tensor": "no tensor"},
        "layout": layout * factor,
        "slice": torch.arange(12).view(3, 4)[:, 1:3],
        "types": [torch.zeros(3, dtype=kind) for kind in (torch.bfloat16, torch.bool, torch.int8, torch.float64)],
        "a/b": torch.ones(1),
        "a": {"b": torch.zeros(1)},
    }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or a != a)


def write(folder: Path, *headers: Header) -> None:
    writer = CheckpointWriter(folder, keep=100, warn=pytest.fail)
    for one in headers:
        writer.save(one, state())
    writer.wait()


def test_every_value_survives(tmp_path: Path) -> None:
    write(tmp_path, header(workers=1))
    stored = read_rank(step_folder(tmp_path, 5), 0)
    assert stored.header == header(workers=1)
    assert same(stored.state, state())
    assert stored.state["layout"].stride() == state()["layout"].stride()


def test_the_tensors_are_a_plain_safetensors_file(tmp_path: Path) -> None:
    write(tmp_path, header(workers=1))
    tensors = load_file(tensor_file(step_folder(tmp_path, 5), 0))
    assert torch.equal(tensors["slice"], state()["slice"])


@pytest.mark.parametrize("value", [object(), {(1, 2): 3}, {1.5: 2}, torch.zeros(2, dtype=torch.complex64)])
def test_other_values_are_refused_with_their_name(tmp_path: Path, value: Any) -> None:
    with pytest.raises(UsageError, match="a checkpoint cannot hold 'here'"):
        write_rank(tmp_path, header(), *split({"here": value}))


def test_later_changes_do_not_reach_a_checkpoint(tmp_path: Path) -> None:
    tensor = torch.zeros(1000)
    writer = CheckpointWriter(tmp_path, keep=3, warn=pytest.fail)
    writer.save(header(workers=1), {"tensor": tensor})
    tensor.fill_(7)
    writer.wait()
    assert not read_rank(step_folder(tmp_path, 5), 0).state["tensor"].any()


def test_a_disk_that_fails_ends_no_training(tmp_path: Path) -> None:
    texts: list[str] = []
    (tmp_path / "step-00000005").write_text("a file in the way")
    writer = CheckpointWriter(tmp_path, keep=3, warn=texts.append)
    writer.save(header(), state())
    writer.wait()
    assert len(texts) == 1
    assert texts[0].startswith("the checkpoint of step 5 cannot be written: ")


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    write(tmp_path, header(rank=0), header(rank=1))
    folder = step_folder(tmp_path, 5)
    assert find_newest_whole(tmp_path).header == header()
    chosen = random.Random(0)
    for file in (tensor_file(folder, 0), header_file(folder, 1)):
        whole = file.read_bytes()
        for position in chosen.sample(range(len(whole)), 40):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << chosen.randrange(8)
            file.write_bytes(damaged)
            found = find_newest_whole(tmp_path)
            assert found.folder is None
            assert len(found.skipped) == 1
            assert file.name in found.skipped[0]
        for content in (b"", whole[: len(whole) // 2], whole + b" x"):
            file.write_bytes(content)
            assert file.name in find_newest_whole(tmp_path).skipped[0]
        file.write_bytes(whole)
    assert find_newest_whole(tmp_path).folder == folder


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"step": 6}, "rank-1.json has step 6, and rank-0.json has 5"),
        ({"workers": 3}, "rank-1.json has workers 3, and rank-0.json has 2"),
        ({"recipe": "x"}, "rank-1.json has recipe 'x', and rank-0.json has 'abc'"),
        ({"attempt": 1}, "rank-1.json has attempt 1, and rank-0.json has 0"),
    ],
)
def test_ranks_that_disagree_are_no_checkpoint(tmp_path: Path, other: dict[str, Any], reason: str) -> None:
    write(tmp_path, header(rank=0), header(rank=1))
    (tmp_path / "other").mkdir()
    write(tmp_path / "other", header(**{"rank": 1, **other}))
    [source] = step_folders(tmp_path / "other")
    for kind in (tensor_file, header_file):
        kind(source, 1).replace(kind(step_folder(tmp_path, 5), 1))
    assert find_newest_whole(tmp_path).skipped == (f"checkpoint step-00000005 is skipped: {reason}",)
    assert not is_complete(step_folder(tmp_path, 5))


def test_other_settings_are_skipped(tmp_path: Path) -> None:
    write(tmp_path, header(workers=1))
    assert find_newest_whole(tmp_path, recipe="abc").folder is not None
    [sentence] = find_newest_whole(tmp_path, recipe="other").skipped
    assert sentence == "checkpoint step-00000005 is skipped: it was written with other settings"


def test_the_last_complete_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        write(tmp_path, header(step, 0), header(step, 1))
    write(tmp_path, header(5, 0))  # rank 1 is still writing
    prune(tmp_path, 2)
    assert [path.name[-1] for path in step_folders(tmp_path)] == ["5", "4", "3"]
    write(tmp_path, header(5, 1))
    prune(tmp_path, 2)
    assert [path.name[-1] for path in step_folders(tmp_path)] == ["5", "4"]


def test_attempts_are_counted(tmp_path: Path) -> None:
    assert next_attempt(tmp_path / "missing") == 1
    write(tmp_path, header(1, 0), header(2, 0, attempt=3))
    header_file(step_folder(tmp_path, 1), 0).write_text("damaged")
    assert next_attempt(tmp_path) == 4


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    write(tmp_path, header(workers=1, schema=2))
    with pytest.raises(Damaged, match=r"rank-0.json has schema 2, and this version of paceline reads schema 1"):
        read_rank(step_folder(tmp_path, 5), 0)


def test_random_numbers_continue() -> None:
    before = rng_state()

    def draw() -> list[float]:
        return [random.random(), random.gauss(0, 1), np.random.random(), np.random.normal(), float(torch.randn(()))]

    plain, tensors = split(before)
    first = draw()
    set_rng_state(join(json.loads(json.dumps(plain)), tensors))
    assert draw() == first


def test_a_request_survives_its_message() -> None:
    request = CheckpointRequest("/some/folder", header(7))
    assert CheckpointRequest.decode(request.encode()) == request
    assert request.folder == Path("/some/folder/step-00000007")


@pytest.mark.parametrize(
    ("text", "count", "unit"),
    [
        ("500steps", 500, "steps"),
        ("1 step", 1, "steps"),
        ("10m", 600, "seconds"),
        ("1.5h", 5400, "seconds"),
        ("30s", 30, "seconds"),
        ("2e", 2, "epochs"),
        ("3", 3, "epochs"),
        (4, 4, "epochs"),
    ],
)
def test_intervals(text: str | int, count: float, unit: str) -> None:
    assert CheckpointInterval.parse(text) == CheckpointInterval(count, unit)


@pytest.mark.parametrize("text", ["", "often", "-1", "5x", "1.5steps", "1.5", "1e3", "nan"])
def test_invalid_intervals(text: str) -> None:
    with pytest.raises(UsageError, match=r"train\.checkpoint_every"):
        Recipe().replace({"train.checkpoint_every": text})


def test_the_recipe_keeps_numbers_as_numbers() -> None:
    for given, stored in ((0, 0), ("0", 0), ("3", 3), (3, 3), ("500steps", "500steps")):
        recipe = Recipe().replace({"train.checkpoint_every": given})
        assert recipe.train.checkpoint_every == stored
        assert Recipe.from_toml(recipe.to_toml()) == recipe
    assert Recipe().train.checkpoint_interval is None
    with pytest.raises(UsageError, match="checkpoint_every must be"):
        Recipe().replace({"train.checkpoint_every": 1.5})


def test_the_digest_covers_what_decides_the_result() -> None:
    recipe = Recipe()
    same_result = {"train.checkpoint_every": 2, "timeout_s": 9.0, "measure.sample_hz": 0.0, "train.log_every": 5}
    assert recipe.replace(same_result).digest == recipe.digest
    for other in ({"seed": 1}, {"optimizer.lr": 0.2}, {"workers": 2}, {"comm": "shm"}, {"train.epochs": 3}):
        assert recipe.replace(other).digest != recipe.digest


def test_rank_0_announces_the_step_of_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    (tmp_path / "next.json").write_bytes(msgspec.json.encode({"step": 1}))  # of a run that was interrupted
    first, other = (Timer(tmp_path, rank=rank, every_s=10.0) for rank in (0, 1))
    late = Timer(tmp_path, rank=2, every_s=10.0)
    due = {0: [], 1: []}
    for step in range(1, 40):
        now[0] += 0.5
        for rank, timer in enumerate((first, other)):
            is_due, missed = timer.look(step)
            assert not missed
            if is_due:
                due[rank].append(step)
    assert due[0] == due[1] == [23]
    now[0] += 1
    assert late.look(30) == (False, 23)
    assert late.look(31) == (False, 0)
