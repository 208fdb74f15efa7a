"""torch's profiler on chosen steps: one Chrome trace per worker, as Holistic Trace Analysis reads them."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from paceline.errors import RunError
from paceline.measure.observer import Observer, Row, RunFacts
from paceline.measure.profiled import METADATA, rank_file
from paceline.measure.steps import StepRange

PREFIX = "paceline."  # of phases among the names in a trace


class Profiler(Observer):
    """Profiles some steps of one worker. The loop's phases are named in the trace, and only while it is taken.

    The profiler starts between two steps and stops between two steps, so no step pays for that; the file is written
    when the run ends.
    """

    def __init__(self, steps: StepRange, *, backend: str, has_gpu: bool) -> None:
        self.steps = steps
        self._backend = backend
        self._activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if has_gpu else [])]
        self._profile: profile | None = None
        self._is_running = False
        self._ranges: list[record_function] = []

    def run_begins(self, facts: RunFacts) -> None:
        self._facts = facts
        # It says on the terminal of every worker that it starts and stops; the levels below that are errors.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        warm_up = self._new_profile()  # the first of a process takes a second
        warm_up.start()
        warm_up.stop()
        if self.steps.first == 0:
            self._start()

    def step_begins(self, step: int) -> None:
        if self._is_running:
            self._open(f"ProfilerStep#{step}")  # as torch names steps, and as readers of traces look for them

    def phase_begins(self, phase: str) -> None:
        if self._is_running:
            self._open(f"{PREFIX}{phase}")

    def phase_ends(self, phase: str, begin: float, end: float) -> None:  # noqa: ARG002
        if self._is_running:
            self._close()

    def step_ends(self, step: int, facts: Row) -> None:  # noqa: ARG002
        if self._is_running:
            self._close()
            if step + 1 >= self.steps.end:
                self._stop()
        elif self._profile is None and step + 1 in self.steps:
            self._start()

    def run_ends(self) -> None:
        """Write the trace; a run that ended early leaves what there is."""
        if self._is_running:
            self._stop()
        if self._profile is None or not self._facts.folder:
            return
        target = rank_file(Path(self._facts.folder), self._facts.rank)
        try:
            target.parent.mkdir(exist_ok=True)
            self._profile.export_chrome_trace(str(target))
        except OSError as error:
            raise RunError(f"{target.name} cannot be written: {error.strerror}") from error

    def _new_profile(self) -> profile:
        # Buckets are filled and summed by threads beside the loop's own.
        config = _ExperimentalConfig(profile_all_threads=True)
        return profile(activities=self._activities, experimental_config=config)

    def _start(self) -> None:
        self._profile = self._new_profile()
        self._profile.start()
        self._is_running = True
        facts = self._facts
        info = {"backend": self._backend, "rank": facts.rank, "world_size": facts.world_size}
        self._profile.add_metadata_json("distributedInfo", json.dumps(info))
        # Events have the host's time of day; with this a reader can put them on the run's clock.
        start_ns = _start_of_run_ns(facts.run_time)
        own = {"run_start_ns": start_ns, "first_step": self.steps.first, "end_step": self.steps.end}
        self._profile.add_metadata_json(METADATA, json.dumps(own))

    def _stop(self) -> None:
        assert self._profile is not None
        while self._ranges:
            self._close()
        self._profile.stop()
        self._is_running = False

    def _open(self, name: str) -> None:
        self._ranges.append(record_function(name))
        self._ranges[-1].__enter__()

    def _close(self) -> None:
        self._ranges.pop().__exit__(None, None, None)


def _start_of_run_ns(run_time: Callable[[float], float]) -> int:
    """The host's time of day when the run's clock was 0. Of several looks at both clocks the quickest is the truest."""
    best_s, found = math.inf, 0
    for _ in range(10):
        before = time.perf_counter()
        now_ns = time.time_ns()
        after = time.perf_counter()
        if after - before < best_s:
            best_s, found = after - before, now_ns - round(run_time((before + after) / 2) * 1e9)
    return found
