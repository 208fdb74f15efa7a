"""What spans, samples and counters say, in words: hidden communication, slow workers, targets, bytes, and the cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.measure.stragglers import LEAST_STEPS
from paceline.report import numbers
from paceline.report.numbers import amount, counted, duration, few, listed, percent, significant
from paceline.report.points import Point, Result, fastest_row

HIDES_FROM = 0.05  # of communication: less is no overlap to speak of
SLOW_FROM = "10 %"  # the rule of the verdict on slow workers


def clauses(results: Sequence[Result]) -> list[str]:
    """What joins the headline: who hides most of its communication, and who is slow."""
    found = []
    best = max(_hiding(results), key=lambda r: float(r["split"]["mean"]["overlap_fraction"]), default=None)
    if best is not None and best["split"]["mean"]["overlap_fraction"] >= HIDES_FROM:
        share = percent(best["split"]["mean"]["overlap_fraction"])
        found.append(f"{best['label']} hides {share} % of communication")
    return found + [_slow_clause(results, rank, phase) for rank, phase in _slow(results)]


def time_of_a_step(results: Sequence[Result]) -> Point | None:
    """How the fastest spends a step, and how much of their communication the others hide."""
    fastest = fastest_row(results)
    sentences = []
    if fastest is not None and fastest.get("split"):
        mean = fastest["split"]["mean"]
        step = mean["step_s"] or 1.0
        names = {"compute": "computing", "overlap": "computing and communicating at once"}
        names |= {"communication": "communicating only", "waiting": "waiting for others", "data": "loading data"}
        names |= {"rest": "between spans"}
        parts = [
            f"{percent(mean[f'{key}_s'] / step)} % {words}"
            for key, words in names.items()
            if (mean.get(f"{key}_s") or 0) / step >= 0.005
        ]
        if parts:
            sentences.append(f"A step of {fastest['label']}, {duration(step)}: {listed(parts)}.")
    hiding = sorted(_hiding(results), key=lambda r: -float(r["split"]["mean"]["overlap_fraction"]))
    if hiding:
        much = [r for r in hiding if r["split"]["mean"]["overlap_fraction"] >= HIDES_FROM]
        shares = [f"{r['label']} {percent(r['split']['mean']['overlap_fraction'])} %" for r in much]
        little = [str(r["label"]) for r in hiding if r["split"]["mean"]["overlap_fraction"] < HIDES_FROM]
        shares += [f"next to nothing with {few(little)}"] if little else []
        sentences.append(f"Communication hidden under computing: {listed(shares)}.")
    return Point("Time of a step", " ".join(sentences)) if sentences else None


def slow_workers(results: Sequence[Result]) -> Point | None:
    """Who is slow in its own work; said plainly where nobody is, and where it cannot be told."""
    several = [r for r in results if r["workers"] > 1]
    looked = [r for r in several if r.get("stragglers") is not None]
    short = [str(r["label"]) for r in several if r.get("split") and r.get("stragglers", ()) is None]
    where = f" under {few(short)}" if short and looked else ""
    unknown = [f"It cannot be told{where}: that takes {LEAST_STEPS} timed steps."] if short else []
    if not looked:
        return Point("Slow workers", unknown[0]) if unknown else None
    found = _slow(looked)
    if not found:
        none = f"None: no worker's own work took over {SLOW_FROM} longer than the others'."
        return Point("Slow workers", " ".join([none, *unknown]))
    sentences = []
    for rank, phase in found:
        rows = _rows_of(looked, rank, phase)
        excess = _span([row["excess_percent"] / 100 for _, row in rows], percent)
        added = _span([row["excess_s"] for _, row in rows], numbers.milliseconds)
        bounds = [bound / 100 for _, row in rows for bound in row["interval95_percent"]]
        where = f" under {few([str(result['label']) for result, _ in rows])}" if len(several) > 1 else ""
        sentences.append(
            f"Worker {rank} is slow in {_phase(phase)} by {excess} % ({added} ms per step, 95 % "
            f"interval{'s within' if len(rows) > 1 else ''} {percent(min(bounds))} to {percent(max(bounds))} %){where}."
        )
        others = [str(r["label"]) for r in looked if not any(r is slow for slow, _ in _rows_of(looked, rank, phase))]
        if others:
            sentences.append(f"Not so under {few(others)}.")
    sentences += [*unknown, "Own work is compared, so the others' waiting is not held against them."]
    return Point("Slow workers", " ".join(sentences), is_problem=True)


def target(results: Sequence[Result]) -> Point | None:
    """Who reached the accuracy that was asked for, and after what."""
    asked = [r for r in results if r.get("target")]
    if not asked:
        return None
    goal = numbers.accuracy(asked[0]["target"]["accuracy"])
    reached = sorted((r for r in asked if r["target"]["reached"]), key=lambda r: float(r["target"]["train_s"]))
    never = [r for r in asked if not r["target"]["reached"]]
    sentences = []
    if reached:
        first, *later = reached
        given = first["target"]
        text = f"{goal} reached first by {first['label']}, after {duration(given['train_s'])} "
        text += f"({counted(given['step'], 'step')}, {amount(given.get('sent_bytes'))} sent)"
        then = [f"{r['label']} ({duration(r['target']['train_s'])})" for r in later]
        sentences.append(f"{text}{f', then by {few(then)}' if then else ''}.")
    if never:
        parts = [f"{r['label']} (best {numbers.accuracy(r['target'].get('best'))})" for r in never]
        sentences.append(f"{'Never reached' if reached else f'{goal} was never reached'} by {few(parts)}.")
    return Point("Target accuracy", " ".join(sentences), is_problem=bool(never))


def traffic(results: Sequence[Result]) -> Point | None:
    """What the kernel saw against theory, at its worst."""
    ratios = [
        (row["kernel_sent_bytes"] / row["predicted_sent_bytes"] - 1, result["label"], row["rank"])
        for result in results
        for row in (result.get("network") or {"per_worker": []})["per_worker"]
        if row.get("kernel_sent_bytes") is not None and row.get("predicted_sent_bytes")
    ]
    if not ratios:
        return None
    gap, label, rank = max(ratios, key=lambda ratio: abs(ratio[0]))
    side = "more" if gap >= 0 else "less"
    return Point(
        "Network",
        f"The kernel saw no worker send over {significant(abs(gap) * 100)} % more or less than theory predicts; worker "
        f"{rank} of {label} is furthest off, with {side}. The kernel's count includes the protocol's bytes.",
    )


def measuring(results: Sequence[Result]) -> Point | None:
    """What measuring itself cost."""
    tried = [r for r in results if r.get("measuring")]
    if not tried:
        return None
    worst = max(tried, key=lambda r: float(r["measuring"]["cost_percent"]))
    cost, bounds = worst["measuring"]["cost_percent"], worst["measuring"].get("interval95_percent")
    interval = f" (95 % interval {_signed(bounds[0])} to {_signed(bounds[1])} %)" if bounds else ""
    free = " That cannot be told from nothing." if bounds and bounds[0] <= 0 <= bounds[1] else ""
    most = f" No other of {len(tried)} cost more." if len(tried) > 1 else ""
    side = "shorter" if cost < 0 else "longer"
    text = f"Steps of {worst['label']} were {abs(cost):.1f} % {side} with measuring than without{interval}."
    return Point("Cost of measuring", text + free + most)


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "\N{MINUS SIGN}")


def _hiding(results: Sequence[Result]) -> list[Result]:
    return [r for r in results if r.get("split") and r["split"]["mean"].get("overlap_fraction") is not None]


def _slow(results: Sequence[Result]) -> list[tuple[int, str]]:
    """Each slow worker and phase once, those that most strategies name first."""
    named: dict[tuple[int, str], int] = {}
    for result in results:
        for row in result.get("stragglers") or []:
            key = (int(row["rank"]), str(row["phase"]))
            named[key] = named.get(key, 0) + 1
    return sorted(named, key=lambda key: (-named[key], key))


def _slow_clause(results: Sequence[Result], rank: int, phase: str) -> str:
    """With what strategies found, from the least to the most; with the strategy where only one of several found it."""
    rows = _rows_of(results, rank, phase)
    excess = _span([row["excess_percent"] / 100 for _, row in rows], percent)
    several = [r for r in results if r["workers"] > 1]
    where = f" under {rows[0][0]['label']}" if len(rows) == 1 and len(several) > 1 else ""
    return f"worker {rank} is slow in {_phase(phase)} by {excess} %{where}"


def _rows_of(results: Sequence[Result], rank: int, phase: str) -> list[tuple[Result, Result]]:
    return [
        (result, row)
        for result in results
        for row in result.get("stragglers") or []
        if int(row["rank"]) == rank and str(row["phase"]) == phase
    ]


def _span(values: Sequence[float], text: Callable[[float], str]) -> str:
    """The smallest and the largest, or the one that both are."""
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"


def _phase(phase: str) -> str:
    return "all phases" if phase == "all" else phase
