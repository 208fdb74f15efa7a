"""Make the page that compares strategies or settings with tables, findings and charts.

Runs, comparisons, sweeps, tunings and reproduced experiments share this page and add their own parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from paceline.present import comparison_findings, conditions, measurement_findings
from paceline.present.columns import comparison_table, speed_table, worker_table
from paceline.present.numbers import (
    TIMES,
    amount,
    counted,
    duration,
    duration_interval,
    join_words,
    percentage,
    share,
    times,
)
from paceline.present.page_parts import Facts, Finding, KeyEntry, Page, PageSection, Table, Tile, Visibility
from paceline.present.pages import PageContent, ending_words, requested_repeats
from paceline.present.rows import ShownRow, fastest_row, names_to_explain
from paceline.present.styles import styles_of
from paceline.recipe import Recipe
from paceline.results import DONE, RUNNING, Row, StudyResult
from paceline.results.value import Json
from paceline.runs import Stored

KIND = "Paceline report"

S = TypeVar("S", bound=StudyResult)


def comparison_page(
    material: PageContent,
    *,
    first: Sequence[Finding] | None = None,
    tables: Sequence[Table[Any]] | None = None,
    tables_title: str = "Strategies",
    facts: Sequence[Facts] = (),
    sections: Callable[[], Sequence[PageSection]] = tuple,
    also: Sequence[Finding] = (),
    is_sweep: bool = False,
) -> Page:
    """Return the page that compares the rows of `material`.

    `first` replaces the headline, which names the fastest strategy, and `tables` replaces the table of strategies.
    `facts` and `sections` come before the facts and sections that every comparison has. The findings in `also` come
    before the cautions.
    """
    rows = material.rows
    begin = [comparison_findings.headline(rows)] if first is None else list(first)
    says_one_worker_is_faster = first is None and comparison_findings.faster_one_worker(rows) is not None
    against = [] if says_one_worker_is_faster else comparison_findings.against_one_worker(rows)
    # A sweep has its own finding about repeats.
    repeats = 0 if is_sweep else max((requested_repeats(source) for source in material.sources), default=1)
    findings = [
        *begin,
        *comparison_findings.speed(rows),
        *comparison_findings.one_repeat(rows, repeats),
        *against,
        *row_findings(rows, material.recipe),
        *also,
        *cautions(material),
        *measurement_findings.traffic(rows),
    ]
    return Page(
        **frame(material),
        findings=[*notices(material), *findings],
        tiles=tiles(rows),
        tables=[comparison_table(rows)] if tables is None else tables,
        tables_title=tables_title,
        facts=[*facts, *condition_facts(material)],
        key=[
            KeyEntry(row.label if len(row.label) <= 40 else row.short_label, style, row.full_label)
            for row, style in zip(rows, styles_of(rows), strict=True)
        ],
        names=names_to_explain(rows),
        make_sections=lambda: [*sections(), *_chart_sections(rows)],
        appendix=[worker_table(row, title=row.label, places=Visibility.HTML) for row in rows],
    )


def frame(material: PageContent) -> Json:
    """Return the arguments of `Page` that identify the results, such as title, recipes and folder."""
    recipes = material.recipes
    names = list(dict.fromkeys(recipe.name for recipe in recipes))
    first = material.sources[0]
    is_one = len(material.sources) == 1
    return {
        "kind": KIND,
        "title": ", ".join(names) or first.name,
        "description": recipes[0].description if len(names) == 1 else "",
        "intro": intro(first) if is_one else (),
        "started": first.started if is_one else "",
        "num_sources": len(material.sources),
        "recipes": _recipe_texts(material),
        "foot": f"{first.kind} {first.folder}" if is_one else "",
    }


def intro(source: Stored) -> list[str]:
    """Return the lines that identify stored results: name, status, model and data, and the error."""
    words = [", ".join(part for part in (source.name, source.kind, source.status, source.started) if part)]
    recipe = source.recipe
    if recipe is not None:
        where = f", on emulated nodes ({recipe.cluster})" if recipe.cluster.nodes else ""
        workers = counted(recipe.workers, "worker")
        words.append(f"{recipe.model.name} on {recipe.data.name}, global batch {recipe.batch_size}, {workers}{where}")
    return [*words, *([source.error] if source.error else [])]


def notices(material: PageContent) -> list[Finding]:
    """Return the cautions titled "Notice", which are shown before the headline.

    They are about results that are left out, unfinished runs, runs that were not measured interleaved, and differences
    between recipes or machines.
    """
    sources = material.sources
    texts = [
        *material.left_out,
        *(_unfinished(source, is_alone=len(sources) == 1) for source in sources if source.status != DONE),
    ]
    if len(sources) > 1:
        texts.append(
            f"Combined from {len(sources)} folders that were not measured interleaved: load on the machine may have "
            "slowed some of them and not others."
        )
    texts += [f"The recipes differ in {key}: {join_words(values)}." for key, values in material.differing.items()]
    machines = {str(source.environment.processor) for source in sources}
    if len(machines) > 1:
        texts.append(f"They were measured on different machines: {join_words(sorted(machines))}.")
    return [Finding(text, "Notice", "caution") for text in texts]


def _unfinished(source: Stored, *, is_alone: bool) -> str:
    """Describe how a run or study ended early, or that it is running, and how much of it was measured."""
    subject = f"This {source.kind}" if is_alone else source.name
    num_rows = getattr(source.content, "num_points", None)
    if num_rows is None:
        strategies = source.recipe_values.get("strategies")
        num_rows = max(len(strategies) if isinstance(strategies, list) else 0, len(source.results))
    repeats = [row.repeats for row in source.results if isinstance(row, Row)]
    done = f", {min(repeats)} of {counted(requested_repeats(source), 'repeat')}" if repeats else ""
    measured = f"{len(source.results)} of {counted(num_rows, 'row')}{done}"
    until = "so far" if source.status == RUNNING else "until then"
    return f"{subject} {ending_words(source)}. Measured {until}: {measured}."


def row_findings(rows: Sequence[ShownRow], recipe: Recipe | None) -> list[Finding]:
    """Return the findings about steps, learning and measuring, which do not compare times of strategies."""
    return [
        *measurement_findings.time_of_a_step(rows),
        *measurement_findings.stragglers(rows, recipe),
        *comparison_findings.synchronisation_cost(rows),
        *comparison_findings.learning(rows),
        *measurement_findings.target(rows),
        *comparison_findings.replicas(rows),
        *measurement_findings.overhead(rows),
    ]


def cautions(material: PageContent) -> list[Finding]:
    """Return cautions about conditions that limit the validity of the measurements, such as a busy machine."""
    settings = [source.recipe_values for source in material.sources]
    found = [
        Finding(f"{text[0].upper()}{text[1:].rstrip('.')}.", "Caution", "caution")
        for source in material.sources
        if isinstance(source.content, StudyResult)
        for text in source.content.cautions or []
    ]
    found += conditions.interventions(settings, material.rows)
    recipe = material.recipe
    if recipe is not None and material.rows:
        is_study = material.sources[0].kind == "study"
        found += conditions.machine_cautions(recipe, material.environment, material.rows, is_study=is_study)
    return found


def condition_facts(material: PageContent) -> list[Facts]:
    """Return facts about the training and about the machine, for the HTML page."""
    recipe = material.recipe
    found = []
    if recipe is not None:
        training = conditions.training_facts(recipe, material.rows)
        found.append(
            Facts([*training, *conditions.special_facts(material.recipes)], "Conditions", "conditions", Visibility.HTML)
        )
    machine = conditions.machine_facts(material.environment)
    return [*found, Facts(machine, "Machine and versions", "machine", Visibility.HTML)]


def tiles(rows: Sequence[ShownRow]) -> list[Tile]:
    """Return tiles with the main numbers of the fastest row, or an empty list if rows were not compared."""
    row = fastest_row(rows)
    if row is None:
        return []
    bounds = row.iteration_mean_s_interval95
    interval = duration_interval(bounds) if bounds else "one repeat"
    found = [Tile("Time per step", duration(row.iteration_s.mean), f"{row.label}, {interval}")]
    found.append(Tile("Samples per second", f"{row.samples_per_s:,.0f}", f"on {counted(row.workers, 'worker')}"))
    if row.speedup is not None and row.workers > 1:
        note = f"over one worker, efficiency {share(row.efficiency)}"
        found.append(Tile("Speed-up", f"{times(row.speedup)} {TIMES}", note))
    if row.split is not None:
        mean = row.split.mean
        if mean.overlap_fraction is not None:
            found.append(Tile("Communication hidden", share(mean.overlap_fraction), "under computing"))
        if mean.step_s:
            found.append(Tile("Waiting", share(mean.waiting_s / mean.step_s), "of a step, for slower workers"))
    if row.final.test_accuracy is not None:
        found.append(Tile("Test accuracy", percentage(row.final.test_accuracy), "at the end"))
    if row.workers > 1:
        sent = max((worker.sent_bytes for worker in row.per_worker), default=None)
        found.append(Tile("Sent per worker", amount(sent), "over the run, at most"))
    return found


def _chart_sections(rows: Sequence[ShownRow]) -> list[PageSection]:
    """Return the chart sections that every comparison page has, with a table of times in the section "speed"."""
    from paceline.present.charts.registry import make_sections

    sections = make_sections(rows)
    for section in sections:
        if section.id == "speed":
            section.tables.insert(0, speed_table(rows))
    return sections


def _recipe_texts(material: PageContent) -> list[tuple[str, str]]:
    """Return (name, TOML) for each distinct recipe. The name is that of the first result with this recipe."""
    texts: dict[str, str] = {}
    for source in material.sources:
        if source.recipe is not None:
            texts.setdefault(source.recipe.to_toml(), source.name)
    return [(name, text) for text, name in texts.items()]


def study_of(material: PageContent, kind: type[S]) -> S:
    """Return the result of the only study on a page. The result must be of type `kind`."""
    content = material.sources[0].content
    assert isinstance(content, kind)
    return content
