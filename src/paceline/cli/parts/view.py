"""Results as tables that fit a terminal of 100 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from paceline.measure.stragglers import LEAST_STEPS

DASH = "\N{EN DASH}"


def number(value: float | None, digits: int = 4) -> str:
    return DASH if value is None else f"{value:.{digits}g}"


def percent(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.1f} %"


def share(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.0f} %"


def milliseconds(seconds: float | None) -> str:
    return DASH if seconds is None else f"{1000 * seconds:.2f}"


def megabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:.2f}"


def size_text(num_bytes: float) -> str:
    """Bytes for a reader, with a unit that leaves something before the point."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes / 1e3:,.1f} kB"


def make_table(*columns: str, text: tuple[str, ...] = ()) -> Table:
    """A plain table; the first column is a name, the others are figures, but for those named as text."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0))
    for index, column in enumerate(columns):
        is_text = column in text or index == 0
        # A long name goes on in the next line; figures are never cut.
        table.add_column(
            column,
            justify="left" if is_text else "right",
            no_wrap=not is_text,
            overflow="fold" if is_text else "ellipsis",
        )
    return table


def fitted(
    rows: Sequence[Mapping[str, str]],
    width: int,
    *,
    dispensable: tuple[str, ...] = (),
    text: tuple[str, ...] = (),
    name_share: float = 0.2,
) -> Table:
    """A table of rows. Where it is too wide, columns that can be missed go first, one by one; then names are folded.

    Names that are longer than that share of the width do not cost a column: they are folded at once.
    """
    columns = list(rows[0])
    longest = max(Text.from_markup(row[columns[0]]).cell_len for row in rows)
    folded = max(longest - int(name_share * width), 0)
    for name in (None, *dispensable):
        if name in columns:
            columns.remove(name)
        table = make_table(*columns, text=text)
        for row in rows:
            table.add_row(*(row[column] for column in columns))
        if Console(width=10_000, quiet=True).measure(table).maximum - folded <= width:
            break
    return table


def comparison_table(study: dict[str, Any], width: int) -> Table:
    """One row per strategy."""
    results = study["results"]
    has_interval = any(result["iteration_mean_s_interval95"] for result in results)
    has_split = any(result.get("split") for result in results)
    aim = next((result["target"]["accuracy"] for result in results if result.get("target")), None)
    rows = []
    for result in results:
        row = {"strategy": escape(result["label"]), "ms/step": milliseconds(result["iteration_s"]["mean"])}
        row |= {"95 %": _plus_minus(result)} if has_interval else {"p95": milliseconds(result["iteration_s"]["p95"])}
        row |= {"speed-up": f"{result['speedup']:.2f}x"} if "speedup" in result else {}
        row |= _split_cells((result.get("split") or {}).get("mean")) if has_split else {}
        row |= {"samples/s": f"{result['samples_per_s']:,.0f}"}
        row |= (
            {f"s to {aim:.4g}": _time_to_target(result)} if aim is not None else {"train s": f"{result['train_s']:.2f}"}
        )
        row |= {
            "loss": number(result["final"]["train_loss"], 3),
            "test": percent(result["final"]["test_accuracy"]),
            "drift": f"{result['replica_drift']:.0e}" if result["replica_drift"] else "0",
            "MB sent": megabytes(max(worker["sent_bytes"] for worker in result["per_worker"])),
        }
        rows.append(row)
    return fitted(rows, width, dispensable=("train s", "samples/s", "drift", "overlap", "95 %", "p95", "loss"))


def _time_to_target(result: dict[str, Any]) -> str:
    target = result.get("target")
    return DASH if not target else f"{target['train_s']:.2f}" if target["reached"] else "never"


def _split_cells(split: dict[str, Any] | None) -> dict[str, str]:
    """How much of its communication a worker hides, and how much of a step it waits for others."""
    if split is None:
        return {"overlap": DASH, "waiting": DASH}
    return {"overlap": share(split["overlap_fraction"]), "waiting": share(split["waiting_s"] / split["step_s"])}


def _plus_minus(result: dict[str, Any]) -> str:
    """Half the width of the interval, as a share of the time itself."""
    low, high = result["iteration_mean_s_interval95"]
    return f"\N{PLUS-MINUS SIGN}{50 * (high - low) / result['iteration_s']['mean']:.0f} %"


def worker_table(result: dict[str, Any], width: int) -> Table:
    """One row per worker of one run."""
    splits = {row["rank"]: row for row in (result.get("split") or {"per_worker": []})["per_worker"]}
    rows = [
        {
            "worker": str(worker["rank"]),
            "ms/step": milliseconds(worker["iteration_s"]),
            "p50": milliseconds(worker["iteration_p50_s"]),
            "p90": milliseconds(worker.get("iteration_p90_s")),  # runs of before have none
            "p95": milliseconds(worker["iteration_p95_s"]),
            **(_split_cells(splits.get(worker["rank"])) if splits else {}),
            "train loss": number(worker["train_loss"]),
            "train": percent(worker["train_accuracy"]),
            "test loss": number(worker["test_loss"]),
            "test": percent(worker["test_accuracy"]),
            "MB sent": megabytes(worker["sent_bytes"]),
            "parameters": worker["parameter_digest"][:8],
        }
        for worker in result["per_worker"]
    ]
    return fitted(rows, width, dispensable=("p90", "parameters", "p50", "test loss", "train loss", "overlap"))


def run_lines(result: dict[str, Any]) -> list[str]:
    """What a run's report says beyond its workers."""
    iteration, final = result["iteration_s"], result["final"]
    lines = [
        f"iteration       mean {milliseconds(iteration['mean'])} ms, p50 {milliseconds(iteration['p50'])}, "
        f"p90 {milliseconds(iteration.get('p90'))}, p95 {milliseconds(iteration['p95'])} "
        f"(over {result['timed_steps']} steps; first {result['warmup_steps']} dropped as warm-up)",
        f"throughput      {result['samples_per_s']:,.0f} samples/s",
    ]
    if result["epoch_s"] is not None:
        lines.append(
            f"epoch           {result['epoch_s']:.3f} s, {result['epoch_without_data_s']:.3f} s without loading data"
        )
    lines += _split_lines(result)
    lines += [
        f"training        {result['train_s']:.2f} s; evaluation {result['evaluation_s']:.2f} s; "
        f"total {result['total_s']:.2f} s with start-up",
        f"last epoch      loss {number(final['train_loss'])}, accuracy {percent(final['train_accuracy'])}",
        f"test set        loss {number(final['test_loss'])}, accuracy {percent(final['test_accuracy'])}",
        *_server_lines(result),
        f"replicas        drift {result['replica_drift']:.2g}, guarantee {result['guarantee'].lower()}; "
        f"BatchNorm statistics {result['batchnorm']}",
    ]
    return lines


def _split_lines(result: dict[str, Any]) -> list[str]:
    """Where a step's time went, over all workers."""
    if not result.get("split"):
        return []
    mean = result["split"]["mean"]
    parts = ("compute", "communication", "overlap", "waiting", "data", "rest")
    words = ", ".join(f"{part} {share(mean[f'{part}_s'] / mean['step_s'])}" for part in parts)
    return [f"step            {words}"]


def straggler_lines(result: dict[str, Any], label: str = "") -> list[str]:
    """A sentence for everybody who is slow."""
    return [
        f"{f'{label}: worker' if label else 'Worker'} {one['rank']} is slow in "
        f"{'all phases' if one['phase'] == 'all' else one['phase']} by {milliseconds(one['excess_s'])} ms a step, "
        f"{one['excess_percent']:.0f} % of the others' own work "
        f"(95 %: {one['interval95_percent'][0]:.0f} to {one['interval95_percent'][1]:.0f})."
        for one in result.get("stragglers") or []
    ]


def unjudged_lines(results: Sequence[dict[str, Any]]) -> list[str]:
    """That slow workers could not be looked for, where workers were measured in too few steps."""
    several = [result for result in results if result["workers"] > 1]
    short = [result for result in several if result.get("split") and result.get("stragglers") is None]
    if not short:
        return []
    steps = max(result["timed_steps"] for result in short)
    where = "" if len(short) == len(several) else f" under {', '.join(result['label'] for result in short)}"
    return [f"Too few timed steps{where} ({steps}) to tell whether a worker is slow: it takes {LEAST_STEPS}."]


def _server_lines(result: dict[str, Any]) -> list[str]:
    """What is known of servers, where there are some."""
    lines = [f"servers         {result['servers']}, beside the workers"] if result["servers"] else []
    late = result["staleness_updates"]
    if late:
        total = sum(late["counts"].values())
        shares = ", ".join(f"{value}: {percent(count / total)}" for value, count in list(late["counts"].items())[:8])
        more = ", ..." if len(late["counts"]) > 8 else ""
        lines.append(f"staleness       mean {number(late['mean'], 3)}, max {late['max']} updates ({shares}{more})")
    return lines


def verdict_lines(study: dict[str, Any]) -> list[str]:
    """Who was fastest, and what cannot be told apart."""
    results = [result for result in study["results"] if result["workers"] > 1 and result["guarantee"] != "NONE"]
    if len(results) < 2:
        return []
    fastest = next((r for r in results if r["versus_fastest"]["verdict"] == "fastest"), results[0])
    when = " in every step" if fastest["guarantee"] in ("EXACT", "LOSSY") else ""
    lines = [f"Fastest of those that agree{when}: [bold]{escape(fastest['label'])}[/bold]."]
    ties = [r["label"] for r in results if r["versus_fastest"]["verdict"] == "no difference"]
    if ties:
        lines.append(f"No difference from it within 95 %: {escape(', '.join(ties))}.")
    speedup = fastest.get("speedup")
    if speedup is not None and speedup < 1:
        lines.append(f"One worker is faster here: {escape(fastest['label'])} takes {1 / speedup:.2f} times as long.")
    if study["repeats"] == 1:
        lines.append("One repeat cannot tell small differences from noise: --repeats 3 gives intervals.")
    return lines


def measuring_lines(study: dict[str, Any]) -> list[str]:
    """What it cost to find all this out, where that was measured."""
    lines = []
    for result in study["results"]:
        cost = result.get("measuring")
        if cost:
            lines.append(_measuring_words(cost, escape(result["label"])))
    return lines


def _measuring_words(cost: dict[str, Any], label: str) -> str:
    bounds, percents = cost["interval95_percent"], cost["cost_percent"]
    where = f"under {label}, which has most to record"
    if bounds is None:
        return f"Measuring: {percents:+.1f} % of a step {where}; too few steps for an interval."
    between = f"95 %: {bounds[0]:+.1f} to {bounds[1]:+.1f} %"
    if bounds[0] <= 0 <= bounds[1]:
        return f"What measuring costs {where}, cannot be told from nothing ({between})."
    return f"Measuring made steps {abs(percents):.1f} % {'longer' if percents > 0 else 'shorter'} {where} ({between})."
