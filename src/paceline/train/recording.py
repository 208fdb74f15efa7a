"""Who watches a run, by what its recipe asks for. A new observer is one more line here.

Recording of a worker's run: synchronised clocks, an open file, and all files at rank 0 in the end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.errors import RunError
from paceline.measure.clock import Clock, agree_on_start, measured_again
from paceline.measure.file_collection import carry_to_root, told_by_root
from paceline.measure.inject import Injection, Injector
from paceline.measure.live import Live
from paceline.measure.observer import Observer, Row, RunFacts
from paceline.measure.recorder import Recorder
from paceline.measure.sampler import ResourceObserver
from paceline.measure.step_reader import StepRange
from paceline.measure.torch_profiler import Profiler
from paceline.recipe import Recipe
from paceline.train.context import Context
from paceline.train.trainer import Trainer


def make_observers(recipe: Recipe, context: Context, recorder: Recorder | None = None) -> list[Observer]:
    """The observers of one worker beside its recorder, in the order in which they are told, after that one."""
    members: list[Observer] = []
    injections = [one for one in map(Injection.parse, recipe.measure.inject) if one.rank == context.rank]
    if injections:
        members.append(Injector(injections, [comm for comm in (context.comm, context.servers) if comm is not None]))
    if recipe.measure.profile:
        steps = StepRange.parse(recipe.measure.profile, "--profile")
        members.append(Profiler(steps, backend=context.comm.name, has_gpu=context.device.type == "cuda"))
    if recipe.measure.sample_hz > 0:
        members.append(ResourceObserver(hz=recipe.measure.sample_hz, device=context.device))
    members.append(_make_live(recipe, context, recorder, members))
    return members


def _make_live(recipe: Recipe, context: Context, recorder: Recorder | None, others: list[Observer]) -> Live:
    resources = next((member for member in others if isinstance(member, ResourceObserver)), None)

    def more() -> Row:
        return {"sent_bytes": context.comm.wire().sent_bytes, "resources": resources.latest if resources else None}

    def waited() -> tuple[float, float]:
        return (recorder.blocked_s, recorder.heard_s) if recorder is not None else (0.0, 0.0)

    return Live(context.emit, log_every=recipe.train.log_every, waited=waited, more=more)


@contextmanager
def recording(trainer: Trainer, *, folder: str, steps_per_block: int) -> Iterator[None]:
    """Record everything that a worker does in the block. `folder` is rank 0's; every worker enters this together.

    A worker that cannot see that folder writes to one of its own, whose files travel to rank 0 when the block ends.
    """
    context, comm = trainer.context, trainer.context.comm
    shared = told_by_root(comm, folder)
    is_apart = bool(shared) and context.rank != 0 and not Path(shared).is_dir()
    own = tempfile.mkdtemp(prefix=f"paceline-worker-{context.rank}-") if is_apart else shared
    clock = agree_on_start(comm)
    recorder = _make_recorder(trainer, Path(own), clock) if own else None
    members: list[Observer] = [recorder] if recorder is not None else []
    trainer.observe([*members, *make_observers(trainer.recipe, context, recorder)], steps_per_block=steps_per_block)
    facts = RunFacts(
        rank=context.rank,
        world_size=context.world_size,
        total_steps=trainer.total_steps,
        steps_per_epoch=trainer.plan.steps_per_epoch,
        folder=own,
        write=recorder.spool.write if recorder is not None else _forget,
        run_time=clock.run_time,
    )
    try:
        trainer.observers.run_begins(facts)
        yield
        if recorder is not None:
            recorder.clock = measured_again(clock, comm)
    finally:
        trainer.observers.run_ends()
    if shared:
        carry_to_root(comm, Path(shared), Path(own) if is_apart else None)
    if is_apart:
        shutil.rmtree(own)
    if recorder is not None and recorder.spool.error:
        context.emit({"kind": "warning", "text": f"worker {context.rank}: {recorder.spool.error}"})


def _make_recorder(trainer: Trainer, folder: Path, clock: Clock) -> Recorder:
    context = trainer.context
    comms = [context.comm] if context.servers is None else [context.comm, context.servers]
    path = folder / "workers" / f"{context.rank}.jsonl"
    try:
        return Recorder(path, context.rank, clock, comms, has_spans=trainer.recipe.measure.spans)
    except OSError as error:
        raise RunError(f"worker {context.rank} cannot write its file: {error.strerror}") from error


def _forget(row: Row) -> None:
    """Where nothing is stored, nobody reads it."""
    del row
