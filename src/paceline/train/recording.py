"""A worker's run with everybody who watches it: clocks agreed on, files opened, and brought together at the end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from paceline.errors import RunError
from paceline.measure.carrying import carry_to_root, told_by_root
from paceline.measure.clock import agree_on_start, measured_again
from paceline.measure.observer import Observer, Row, RunFacts
from paceline.measure.recorder import Recorder
from paceline.train.observers import make_observers
from paceline.train.trainer import Trainer

Result = TypeVar("Result")


def observed(trainer: Trainer, work: Callable[[], Result], *, folder: str, steps_per_block: int) -> Result:
    """Do a worker's work while it is watched. `folder` is rank 0's, where the run is stored; every worker calls this.

    A worker that cannot see that folder writes to one of its own, whose files travel to rank 0 when the work is done.
    """
    context, recipe = trainer.context, trainer.recipe
    comm = context.comm
    shared = told_by_root(comm, folder)
    clock = agree_on_start(comm)
    local: Path | None = None
    recorder: Recorder | None = None
    if shared:
        if not Path(shared).is_dir():
            local = Path(tempfile.mkdtemp(prefix=f"paceline-worker-{context.rank}-"))
        path = (local or Path(shared)) / "workers" / f"{context.rank}.jsonl"
        comms = [comm] if context.servers is None else [comm, context.servers]
        try:
            recorder = Recorder(path, context.rank, clock, comms, has_spans=recipe.measure.spans)
        except OSError as error:
            raise RunError(f"worker {context.rank} cannot write its file: {error.strerror}") from error
    members: list[Observer] = [recorder] if recorder is not None else []
    trainer.observe([*members, *make_observers(recipe, context)], steps_per_block=steps_per_block)
    facts = RunFacts(
        rank=context.rank,
        world_size=context.world_size,
        total_steps=trainer.total_steps,
        steps_per_epoch=trainer.plan.steps_per_epoch,
        folder=str(local or shared),
        write=recorder.spool.write if recorder is not None else _forget,
        run_time=clock.run_time,
    )
    try:
        trainer.observers.run_begins(facts)
        result = work()
        if recorder is not None:
            recorder.clock = measured_again(clock, comm)
    finally:
        trainer.observers.run_ends()
    if shared:
        carry_to_root(comm, Path(shared), local)
    if local is not None:
        shutil.rmtree(local)
    if recorder is not None and recorder.spool.error:
        context.emit({"kind": "warning", "text": f"worker {context.rank}: {recorder.spool.error}"})
    return result


def _forget(row: Row) -> None:
    """Where nothing is stored, nobody reads it."""
    del row
