"""The page of `paceline bench`: time and bandwidth of communication operations over message size.

The page compares comms. A comm is the transport between workers, such as gloo or shared memory.
"""

from __future__ import annotations

from paceline.present import conditions
from paceline.present.charts.bench import COPY, colours_of, key_of, series_of, short_name
from paceline.present.charts.registry import make_section
from paceline.present.numbers import DASH, binary_bytes, counted, gigabytes_per_s, short_duration
from paceline.present.page_parts import Column, Facts, Finding, KeyEntry, Page, Table, Visibility
from paceline.present.styles import Style
from paceline.results.commands import Bench, CollectiveResult

HTML = Visibility.HTML
TIME_HELP = "time of the slowest worker in each round"
BUSBW_NOTE = (
    "busbw is algbw times 2(n-1)/n for all_reduce, ring and gather-scatter, times (n-1)/n for reduce_scatter and "
    "all_gather (bytes of the whole tensor), and times 1 for broadcast. Copy is the bandwidth of a memory copy by each "
    "worker, measured in the same rounds on all workers at once."
)


def bench_page(outcome: Bench) -> Page:
    first = outcome.results[0]
    series = series_of(outcome.results)
    colours = colours_of(series)
    names = [*series.values(), COPY]
    description = (
        f"{counted(first.world_size, 'worker')}, {first.dtype}, {counted(first.iterations, 'iteration')} after "
        f"{first.warmup} of warm-up, all comms in turn"
    )
    return Page(
        kind="Paceline bench",
        title="Bandwidth of comms",
        description=description,
        started=outcome.started,
        findings=[
            Finding(f"Comm {comm} could not be used here: {reason}.", "Unavailable", "caution", HTML)
            for comm, reason in outcome.unavailable.items()
        ]
        + [Finding(BUSBW_NOTE, "Bandwidth", "detail")],
        tables=[bandwidth_table(outcome)],
        tables_title="Figures",
        facts=[Facts(conditions.machine_facts(outcome.environment), "Machine", "machine", HTML)],
        key=[KeyEntry(name, Style(colour)) for name, colour in zip(names, colours, strict=True)],
        make_sections=lambda: [make_section("bench", "Bandwidth over size", outcome)],
    )


def bandwidth_table(outcome: Bench) -> Table[CollectiveResult]:
    """Return a table with a row for each operation, size, comm (backend), and type of memory that holds the result."""
    reference = short_name(outcome.reference)
    columns: list[Column[CollectiveResult]] = [
        Column(title="Operation", short="op", text=lambda row: row.op, is_number=False),
        Column(title="Comm", short="comm", text=lambda row: short_name(row.comm), is_number=False),
        Column(title="Result", short="result", text=lambda row: row.result, is_number=False),
        Column(title="Bytes", short="bytes", text=lambda row: binary_bytes(row.bytes)),
        Column(title="p50", text=lambda row: short_duration(row.time_s.p50), help=TIME_HELP),
        Column(title="p90", text=lambda row: short_duration(row.time_s.p90 or 0.0), importance=10, help=TIME_HELP),
        Column(title="p95", text=lambda row: short_duration(row.time_s.p95), importance=40, help=TIME_HELP),
        Column(
            title="algbw, GB/s",
            short="algbw",
            text=lambda row: gigabytes_per_s(row.algbw_bytes_per_s),
            importance=30,
            help="bytes over p50, in GB/s",
        ),
        Column(
            title="busbw, GB/s",
            short="busbw",
            text=lambda row: gigabytes_per_s(row.busbw_bytes_per_s),
            help="as nccl-tests counts it, in GB/s",
        ),
        Column(title="Copy, GB/s", text=lambda row: gigabytes_per_s(row.copy_limit_bytes_per_s), places=HTML),
        Column(
            title="% of copy",
            short="% copy",
            text=lambda row: f"{row.percent_of_copy_limit:.1f}",
            help="busbw over the bandwidth of a memory copy by each worker, all workers at once "
            f"({gigabytes_per_s(outcome.copy_limit_bytes_per_s)} GB/s at the largest size)",
        ),
    ]
    # True if an operation was measured on several comms, or with its result in several types of memory.
    if len(outcome.results) > len({(row.op, row.bytes) for row in outcome.results}):
        columns.append(
            Column(
                title=f"Times {reference}",
                short=f"x {reference}",
                text=lambda row: _speedup(row, outcome.reference),
                help=f"time of {reference} over that of this row, median of all rounds; ~: no difference at 95 %",
            )
        )
    columns.append(Column(title="Check", short="check", text=_check, is_number=False, importance=20))
    series = list(series_of(outcome.results))
    return Table(
        id="figures",
        columns=columns,
        rows=outcome.results,
        keys=[series.index(key_of(row)) for row in outcome.results],
    )


def _speedup(row: CollectiveResult, reference: str) -> str:
    if row.comm == reference and row.result == "private":
        return f"{DASH}  "
    interval = row.speedup.interval95
    is_tie = interval is not None and interval[0] <= 1 <= interval[1]
    return f"{row.speedup.value:.2f} {'~' if is_tie else ' '}"


def _check(row: CollectiveResult) -> str:
    return DASH if row.correct is None else "ok" if row.correct else "wrong"
