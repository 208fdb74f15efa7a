"""Results of `paceline bench`: collectives on every comm."""

from __future__ import annotations

from paceline.results.run import Summary
from paceline.results.study import Environment
from paceline.results.value import Interval, Value


class CommSpeedup(Value, frozen=True, kw_only=True):
    """The reference comm's time over this one's."""

    over: str
    value: float
    interval95: Interval | None


class CollectiveResult(Value, frozen=True, kw_only=True):
    """One operation of one size on one comm; an iteration lasts as long as its slowest worker takes."""

    op: str
    comm: str
    result: str  # whose memory the result is in: private, shared or plain
    world_size: int
    bytes: int
    dtype: str
    warmup: int
    iterations: int
    time_s: Summary
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    copy_limit_bytes_per_s: float
    percent_of_copy_limit: float
    speedup: CommSpeedup
    correct: bool | None  # None: not checked
    wrong_workers: list[int]


class Bench(Value, frozen=True, kw_only=True):
    schema: int
    started: str
    results: list[CollectiveResult]
    copy_limit_bytes_per_s: float  # at the largest size
    reference: str
    unavailable: dict[str, str]  # comms that cannot be used here, with the reasons
    environment: Environment
