"""The page of a scaling study: every point against one worker, and where a further worker stops paying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from paceline.present import comparing, conditions, measured
from paceline.present.comparison import cautions, condition_facts, frame, notes, study_of
from paceline.present.material import Material
from paceline.present.model import Column, Facts, Finding, KeyEntry, Page, Place, Presenter, Section, Table, Tile
from paceline.present.numbers import (
    DASH,
    TIMES,
    bounded,
    counted,
    duration,
    factor,
    milliseconds,
    number,
    percent,
    plus_minus,
    share,
    short_milliseconds,
    time_interval,
    times,
    times_interval,
    whole,
)
from paceline.results import Failure, Gain, Row, Scaling
from paceline.results.study import Paying, Scale
from paceline.study.entries import ONE_WORKER
from paceline.study.scaling import SAME, WEAK, best_of, lines_of, modes_of, paying, reference_of

TITLES = {"strong": "Strong scaling", "weak": "Weak scaling"}
TERMINAL, MARKDOWN, NOTEBOOK, HTML = Place.TERMINAL, Place.MARKDOWN, Place.NOTEBOOK, Place.HTML


class ScalePresenter(Presenter):
    name: ClassVar[str] = "scale"

    def page(self, material: Material) -> Page:
        study = study_of(material, Scale)
        rows = study.results
        labels, looks = _key(rows)
        return Page(
            **{**frame(material), "kind": "Paceline scaling study"},
            findings=[*notes(material), *findings(study, material)],
            tiles=tiles(rows),
            tables=[_table(study, mode, labels) for mode in modes_of(rows)],
            tables_title="All points",
            facts=[*_facts(study, material), *condition_facts(material)[1:]],
            key=looks,
            make_sections=lambda: _sections(rows),
        )

    def best(self, rows: Sequence[Row]) -> Row:
        return best_of(rows)


def _key(rows: Sequence[Row]) -> tuple[list[str], list[KeyEntry]]:
    from paceline.present.charts.scaling import IDEAL, labels_of, looks_of

    labels = labels_of(rows)
    return labels, [KeyEntry(name, look) for name, look in zip([*labels, IDEAL], looks_of(rows), strict=True)]


def _sections(rows: Sequence[Row]) -> list[Section]:
    from paceline.present.charts.registry import make_section

    return [make_section("scale", "Over workers", rows)]


def _facts(study: Scale, material: Material) -> list[Facts]:
    """The conditions, with the batches that the modes keep in place of one batch."""
    recipe = material.recipe
    if recipe is None:
        return []
    batches = [(TITLES[mode], batch_words(study.modes, mode)) for mode in study.modes]
    kept = [fact for fact in conditions.training_facts(recipe, study.results) if fact[0] != "Global batch"]
    special = conditions.special_facts([recipe])
    return [Facts([*kept[:3], *batches, *kept[3:], *special], "Conditions", "conditions", HTML)]


def batch_words(modes: Mapping[str, Mapping[str, int]], mode: str) -> str:
    """What a mode keeps while workers are added."""
    kept = modes[mode]
    if mode == WEAK:
        return f"every worker keeps its batch of {kept['worker_batch_size']}"
    return f"the global batch of {kept['batch_size']} is kept"


def ideal_name(mode: str) -> str:
    """The time of a step if workers cost nothing."""
    return "t_1" if mode == WEAK else "t_1/N"


def refused_words(one: Failure) -> str:
    return f"{_point_words(one)} cannot run: {one.reason}."


def failed_words(one: Failure) -> str:
    return f"{_point_words(one)} failed in repeat {one.repeat}: {one.error}."


def findings(study: Scale, material: Material) -> list[Finding]:
    rows, modes = study.results, modes_of(study.results)
    found = [headline(rows)]
    for mode in modes:
        before = f"{TITLES[mode]}: " if len(modes) > 1 else ""
        found += [Finding(f"{before}{text}", TITLES[mode]) for text in paying_words(rows, mode)]
        beyond = _beyond_words(rows, mode)
        if beyond:
            text = f"Time of a step beyond perfect scaling ({ideal_name(mode)}): {'; '.join(beyond)}."
            found.append(Finding(f"{before}{text}", f"Beyond {ideal_name(mode)}", "detail"))
        found += _with_most_workers(rows, mode, is_only=len(modes) == 1)
    if study.repeats == 1 and any(row.workers > 1 for row in rows):
        text = "One repeat cannot tell a gain from noise; --repeats 3 gives intervals."
        found.append(Finding(text, "Repeats", "caution"))
    found += [Finding(refused_words(one), "Refused", "caution") for one in study.refused]
    found += [Finding(failed_words(one), "Failed", "problem") for one in study.failed]
    found += [*measured.overhead(material.rows), *measured.stragglers(material.rows, material.recipe)]
    return [*found, *cautions(material)]


def headline(rows: Sequence[Row]) -> Finding:
    """The strategy that scales best, and how far, in every mode."""
    parts = []
    for mode in modes_of(rows):
        several = [row for line in lines_of(rows, mode).values() for row in line]
        several = [row for row in several if row.guarantee != "NONE"] or several
        best = best_of(several) if several else None
        speedup = None if best is None else _scaling(best).speedup
        if best is None or speedup is None:
            continue
        if speedup > 1:
            parts.append(
                f"{TITLES[mode]}: {best.label} scales best, {times(speedup)} times one worker on "
                f"{counted(best.workers, 'worker')} (efficiency {share(speedup / best.workers)})."
            )
        else:
            parts.append(f"{TITLES[mode]}: no strategy is faster than one worker.")
    if not parts:
        is_alone = all(row.label == ONE_WORKER for row in rows)
        parts = ["Only one worker was measured." if is_alone else "No speed-up can be given: one worker has no result."]
    return Finding(" ".join(parts), kind="headline")


def paying_words(rows: Sequence[Row], mode: str) -> list[str]:
    """Where each strategy stops paying; workers that never synchronise are a limit and left out."""
    found = [one for one in paying(rows) if one.mode == mode and one.guarantee != "NONE"]
    return [_paying(one) for one in found if one.best_workers is not None]


def _paying(one: Paying) -> str:
    if one.pays_until is None:
        return _in_one_repeat(one)
    if one.pays_until == 1:
        return _unpaid(one)
    if one.pays_until == one.workers[-1] and one.last_gain is not None:
        return f"{one.label} pays up to {one.pays_until} workers, the most tried: they give {_gain(one.last_gain)}."
    gain = one.next_gain
    if gain is None:
        return f"{one.label} pays up to {one.pays_until} workers."
    noise = ", which is noise" if gain.verdict == SAME else ""
    return f"{one.label} stops paying after {one.pays_until} workers: {gain.workers} give {_gain(gain)}{noise}."


def _unpaid(one: Paying) -> str:
    """Slower than one worker, or not distinguishable from it."""
    best, bounds = one.best_speedup or 0.0, one.best_speedup_interval95
    interval = f" (95 % interval {times_interval(bounds)})" if bounds else ""
    if best > 1:
        return (
            f"{one.label}: no gain over one worker at 95 % confidence; at best {times(best)} times its throughput, on "
            f"{one.best_workers}{interval}."
        )
    return f"{one.label} does not pay: at best {times(best)} times the throughput of one worker{interval}."


def _in_one_repeat(one: Paying) -> str:
    best = one.best_workers or 1
    if best == 1:
        return f"{one.label} was not faster than one worker in this one repeat (at best {times(one.best_speedup)})."
    most = "the most tried" if best == one.workers[-1] else f"of {', '.join(map(str, one.workers))}"
    return (
        f"{one.label} had the highest throughput on {counted(best, 'worker')} ({most}) in this one repeat: "
        f"{factor(one.best_speedup)}."
    )


def _gain(gain: Gain) -> str:
    interval = f" (95 % interval {times_interval(gain.interval95)})" if gain.interval95 else " (one repeat)"
    return f"{times(gain.ratio)} times the throughput of {gain.over_workers}{interval}"


def _beyond_words(rows: Sequence[Row], mode: str) -> list[str]:
    """What the largest point of each strategy takes beyond perfect scaling, beside what was measured."""
    found = []
    for label, line in lines_of(rows, mode).items():
        scaling = _scaling(line[-1])
        beyond, communication, waiting = scaling.beyond_ideal_s, scaling.communication_s, scaling.waiting_s
        if beyond is None or communication is None or waiting is None:
            continue
        rest, hidden = beyond - communication - waiting, milliseconds(scaling.overlap_s or 0.0)
        parts = [f"communication {milliseconds(communication)}", f"waiting {milliseconds(waiting)}"]
        parts.append(f"the rest {milliseconds(rest)}")
        under = f"; {hidden} ms of communication were hidden" if hidden != milliseconds(0.0) else ""
        found.append(f"{label} on {line[-1].workers} {milliseconds(beyond)} ms ({', '.join(parts)}{under})")
    return found


def _with_most_workers(rows: Sequence[Row], mode: str, *, is_only: bool) -> list[Finding]:
    """Strategies against each other on the largest number of workers, in the words of a comparison."""
    several = [row for line in lines_of(rows, mode).values() for row in line]
    most = max((row.workers for row in several), default=0)
    largest = [row for row in several if row.workers == most]
    if not largest:
        return []
    subjects = (comparing.speed, comparing.synchronisation_cost, comparing.learning, comparing.replicas)
    said = [finding for subject in subjects for finding in subject(largest)]
    where = f"{most} workers" if is_only else f"{most} workers ({mode})"
    return [
        Finding(f"On {where}: {_inside(one.text, largest)}", f"{one.title}, {where}", one.kind, one.places)
        for one in said
    ]


def _inside(text: str, rows: Sequence[Row]) -> str:
    """A sentence that goes on after a colon; the name of a strategy keeps its capital."""
    return text if any(text.startswith(row.label) for row in rows) else f"{text[0].lower()}{text[1:]}"


def tiles(rows: Sequence[Row]) -> list[Tile]:
    """Figures of the point with the most throughput in the first mode."""
    mode = modes_of(rows)[0]
    best = best_of([row for row in rows if row.point and row.point["mode"] == mode])
    scaling, where = _scaling(best), f"{best.label} on {counted(best.workers, 'worker')}, {mode}"
    found = [Tile("Time per iteration", duration(best.iteration_s.mean), where)]
    found.append(Tile("Samples per second", whole(best.samples_per_s), "of all workers together"))
    if scaling.speedup is not None:
        found.append(Tile("Speed-up", f"{times(scaling.speedup)} {TIMES}", "over one worker"))
        found.append(Tile("Efficiency", share(scaling.efficiency), "speed-up over workers"))
    if scaling.communication_share is not None:
        found.append(Tile("Communication", share(scaling.communication_share), "of a step, not hidden"))
    return found


def _table(study: Scale, mode: str, labels: Sequence[str]) -> Table[Row]:
    """One worker, then strategy by strategy, from few workers to many."""
    rows = study.results
    reference = reference_of(rows, mode)
    shown = ([reference] if reference is not None else []) + [r for line in lines_of(rows, mode).values() for r in line]
    return Table(
        id=f"points-{mode}",
        title=f"{TITLES[mode]}: {batch_words(study.modes, mode)}.",
        columns=_columns(rows),
        rows=shown,
        keys=[labels.index(row.label) if row.label in labels else len(labels) for row in shown],
    )


def _columns(rows: Sequence[Row]) -> list[Column[Row]]:
    warmup = rows[0].warmup_steps
    return [
        Column(title="Strategy", short="strategy", text=lambda row: row.label, is_number=False),
        Column(title="Workers", short="N", text=lambda row: str(row.workers), help="workers"),
        Column(title="Global batch", text=lambda row: whole(row.batch_size), places=MARKDOWN | HTML),
        Column(
            title="Iteration, ms",
            short="ms/step",
            text=_step,
            places=TERMINAL,
            help=f"mean over workers, first {warmup} dropped, with its 95 % interval",
        ),
        Column(
            title="Iteration, ms",
            text=lambda row: milliseconds(row.iteration_s.mean),
            places=MARKDOWN | NOTEBOOK | HTML,
            help="mean over timed steps and workers, the median of repeats",
        ),
        Column(
            title="95 % interval",
            text=lambda row: time_interval(row.iteration_mean_s_interval95),
            places=MARKDOWN | HTML,
        ),
        Column(
            title="Speed-up",
            short="speed-up",
            text=lambda row: factor(_scaling(row).speedup),
            places=TERMINAL,
            help="samples per second over those of one worker",
        ),
        Column(
            title="Speed-up",
            text=lambda row: bounded(_scaling(row).speedup, _scaling(row).speedup_interval95),
            places=MARKDOWN | NOTEBOOK | HTML,
            help="samples per second over those of one worker of the same code",
        ),
        Column(
            title="Efficiency",
            short="eff.",
            text=lambda row: share(_scaling(row).efficiency),
            help="speed-up over the number of workers",
        ),
        Column(
            title="Samples/s",
            short="samples/s",
            text=lambda row: whole(row.samples_per_s),
            importance=10,
        ),
        Column(
            title="Throughput gained",
            text=_gained,
            places=MARKDOWN | HTML,
            help="over the next smaller number of workers",
        ),
        _part("Compute", "compute", 20),
        _part("Communication", "comm", 100),
        _part("Waiting", "wait", 30),
        Column(
            title="Beyond ideal, ms",
            short="beyond",
            text=lambda row: DASH if row.workers == 1 else short_milliseconds(_scaling(row).beyond_ideal_s),
            help="ms of a step above perfect scaling, t_1/N (strong) or t_1 (weak)",
        ),
        Column(
            title="Communication, ms",
            short="comm ms",
            text=lambda row: short_milliseconds(_scaling(row).communication_s),
            help="communication that compute does not hide",
        ),
        Column(
            title="Waiting, ms", text=lambda row: short_milliseconds(_scaling(row).waiting_s), places=MARKDOWN | HTML
        ),
        Column(
            title="Hidden, ms", text=lambda row: short_milliseconds(_scaling(row).overlap_s), places=MARKDOWN | HTML
        ),
        Column(
            title="Compute, ms", text=lambda row: short_milliseconds(_scaling(row).compute_s), places=MARKDOWN | HTML
        ),
        Column(
            title="Test accuracy",
            text=lambda row: percent(row.final.test_accuracy),
            places=MARKDOWN | NOTEBOOK | HTML,
        ),
        Column(title="Test loss", text=lambda row: number(row.final.test_loss), places=MARKDOWN | HTML),
    ]


def _part(title: str, short: str, importance: int) -> Column[Row]:
    """A part of a step as its share, in a terminal; the HTML page has it in milliseconds."""
    key = {"Compute": "compute_s", "Communication": "communication_s", "Waiting": "waiting_s"}[title]

    def text(row: Row) -> str:
        seconds, step = getattr(_scaling(row), key), row.split.mean.step_s if row.split is not None else None
        return DASH if seconds is None or not step else share(seconds / step)

    return Column(title=title, short=short, text=text, importance=importance, places=TERMINAL, help="share of a step")


def _step(row: Row) -> str:
    bounds = row.iteration_mean_s_interval95
    interval = f" {plus_minus(bounds, row.iteration_s.mean)}" if bounds else ""
    return f"{milliseconds(row.iteration_s.mean)}{interval}"


def _gained(row: Row) -> str:
    gain = _scaling(row).gain
    return DASH if gain is None else f"{bounded(gain.ratio, gain.interval95)} over {gain.over_workers}"


def _scaling(row: Row) -> Scaling:
    return row.scaling or Scaling()


def _point_words(one: Failure) -> str:
    point: Mapping[str, Any] = one.point or {}
    return f"{one.label} on {counted(int(point.get('workers', 0)), 'worker')} ({point.get('mode')})"
