"""The verdict in words: pure functions from results to sentences, none of which says more than was measured."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.report import findings, numbers
from paceline.report.numbers import counted, duration, few, listed, percent, significant, times
from paceline.report.points import Point, Result, fastest_row, rivals

MAX_ACCURACY_GROUPS = 4  # more would be a table, and there is one


def headline(results: Sequence[Result]) -> str:
    """The one sentence to take away: who is fastest, who hides its communication, who is slow."""
    return "; ".join([_order(results), *findings.clauses(results)])


def _order(results: Sequence[Result]) -> str:
    """Who took the least time, as far as that can be told."""
    racing = rivals(results)
    fastest = fastest_row(results)
    if fastest is None:
        return f"{counted(len(results), 'result')} side by side: they train different things, so none is the fastest"
    name, where = fastest["label"], _where(racing)
    if len(racing) == 1:
        return f"{name} took {_time(fastest)} per iteration {where}"
    others = [result for result in racing if result is not fastest]
    verdicts = {result["label"]: result["versus_fastest"]["verdict"] for result in others}
    if any(verdict == "one repeat cannot tell" for verdict in verdicts.values()):
        took = duration(fastest["iteration_s"]["mean"])
        return (
            f"{name} took the least time per iteration {where}, {took}, but one repeat cannot tell whether it is faster"
        )
    # A rival that is "faster" than the fastest (its median ratio, not its median, is lower) is no clear order either.
    ties = [label for label, verdict in verdicts.items() if verdict != "slower"]
    if len(ties) == len(others):
        return f"No difference in time per iteration between {listed([name, *ties])} {where}"
    if ties:
        return f"{name} took the least time per iteration {where}; no difference from {listed(ties, 'or')}"
    if len(others) == 1:
        return (
            f"{name} took {_less(others[0])} less time per iteration than {others[0]['label']} {where}"
            + _less_bounds(others[0], "95 % interval ")
        )
    return f"{name} is the fastest of {len(racing)} strategies {where}: {_time(fastest)} per iteration"


def speed(results: Sequence[Result]) -> Point | None:
    """How the other strategies stand to the fastest."""
    fastest = fastest_row(results)
    if fastest is None:
        return None
    others = [result for result in rivals(results) if result is not fastest]
    name = fastest["label"]
    by_verdict: dict[str, list[Result]] = {}
    for result in sorted(others, key=lambda r: float(r["versus_fastest"]["ratio"])):
        by_verdict.setdefault(result["versus_fastest"]["verdict"], []).append(result)
    sentences = []
    if slower := by_verdict.get("slower", []):
        first, rest = slower[0], slower[1:]
        parts = [f"{_less(first)} less time per iteration than {first['label']}{_less_bounds(first, '95 % interval ')}"]
        parts += [f"{_less(result)} less than {result['label']}{_less_bounds(result)}" for result in rest]
        sentences.append(f"{name} took {few(parts)}.")
    if ties := by_verdict.get("no difference", []) + by_verdict.get("faster", []):
        parts = [f"{result['label']} ({_ratio(result)} times as long{_bounds(result)})" for result in ties]
        repeats = counted(ties[0].get("repeats", 1), "repeat")
        sentences.append(f"In {repeats} no difference from {name} could be told for {few(parts)}.")
    if unknown := by_verdict.get("one repeat cannot tell", []):
        parts = [f"{result['label']} {_ratio(result)} times as long" for result in unknown]
        sentences.append(
            f"In this one repeat, per iteration and against {name}: {few(parts)}. "
            "One repeat cannot tell whether that would come again: repeat to find out."
        )
    return Point("Speed", " ".join(sentences)) if sentences else None


def against_one_worker(results: Sequence[Result]) -> Point | None:
    """The speed-up over the same code with one worker, in plain words where it is none."""
    subject = "Against one worker"
    fastest = fastest_row(results)
    alone = next((result for result in results if result["workers"] == 1), None)
    several = [result for result in results if result["workers"] > 1]
    if fastest is None or not several:
        return None
    if alone is None:
        return Point(subject, "One worker alone was not measured, so there is no speed-up to give.")
    if fastest["workers"] == 1:
        return None
    versus = alone["versus_fastest"]
    name, where, speedup = fastest["label"], _where([fastest]), versus["ratio"]
    same = "as one worker with the same global batch"
    if versus["verdict"] == "no difference":
        return Point(subject, f"No difference in time per iteration between {name} {where} and one worker.")
    hint = " in this one repeat" if versus["verdict"] == "one repeat cannot tell" else ""
    if speedup < 1:
        text = f"Several workers are slower than one here: even {name} took {times(1 / speedup)} times as "
        return Point(
            subject, f"{text}long per iteration {where} {same}{hint}{_inverse_bounds(alone)}.", is_problem=True
        )
    efficiency = percent(speedup / fastest["workers"])
    text = f"{name} {where} is {times(speedup)} times as fast per iteration {same}{hint}{_bounds(alone)}: "
    text += f"an efficiency of {efficiency} %."
    behind = [r for r in rivals(results) if r["workers"] > 1 and r.get("speedup", 1.0) < 1]
    if behind:
        parts = [f"{result['label']} (speed-up {times(result['speedup'])})" for result in behind]
        text += f" Slower than one worker: {listed(parts)}."
    return Point(subject, text)


def cost_of_agreeing(results: Sequence[Result]) -> Point | None:
    """What the fastest pays for agreement, where workers that do not agree were measured too."""
    fastest = fastest_row(results)
    if fastest is None or fastest["guarantee"] == "NONE":
        return None
    subject, name, against = "Cost of agreeing", fastest["label"], fastest.get("versus_none") or {}
    if "limit_s" not in against:
        return None
    loose_label, bounds, ratio = against["label"], against["interval95"], against["ratio"]
    if bounds and bounds[0] <= 1:
        return Point(subject, f"Agreeing cost {name} nothing that could be told: no difference from {loose_label}.")
    if ratio <= 1:
        return None
    hint = "" if bounds else " (one repeat)"
    more_s, share = against["limit_s"] * (ratio - 1), percent(1 - 1 / ratio)
    return Point(
        subject,
        f"Of workers that do not synchronise at all ({loose_label}), the slowest took {duration(against['limit_s'])} "
        f"per iteration; agreeing cost {name} another {duration(more_s)}, {share} % of its time{hint}.",
    )


def replicas(results: Sequence[Result]) -> Point | None:
    """Whether the workers of each result ended with the same parameters, and whether they had to."""
    several = [result for result in results if result["workers"] > 1]
    if not several:
        return None
    same = [r["label"] for r in several if replicas_equal(r) and not r["replica_drift"]]
    joined = [r for r in several if replicas_equal(r) and r["replica_drift"]]
    apart = [r for r in several if not replicas_equal(r)]
    broken = [r for r in apart if r["guarantee"] == "EXACT"]
    sentences = []
    for result in broken:
        sentences.append(
            f"{result['label']} promises the same replica on every worker, but they ended different "
            f"(drift {significant(result['replica_drift'])}): do not trust its figures."
        )
    if same:
        which = "every worker" if len(same) == len(several) else f"every worker of {few(same)}"
        sentences.append(f"Replicas agree: {which} ended with the same parameters, bit for bit.")
    if joined:
        parts = [f"{result['label']} (drift {significant(result['replica_drift'])})" for result in joined]
        sentences.append(f"Apart while training and brought together at the end: {listed(parts)}.")
    if allowed := [r for r in apart if r["guarantee"] != "EXACT"]:
        parts = [
            f"{r['label']} (drift {significant(r['replica_drift'])}, guarantee {r['guarantee'].lower()})"
            for r in allowed
        ]
        sentences.append(f"Replicas ended different, as their guarantee allows: {listed(parts)}.")
    return Point("Replicas", " ".join(sentences), is_problem=bool(broken))


def replicas_equal(result: Result) -> bool:
    """In every repeat all ranks ended with the same digest."""
    return bool(result["replicas_equal"])


def learning(results: Sequence[Result]) -> Point | None:
    """Test accuracy at the end, results with the same figure together; training that went astray is named."""
    lost = [r["label"] for r in results if r["final"]["train_loss"] is None]
    groups: dict[str, list[str]] = {}
    scored = [r for r in results if r["final"]["test_accuracy"] is not None]
    for result in sorted(scored, key=lambda r: -float(r["final"]["test_accuracy"])):
        groups.setdefault(numbers.accuracy(result["final"]["test_accuracy"]), []).append(result["label"])
    sentences = [f"The training loss of {listed(lost)} was not a finite number at the end."] if lost else []
    if len(groups) == 1:
        ((figure, labels),) = groups.items()
        whose = f" for {listed(labels)}" if len(scored) < len(results) else " for all" if len(scored) > 1 else ""
        sentences.append(f"Test accuracy at the end: {figure}{whose}.")
    elif groups:
        parts = [f"{figure} ({listed(labels)})" for figure, labels in groups.items()]
        if len(parts) > MAX_ACCURACY_GROUPS:
            sentences.append(f"Test accuracy at the end: from {parts[-1]} to {parts[0]}.")
        else:
            sentences.append(f"Test accuracy at the end: {listed(parts)}.")
    return Point("Learning", " ".join(sentences), is_problem=bool(lost)) if sentences else None


SUBJECTS = (
    speed,
    against_one_worker,
    findings.time_of_a_step,
    findings.slow_workers,
    cost_of_agreeing,
    learning,
    findings.target,
    replicas,
    findings.traffic,
    findings.measuring,
)


def points(results: Sequence[Result]) -> list[Point]:
    """Everything below the headline."""
    found = [subject(results) for subject in SUBJECTS]
    return [point for point in found if point is not None]


def _where(results: Sequence[Result]) -> str:
    counts = sorted({int(result["workers"]) for result in results})
    return f"on {listed([str(count) for count in counts], 'or')} worker{'' if counts == [1] else 's'}"


def _time(result: Result) -> str:
    bounds = result.get("iteration_mean_s_interval95")
    text = duration(result["iteration_s"]["mean"])
    return f"{text} (95 % interval {duration(max(bounds[0], 0.0))} to {duration(bounds[1])})" if bounds else text


def _less(result: Result) -> str:
    return f"{percent(1 - 1 / result['versus_fastest']['ratio'])} %"


def _less_bounds(result: Result, what: str = "") -> str:
    bounds = result["versus_fastest"]["interval95"]
    return f" ({what}{percent(1 - 1 / bounds[0])} to {percent(1 - 1 / bounds[1])} %)" if bounds else ""


def _ratio(result: Result) -> str:
    return times(result["versus_fastest"]["ratio"])


def _bounds(result: Result) -> str:
    bounds = result["versus_fastest"]["interval95"]
    return f", 95 % interval {times(bounds[0])} to {times(bounds[1])}" if bounds else ""


def _inverse_bounds(result: Result) -> str:
    bounds = result["versus_fastest"]["interval95"]
    return f", 95 % interval {times(1 / bounds[1])} to {times(1 / bounds[0])}" if bounds else ""
