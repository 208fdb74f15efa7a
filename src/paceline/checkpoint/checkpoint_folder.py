"""The folder `checkpoints/` of a run: one folder per checkpoint, such as `step-00000500`, with the files of every rank.

Ranks write their files without waiting for each other. A checkpoint is whole if the files of all its ranks exist, agree
on step, world, recipe and attempt, and match their checksums.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoint.rank_files import Damaged, Header, header_file, read_header, verify_rank

_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Found:
    """The newest whole checkpoint of a folder, and a sentence for every newer one that was skipped."""

    folder: Path | None = None
    header: Header | None = None
    skipped: tuple[str, ...] = ()


def step_folder(checkpoints: Path, step: int) -> Path:
    """Return the folder of the checkpoint that is written after `step` completed steps."""
    return checkpoints / f"step-{step:08d}"


def step_folders(checkpoints: Path) -> list[Path]:
    """Return the folders of all checkpoints, whole or not, the newest first."""
    if not checkpoints.is_dir():
        return []
    found = [(int(match[1]), path) for path in checkpoints.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True) if path.is_dir()]


def verify(folder: Path) -> Header:
    """Check all files of a checkpoint, and return the header of rank 0. Raises Damaged if it is not whole."""
    first = verify_rank(folder, 0)
    for rank in range(1, first.num_ranks):
        _check_same(folder, first, verify_rank(folder, rank))
    return first


def is_complete(folder: Path) -> bool:
    """Return whether all ranks have written their files. Tensors are not compared with their checksums."""
    try:
        first = read_header(folder, 0)
        for rank in range(1, first.num_ranks):
            _check_same(folder, first, read_header(folder, rank))
    except Damaged:
        return False
    return True


def find_newest_whole(checkpoints: Path, *, recipe: str = "") -> Found:
    """Return the newest whole checkpoint in a folder. Unless `recipe` is empty, it must have this recipe digest."""
    skipped: list[str] = []
    for folder in step_folders(checkpoints):
        try:
            header = verify(folder)
            if recipe and header.recipe != recipe:
                raise Damaged("it was written with other settings")
        except Damaged as reason:
            skipped.append(f"checkpoint {folder.name} is skipped: {reason}")
            continue
        return Found(folder, header, tuple(skipped))
    return Found(skipped=tuple(skipped))


def next_attempt(checkpoints: Path) -> int:
    """Return a number of attempts that no file in the folder has."""
    attempts = [0]
    for folder in step_folders(checkpoints):
        for file in folder.glob("rank-*.json"):
            rank = file.stem.removeprefix("rank-")
            try:
                attempts.append(read_header(folder, int(rank)).attempt)
            except (Damaged, ValueError):
                continue
    return max(attempts) + 1


def prune(checkpoints: Path, keep: int) -> None:
    """Delete the checkpoints that are older than the last `keep` complete ones."""
    folders = step_folders(checkpoints)
    complete = [folder for folder in folders if is_complete(folder)]
    if len(complete) < keep:
        return
    oldest = complete[keep - 1]
    for folder in folders[folders.index(oldest) + 1 :]:
        # Without the files of rank 0, a half-deleted checkpoint cannot pass for a whole one.
        header_file(folder, 0).unlink(missing_ok=True)
        shutil.rmtree(folder)


def _check_same(folder: Path, first: Header, other: Header) -> None:
    names = [name for name in Header.__struct_fields__ if name not in ("rank", "run_s")]
    odd = next((name for name in names if getattr(other, name) != getattr(first, name)), None)
    if odd is not None:
        raise Damaged(
            f"{header_file(folder, other.rank).name} has {odd} {getattr(other, odd)!r}, and "
            f"{header_file(folder, 0).name} has {getattr(first, odd)!r}"
        )
