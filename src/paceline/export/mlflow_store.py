"""MLflow export to a file store: recipes become parameters, and the workers' measurements become metrics."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from paceline.errors import RunError
from paceline.export.tables import ExportSource, scalars
from paceline.worker_files import worker_files, worker_lines

EXPERIMENT = "paceline"
BATCH = 1000  # metrics per call; more exceed MLflow's limit
LONGEST = 6000  # characters of a parameter's value; more exceed MLflow's limit
# Newer versions of MLflow refuse to write to a file store without the first setting. The second disables telemetry.
SETTINGS = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}


def write(sources: Sequence[ExportSource], folder: Path) -> None:
    with _settings():
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=folder.resolve().as_uri())
        try:
            found = client.get_experiment_by_name(EXPERIMENT)
            experiment = found.experiment_id if found else client.create_experiment(EXPERIMENT)
            for source in sources:
                _write_run(client, experiment, source)
        except MlflowException as error:
            raise RunError(f"MLflow export failed: {error}") from error


def _write_run(client: Any, experiment: str, source: ExportSource) -> None:
    from mlflow.entities import Param, RunTag

    started = int(1000 * source.started)
    run_id = client.create_run(experiment, start_time=started, run_name=source.name).info.run_id
    last = started
    status = "FAILED"  # replaced once everything is written
    try:
        params = [Param(key, str(value)[:LONGEST]) for key, value in _flat(source.recipe)]
        client.log_batch(run_id, params=params, tags=[RunTag("strategy", source.label)])
        metrics = _metrics(source, started)
        while batch := list(islice(metrics, BATCH)):
            client.log_batch(run_id, metrics=batch)
            last = max(last, *(metric.timestamp for metric in batch))
        status = "FINISHED"
    finally:
        client.set_terminated(run_id, status=status, end_time=last)


def _metrics(source: ExportSource, started: int) -> Iterator[Any]:
    from mlflow.entities import Metric

    for rank, file in worker_files(source.folder).items():
        for name, value, step, time_s in scalars(worker_lines(file)):
            yield Metric(f"rank-{rank}/{name}", value, started + int(1000 * time_s), step)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@contextmanager
def _settings() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in SETTINGS}
    os.environ.update(SETTINGS)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
