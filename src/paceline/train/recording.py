"""Recording of a worker's training run: attaches observers to the training loop, and collects all files on rank 0.

Observers receive callbacks in every step: they record times, sample resources, profile, inject delays or report
progress. `make_observers` creates them from the recipe; add new observers there.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import RunError
from paceline.measure.exchange import Clock, broadcast_text, measure_drift, send_files_to_root, synchronise_clocks
from paceline.measure.inject import Injection, Injector
from paceline.measure.observer import Observer, RunFacts
from paceline.measure.recorder import ProgressObserver, Recorder
from paceline.measure.sampler import ResourceObserver
from paceline.measure.spool import keep_earlier_lines
from paceline.measure.steps import StepRange
from paceline.measure.torch_profiler import Profiler
from paceline.recipe import Recipe
from paceline.results import Json
from paceline.train.context import Context
from paceline.train.trainer import Trainer


def make_observers(recipe: Recipe, context: Context, recorder: Recorder | None = None) -> list[Observer]:
    """Return all observers of one worker except the recorder, which writes the worker's steps to a file.

    The observers are called after `recorder`, in the order of the list. `recorder` is None if no file is written.
    """
    observers: list[Observer] = []
    injections = [one for one in map(Injection.parse, recipe.measure.inject) if one.rank == context.rank]
    if injections:
        observers.append(Injector(injections, [comm for comm in (context.comm, context.servers) if comm is not None]))
    if recipe.measure.profile:
        steps = StepRange.parse(recipe.measure.profile, "--profile")
        observers.append(Profiler(steps, backend=context.comm.name, has_gpu=context.device.type == "cuda"))
    resources = (
        ResourceObserver(hz=recipe.measure.sample_hz, device=context.device) if recipe.measure.sample_hz else None
    )
    if resources is not None:
        observers.append(resources)

    def more() -> Json:
        return {"sent_bytes": context.comm.wire().sent_bytes, "resources": resources.latest if resources else None}

    def blocked_time() -> tuple[float, float]:
        return (recorder.blocked_s, recorder.recorded_s) if recorder is not None else (0.0, 0.0)

    observers.append(
        ProgressObserver(context.emit, log_every=recipe.train.log_every, blocked_time=blocked_time, more=more)
    )
    return observers


@dataclass(frozen=True)
class Earlier:
    """The part of a resumed run that came before: its completed steps, and its duration in seconds."""

    num_steps: int = 0
    run_s: float = 0.0


@contextmanager
def recording(trainer: Trainer, *, folder: str, steps_per_block: int, earlier: Earlier) -> Iterator[Clock]:
    """Record the training that runs in the `with` block, and yield the run's clock. All workers enter it together.

    In a resumed run, the records of the steps in `earlier` stay, and the clock continues from their end.

    `folder` is the folder of the run on rank 0; if it is empty, no files are written. A worker on a host without this
    folder writes to a temporary folder, and sends its files to rank 0 when the `with` block ends. If `steps_per_block`
    is not 0, steps form blocks of this size, and only some blocks are recorded (see `is_measured` in
    measure/observer.py), to measure the overhead of recording.
    """
    context, comm = trainer.context, trainer.context.comm
    shared = broadcast_text(comm, folder)
    is_remote = bool(shared) and context.rank != 0 and not Path(shared).is_dir()
    own = tempfile.mkdtemp(prefix=f"paceline-worker-{context.rank}-") if is_remote else shared
    clock = synchronise_clocks(comm, run_s=earlier.run_s)
    recorder = _make_recorder(trainer, Path(own), clock, earlier) if own else None
    observers: list[Observer] = [recorder] if recorder is not None else []
    trainer.observe([*observers, *make_observers(trainer.recipe, context, recorder)], steps_per_block=steps_per_block)
    facts = RunFacts(
        rank=context.rank,
        world_size=context.world_size,
        total_steps=trainer.total_steps,
        steps_per_epoch=trainer.plan.steps_per_epoch,
        folder=own,
        write=recorder.spool.write if recorder is not None else lambda _: None,
        run_time=clock.run_time,
    )
    try:
        trainer.observers.run_begins(facts)
        yield clock
        if recorder is not None:
            recorder.clock = measure_drift(clock, comm)
    finally:
        trainer.observers.run_ends()
    if shared:
        send_files_to_root(comm, Path(shared), Path(own) if is_remote else None)
    if is_remote:
        shutil.rmtree(own)
    if recorder is not None and recorder.spool.error:
        context.emit({"kind": "warning", "text": f"worker {context.rank}: {recorder.spool.error}"})


def _make_recorder(trainer: Trainer, folder: Path, clock: Clock, earlier: Earlier) -> Recorder:
    context = trainer.context
    comms = [context.comm] if context.servers is None else [context.comm, context.servers]
    path = folder / "workers" / f"{context.rank}.jsonl"
    try:
        is_continued = earlier.num_steps > 0 and keep_earlier_lines(path, earlier.num_steps, earlier.run_s)
        return Recorder(
            path, context.rank, clock, comms, has_spans=trainer.recipe.measure.spans, is_continued=is_continued
        )
    except OSError as error:
        raise RunError(f"worker {context.rank} cannot write its file: {error.strerror}") from error
