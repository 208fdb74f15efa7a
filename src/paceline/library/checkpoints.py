"""Checkpoints of the user's own loop: `paceline.save` and `paceline.load`, called by every worker."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.checkpoint import (
    Damaged,
    Header,
    Tree,
    find_newest_whole,
    is_complete,
    prune,
    read_rank,
    rng_state,
    set_rng_state,
    step_folder,
    step_folders,
    write_rank,
)
from paceline.checkpoint.state_tree import restore_, split
from paceline.errors import RunError, UsageError
from paceline.library.attach import Attachment
from paceline.library.session import Session, current
from paceline.strategies import ShardedOptimizer

KEEP = 2  # the new checkpoint and the one before


def save(path: str | Path, model: nn.Module, optimizer: Optimizer, **extra: Any) -> None:
    """Write a checkpoint of this worker to the folder `path`. Every worker calls it after the same optimiser step.

    The checkpoint holds the model, the optimiser, the state of the strategy, the position of loaders from `shard`, the
    random number generators and the values of `extra`: numbers, text, tensors, and lists and dicts of them, such as the
    `state_dict()` of a schedule. `path` is a folder that all workers share. If the program ends while it writes, the
    checkpoint before is still there.
    """
    session = current("save")
    attachment = _attachment_of(session, model, optimizer, "save")
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        number = _agree(session, _newest_number(folder) + 1)
        header = Header(
            step=number,
            epoch=0,
            rank=session.rank,
            workers=session.world_size,
            servers=0,
            strategy=attachment.strategy.name if attachment is not None else "",
            recipe="",
            attempt=0,
        )
        target = step_folder(folder, number)
        target.mkdir(exist_ok=True)
        write_rank(target, header, *split(_state_of(session, attachment, model, optimizer, extra)))
    except OSError as error:
        raise RunError(f"the checkpoint cannot be written to {str(path)!r}: {error.strerror or error}") from error
    session.comm.barrier()
    is_whole = _agree(session, int(session.rank == 0 and is_complete(target)))
    if not is_whole:
        raise RunError(f"{str(path)!r} is not one folder for all workers; pass the path of a shared folder to save()")
    if session.rank == 0:
        prune(folder, KEEP)


def load(path: str | Path, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Restore the newest whole checkpoint in the folder `path`, and return the values passed to `save` as `extra`.

    Every worker calls it after `parallel` and `shard`, before its first step. Without a whole checkpoint nothing
    changes, and the result is an empty dict.
    """
    session = current("load")
    attachment = _attachment_of(session, model, optimizer, "load")
    number = 0
    if session.rank == 0:
        found = find_newest_whole(Path(path))
        for sentence in found.skipped:
            warnings.warn(sentence, stacklevel=2)
        number = found.header.step if found.header is not None else 0
    number = _agree(session, number)
    if not number:
        return {}
    try:
        stored = read_rank(step_folder(Path(path), number), session.rank)
    except Damaged as reason:
        raise _mismatch(path, session, reason) from None
    if stored.header.workers != session.world_size:
        raise _mismatch(path, session, f"it was written by {stored.header.workers} workers")
    _restore(session, attachment, model, optimizer, stored.state)
    session.comm.barrier()  # workers may share the memory of parameters
    extra: dict[str, Any] = stored.state["extra"]
    return extra


def _mismatch(path: str | Path, session: Session, reason: object) -> UsageError:
    return UsageError(
        f"worker {session.rank} of {session.world_size} cannot load the checkpoint in {str(path)!r}: {reason}; start "
        "as many workers as when it was written, with access to the same folder"
    )


def _state_of(
    session: Session, attachment: Attachment | None, model: nn.Module, optimizer: Optimizer, extra: dict[str, Any]
) -> Tree:
    stepping = _optimizer_of(attachment, optimizer).state_dict()
    if attachment is not None and isinstance(attachment.strategy, ShardedOptimizer):
        stepping = {**stepping, "state": {}}  # the strategy's own state contains it
    return {
        "model": _tensors_of(attachment, model),
        "optimizer": stepping,
        "strategy": attachment.strategy.state_dict() if attachment is not None else {},
        "num_steps": attachment.num_steps if attachment is not None else 0,
        "random": rng_state(),
        "loaders": [loader.position for loader in session.loaders],
        "extra": extra,
    }


def _restore(
    session: Session, attachment: Attachment | None, model: nn.Module, optimizer: Optimizer, state: Tree
) -> None:
    own = _tensors_of(attachment, model)
    odd = sorted(own.keys() ^ state["model"].keys())
    if odd:
        raise UsageError(f"the checkpoint is of another model: {odd[0]!r} is in only one of the two")
    if len(session.loaders) != len(state["loaders"]):
        raise UsageError(
            f"the checkpoint has the positions of {len(state['loaders'])} loaders, and this session has "
            f"{len(session.loaders)}; call shard() for the same loaders before load()"
        )
    try:
        for name, tensor in state["model"].items():
            restore_(own[name], tensor)
        _optimizer_of(attachment, optimizer).load_state_dict(state["optimizer"])
    except (ValueError, KeyError) as error:
        raise UsageError(f"the checkpoint is of another model or optimizer: {error}") from error
    if attachment is not None:
        attachment.strategy.load_state_dict(state["strategy"])
        attachment.num_steps = state["num_steps"]
    for loader, position in zip(session.loaders, state["loaders"], strict=True):
        loader.position = position
    set_rng_state(state["random"])


def _attachment_of(session: Session, model: nn.Module, optimizer: Optimizer, function: str) -> Attachment | None:
    """Return the attachment of a model, or None with a single worker. Raises UsageError if there is none."""
    if not isinstance(optimizer, Optimizer):
        raise UsageError(f"the optimizer is a {type(optimizer).__name__}; pass a torch.optim.Optimizer to {function}()")
    if session.world_size == 1:
        return None
    for attachment in session.attachments:
        if model is attachment.worker.model or model is attachment.worker.replica:
            return attachment
    raise UsageError(f"{function}() got a model that parallel() does not know; call parallel() for it first")


def _optimizer_of(attachment: Attachment | None, optimizer: Optimizer) -> Optimizer:
    return optimizer if attachment is None else attachment.optimizer


def _tensors_of(attachment: Attachment | None, model: nn.Module) -> dict[str, torch.Tensor]:
    module = model if attachment is None else attachment.worker.model
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _newest_number(folder: Path) -> int:
    newest = step_folders(folder)
    return int(newest[0].name.removeprefix("step-")) if newest else 0


def _agree(session: Session, number: int) -> int:
    """Return rank 0's number on every worker."""
    if session.world_size == 1:
        return number
    shared = torch.tensor([number], dtype=torch.int64)
    with session.comm.uncounted():
        session.comm.broadcast(shared, root=0)
    return int(shared)
