"""TensorBoard export: one event file per worker, with scalars over steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from paceline.export.tables import ExportSource, scalars
from paceline.worker_files import worker_files, worker_lines


def write(sources: Sequence[ExportSource], folder: Path) -> None:
    for source in sources:
        for rank, file in worker_files(source.folder).items():
            with SummaryWriter(folder / source.name / f"rank-{rank}", max_queue=1000) as writer:
                for name, value, step, time_s in scalars(worker_lines(file)):
                    writer.add_scalar(name, value, step, walltime=source.started + time_s)
