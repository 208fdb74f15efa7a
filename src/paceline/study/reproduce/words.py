"""Figures and proofs of a reproduced experiment in words, the same for the terminal and the report."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.results.study import FigureValue, Proof, Reproduction

DASH = "\N{EN DASH}"


def heading(study: Reproduction, name: str) -> str:
    """A column's head with its unit."""
    quantity = study.quantities[name]
    unit = {"bytes": "kB", "x": ""}.get(quantity.unit, quantity.unit)
    return f"{quantity.name}, {unit}" if unit and unit != "%" else quantity.name


SHORT = {
    "iteration_s": "s/step",
    "speedup": "speed-up",
    "train_s": "train s",
    "epoch_s": "epoch s",
    "compute_s": "compute s",
    "communication_s": "comm. s",
    "communication_estimated_s": "t_N-t_1/N",
    "compute_share": "compute",
    "communication_share": "comm.",
    "sent_per_step": "kB/step",
    "share_of_ring": "of ring",
    "messages_per_step": "messages",
    "convergence_s": "s to conv.",
    "convergence_steps": "steps to",
    "test_loss": "test loss",
    "test_accuracy": "test",
    "test_accuracy_spread": "over seeds",
    "train_accuracy_by_rank": "train by rank",
    "test_accuracy_by_rank": "test by rank",
}


def short_heading(name: str) -> str:
    """A column's head for a terminal, with its unit."""
    return SHORT.get(name, name)


def figure_text(value: FigureValue, unit: str) -> str:
    """A number in its unit, a list of them by rank, or the words that were published."""
    if isinstance(value, str):
        return value.removesuffix(f" {unit}") if unit == "s" else value
    if isinstance(value, Sequence):
        return " / ".join(figure_text(item, unit).removesuffix(" %") for item in value) + (" %" if unit == "%" else "")
    if value is None:
        return DASH
    if unit == "%":
        return f"{100 * value:.1f} %"
    if unit == "bytes":
        return f"{value / 1e3:,.1f}"
    if unit == "steps":
        return f"{value:g}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4f}" if abs(value) < 0.1 else f"{value:.3f}"


def proof_words(proof: Sequence[Proof]) -> list[str]:
    """Whether replicas were the same on every rank, strategy by strategy."""
    lines = []
    for row in proof:
        where = f"on all {row.ranks} ranks after {row.equal} of {row.synchronisations} synchronisations"
        error = f"{row.max_relative_error:.0e} from one process that plays all workers"
        if row.passed:
            lines.append(f"{row.strategy}: the same model, bit for bit, {where}; the last one {error} (in float64).")
        else:
            first = "" if row.first_unequal is None else f", first different after step {row.first_unequal}"
            lines.append(f"{row.strategy}: NOT the same model: equal {where}{first}; {error}.")
    return lines
