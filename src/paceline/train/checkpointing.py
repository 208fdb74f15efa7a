"""Checkpoints of a training run: when a worker writes one, what it writes, and how training continues from it."""

from __future__ import annotations

import math
import time
from pathlib import Path

import msgspec
import torch

from paceline.checkpoint import CheckpointRequest, CheckpointWriter, Damaged, Header, read_rank, step_folder
from paceline.durable_files import write_durably
from paceline.errors import RunError, UsageError
from paceline.measure.exchange import broadcast_text
from paceline.recipe import CheckpointInterval
from paceline.strategies import Strategy
from paceline.strategies.capabilities import server_checkpoints_of, servers_of
from paceline.train.trainer import Trainer
from paceline.train.trainer_state import restore_worker, worker_state

ANNOUNCED_FILE = "next.json"  # in `checkpoints/`: the step of the next checkpoint, if the interval is a time
LEAD_S = 1.0  # time between the announcement of a step and that step
LEAST_LEAD_STEPS = 3
LOOK_EVERY_S = 0.2  # between two looks at the announcement


class CheckpointPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where the checkpoints of a run are, and from which one the run continues. Plain values, to be sent to workers."""

    folder: str = ""  # `checkpoints/` in the run's folder; empty: the run is not stored
    step: int = 0  # of the checkpoint from which the run is resumed; 0: it starts anew
    attempt: int = 0  # how often the run was started before


class Checkpoints:
    """Writes the checkpoints of one worker during training, and restores the worker when a run is resumed.

    With an interval in steps or epochs, every worker decides by itself. With a time, rank 0 announces a step a little
    later than now through a small file. A worker that has passed the step already does not write, so that checkpoint is
    never whole.
    """

    def __init__(self, trainer: Trainer, place: CheckpointPlace, strategy: str) -> None:
        """Check the folder. Workers on other hosts than rank 0 need it, too. All workers call this together."""
        context, recipe = trainer.context, trainer.recipe
        self._trainer = trainer
        self._interval = recipe.train.checkpoint_interval
        text = broadcast_text(context.comm, msgspec.json.encode(place).decode())
        self.place = msgspec.json.decode(text, type=CheckpointPlace)
        self._folder = Path(self.place.folder)
        self.is_on = bool(self.place.folder) and self._interval is not None and self._is_reached_by_all()
        self._header = Header(
            step=0,
            epoch=0,
            rank=context.rank,
            workers=context.world_size,
            servers=servers_of(trainer.strategy, context.world_size),
            strategy=strategy,
            recipe=recipe.digest,
            attempt=self.place.attempt,
        )
        self.writer = CheckpointWriter(self._folder, keep=recipe.train.keep_checkpoints, warn=self._warn)
        self.run_s = 0.0  # duration of the run before it was resumed
        seconds = self._interval.count if self._interval is not None and self._interval.unit == "seconds" else 0.0
        self._timer = Timer(self._folder, rank=context.rank, every_s=seconds) if self.is_on and seconds else None

    def _is_reached_by_all(self) -> bool:
        """Return whether all workers can reach the folder of checkpoints.

        If not, and checkpoints are due after epochs, only the weights of rank 0 are saved. Other intervals are refused.
        """
        comm = self._trainer.context.comm
        is_reached = torch.tensor([float(self._folder.is_dir())])
        with comm.uncounted():
            reached = [bool(one) for one in comm.all_gather(is_reached)]
        if all(reached):
            return True
        assert self._interval is not None
        reason = f"worker {reached.index(False)} cannot reach the folder {self.place.folder!r}"
        if self._interval.unit != "epochs":
            raise RunError(
                f"{reason} for checkpoints; choose an --out that all hosts share, or leave out --checkpoint-every"
            )
        if comm.rank == 0:
            self._warn(f"{reason}, so the run cannot be resumed, and only weights are saved")
        return False

    def restore(self) -> None:
        """Continue from the checkpoint that the place names, if it names one. All workers call this together."""
        trainer, step = self._trainer, self.place.step
        if not step:
            return
        rank = trainer.context.rank
        try:
            stored = read_rank(step_folder(self._folder, step), rank)
        except Damaged as reason:
            raise RunError(f"worker {rank} cannot resume from step {step}: {reason}") from None
        restore_worker(trainer, stored.state, num_steps=step)
        self.run_s = stored.header.run_s
        servers = server_checkpoints_of(trainer.strategy)
        if servers is not None:
            servers.restore_servers(CheckpointRequest(self.place.folder, stored.header))

    def after_step(self, num_steps: int, run_s: float) -> None:
        """Write a checkpoint after `num_steps` completed steps, if one is due. `run_s` is the duration of the run."""
        if not self._is_due(num_steps):
            return
        self._trainer.observers.flush()
        per_epoch = self._trainer.plan.steps_per_epoch
        header = msgspec.structs.replace(self._header, step=num_steps, epoch=num_steps // per_epoch, run_s=run_s)
        self.writer.save(header, worker_state(self._trainer))
        servers = server_checkpoints_of(self._trainer.strategy)
        if servers is not None:
            servers.save_servers(CheckpointRequest(self.place.folder, header))

    def finish(self) -> None:
        """Wait until all workers have written their checkpoints, and delete the superseded ones."""
        if not self.is_on:
            return
        self.writer.wait()
        comm = self._trainer.context.comm
        with comm.uncounted():
            comm.barrier()
        if comm.rank == 0:
            self.writer.prune()
            (self._folder / ANNOUNCED_FILE).unlink(missing_ok=True)

    def _is_due(self, num_steps: int) -> bool:
        if not self.is_on:
            return False
        if self._timer is not None:
            is_due, missed = self._timer.look(num_steps)
            if missed:
                self._warn(f"worker {self._header.rank} missed the checkpoint of step {missed}, which is not whole")
            return is_due
        assert self._interval is not None
        return self._interval.is_due(num_steps, self._trainer.plan.steps_per_epoch)

    def _warn(self, text: str) -> None:
        self._trainer.context.emit({"kind": "warning", "text": text})


class Timer:
    """Decides on rank 0 after which step the next checkpoint is written, and tells the other workers through a file."""

    def __init__(self, folder: Path, *, rank: int, every_s: float) -> None:
        self._file, self._rank, self._every_s = folder / ANNOUNCED_FILE, rank, every_s
        self._due_at = time.monotonic() + every_s
        self._looked_at = self._before = time.monotonic()
        self._step_s = 0.0  # duration of the last steps
        self._target = 0
        if rank == 0:
            self._file.unlink(missing_ok=True)  # of a run that was interrupted

    def look(self, num_steps: int) -> tuple[bool, int]:
        """Return whether a checkpoint is due after this step, and the step of a checkpoint that was missed (or 0)."""
        now = time.monotonic()
        self._step_s = max(0.9 * self._step_s, now - self._before)
        self._before = now
        if self._rank == 0:
            is_due = self._target == num_steps
            if self._target <= num_steps and now >= self._due_at:
                self._announce(num_steps + max(LEAST_LEAD_STEPS, math.ceil(LEAD_S / max(self._step_s, 1e-6))))
                self._due_at = now + self._every_s
            return is_due, 0
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            target = self._announced()
            if target > self._target:
                self._target = target
                return target == num_steps, target if target < num_steps else 0
        return self._target == num_steps, 0

    def _announce(self, step: int) -> None:
        self._target = step
        write_durably(self._file, msgspec.json.encode({"step": step}))

    def _announced(self) -> int:
        try:
            return int(msgspec.json.decode(self._file.read_bytes())["step"])
        except FileNotFoundError:
            return 0


def check_checkpoints(strategy: Strategy, interval: CheckpointInterval | None, num_workers: int) -> None:
    """Raise UsageError if checkpoints are asked for, and the servers of a strategy cannot write their part."""
    if interval is None or not servers_of(strategy, num_workers) or server_checkpoints_of(strategy) is not None:
        return
    raise UsageError(
        f"strategy {strategy.name} has servers that write no checkpoints; leave out --checkpoint-every, or add "
        "ServerCheckpoints of paceline.strategies to its base classes"
    )
