"""What is said of a target, and of the limit without any agreement."""

from __future__ import annotations

from typing import Any

from rich.markup import escape

from paceline.cli.parts.view import megabytes, percent


def target_words(result: dict[str, Any]) -> str:
    """Whether the target was reached, and what that took."""
    target, final = result["target"], result["final"]["test_accuracy"]
    aim = percent(target["accuracy"])
    if target["reached"]:
        sent = "" if target["sent_bytes"] is None else f", {megabytes(target['sent_bytes'])} MB sent by all workers"
        return (
            f"{aim} reached after {target['step']} steps (epoch {target['epoch']}), {target['train_s']:.2f} s of "
            f"training{sent}"
        )
    some = (
        f" in {target['repeats'] - target['repeats_reached']} of {target['repeats']} repeats"
        if _is_split(target)
        else ""
    )
    best = "nothing was evaluated" if target["best"] is None else f"best {percent(target['best'])}"
    after = f"; {percent(final)} once replicas were brought together" if (final or 0) >= target["accuracy"] else ""
    return f"{aim} never reached{some}: {best}{after}"


def _is_split(target: dict[str, Any]) -> bool:
    return bool(0 < target.get("repeats_reached", 0) < target.get("repeats", 1))


def target_lines(study: dict[str, Any]) -> list[str]:
    """Who was first at the target, limits apart, and who never was."""
    aimed = [result for result in study["results"] if result.get("target")]
    reached = [result for result in aimed if result["target"]["reached"]]
    rivals = [result for result in reached if result["workers"] > 1 and result["guarantee"] != "NONE"]
    first = min(rivals, key=lambda result: result["target"]["train_s"], default=None)
    lines = (
        [f"First at the target of those that agree: [bold]{escape(first['label'])}[/bold]: {target_words(first)}."]
        if first
        else []
    )
    never = [result for result in aimed if not result["target"]["reached"]]
    return lines + [f"{escape(result['label'])}: {target_words(result)}." for result in never]


def limit_lines(study: dict[str, Any]) -> list[str]:
    """How far each way to agree is from not agreeing at all, where that was measured."""
    several = [r for r in study["results"] if r.get("versus_none") and r["guarantee"] != "NONE"]
    if not several:
        return []
    parts = []
    for result in sorted(several, key=lambda r: r["versus_none"]["ratio"]):
        bounds = result["versus_none"]["interval95"]
        interval = f" ({bounds[0]:.2f} to {bounds[1]:.2f})" if bounds else ""
        parts.append(f"{escape(result['label'])} {result['versus_none']['ratio']:.2f}x{interval}")
    limit = escape(several[0]["versus_none"]["label"])
    return [f"Time per step over the slowest worker of {limit}, the limit without any agreement: {', '.join(parts)}."]
