"""The page of a reproduced experiment, with measured and published numbers in separate tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.present.charts.registry import make_section
from paceline.present.charts.reproduce import figure_text, heading
from paceline.present.columns import comparison_table
from paceline.present.comparison_page import comparison_page, study_of
from paceline.present.numbers import DASH, megabytes, share
from paceline.present.page_parts import Column, Finding, Page, PageSection, Presenter, Table, Visibility
from paceline.present.pages import PageContent
from paceline.results.study import OurRow, Proof, PublishedRow, PublishedTable, Reproduction, WorkerLoad

# Short headings with units, for a terminal.
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
# A narrow terminal leaves out the column with the lowest number first. It always shows columns that are not listed.
IMPORTANCE = {
    "train_accuracy_by_rank": 45,
    "messages_per_step": 12,
    "test_loss": 14,
    "share_of_ring": 16,
    "test_accuracy_by_rank": 46,
    "compute_share": 20,
    "communication_share": 22,
    "communication_estimated_s": 24,
    "test_accuracy_spread": 26,
    "convergence_steps": 28,
    "epoch_s": 30,
    "train_s": 50,
    "compute_s": 42,
    "replicas": 44,
    "sent_per_step": 46,
}
EXTRAPOLATED_NOTE = "~: extrapolated from the mean step time to a whole epoch, which was not run to its end."


class ReproducePresenter(Presenter):
    name: ClassVar[str] = "reproduce"

    def page(self, material: PageContent) -> Page:
        study = study_of(material, Reproduction)
        return comparison_page(
            material,
            first=experiment_findings(study),
            tables=[
                *experiment_tables(study),
                comparison_table(material.rows, places=Visibility.HTML | Visibility.MARKDOWN),
            ],
            sections=lambda: _sections(study),
        )


def experiment_findings(study: Reproduction) -> list[Finding]:
    """Return findings: the title of the experiment, whether replicas were equal, and cautions.

    The cautions are about conditions that differ from those of the published numbers.
    """
    text = f"{study.title}. Published figures, measured by others, are in separate tables."
    found = [Finding(text, "Experiment", "headline", Visibility.HTML | Visibility.MARKDOWN)]
    found += [proof_finding(one) for one in study.proof]
    return found + [Finding(note, "Conditions", "caution") for note in study.notes]


def proof_finding(one: Proof) -> Finding:
    """Return a finding that says whether the replicas on all ranks were equal after each synchronisation."""
    where = f"on all {one.ranks} ranks after {one.equal} of {one.synchronisations} synchronisations"
    error = f"relative error {one.max_relative_error:.0e} against one process that computes all workers in float64"
    if one.passed:
        text = f"{one.strategy}: bit-identical models {where}; {error}."
        return Finding(text, "Replicas proven")
    first = "" if one.first_unequal is None else f", first difference after step {one.first_unequal}"
    text = f"{one.strategy}: models differ between ranks: equal {where}{first}; {error}."
    return Finding(text, "Replicas proven", "problem")


def experiment_tables(study: Reproduction) -> list[Table[Any]]:
    """Return the tables for a terminal, Markdown and a notebook.

    These are a table of measured numbers, each published table, and a table of the resources that workers used. The
    list is empty if nothing was measured.
    """
    if not study.ours:
        return []
    tables: list[Table[Any]] = [measured_table(study, Visibility.TEXT)]
    tables += [_published_text_table(study, table) for table in study.published]
    load = load_table(study, Visibility.TEXT)
    return [*tables, load] if load.rows else tables


def _sections(study: Reproduction) -> list[PageSection]:

    section = make_section("published", "Published and measured", study)
    if study.ours:
        section.tables.append(measured_table(study, Visibility.HTML))
    for index, table in enumerate(study.published, 1):
        title = f"Published (reference {index}): {table.source}; {table.setting}"
        section.tables.append(published_table(study, table, table.rows, title=title))
    load = load_table(study, Visibility.HTML)
    if load.rows:
        section.tables.append(load)
    return [section]


def measured_table(study: Reproduction, places: Visibility) -> Table[OurRow]:
    names = [name for name in study.quantities if any(name in row.figures for row in study.ours)]
    is_extrapolated = any(figure.is_extrapolated for row in study.ours for figure in row.figures.values())
    columns: list[Column[OurRow]] = [
        Column(title="Row", short="row", text=lambda row: row.key, is_number=False),
        Column(title="Steps", text=lambda row: str(row.steps), places=Visibility.HTML | Visibility.MARKDOWN),
        *(_measured_column(study, name) for name in names),
    ]
    return Table(
        id="measured-here",
        title="Measured here",
        columns=columns,
        rows=study.ours,
        notes=[EXTRAPOLATED_NOTE] if is_extrapolated else (),
        places=places,
    )


def _measured_column(study: Reproduction, name: str) -> Column[OurRow]:
    def text(row: OurRow) -> str:
        figure = row.figures.get(name)
        if figure is None:
            return DASH
        return ("~" if figure.is_extrapolated else "") + figure_text(figure.value, study.quantities[name].unit)

    return _quantity_column(study, name, text)


def _quantity_column(study: Reproduction, name: str, text: Any) -> Column[Any]:
    return Column(
        title=heading(study.quantities[name]),
        short=SHORT.get(name, name),
        text=text,
        is_number=not (name.endswith("_by_rank") or name == "replicas"),
        importance=IMPORTANCE.get(name, 100),
    )


def _published_text_table(study: Reproduction, table: PublishedTable) -> Table[PublishedRow]:
    """Return a published table for a terminal, Markdown and a notebook.

    The table has the rows that were also measured here, or all rows if none was measured here.
    """
    keys = {row.key for row in study.ours}
    measured = [row for row in table.rows if row.ours in keys]
    num_left_out = len(table.rows) - len(measured) if measured else 0
    rows = "1 published row was" if num_left_out == 1 else f"{num_left_out} published rows were"
    notes = [f"{rows} not measured here; the HTML report shows all rows."] if num_left_out else []
    title = f"Published, {table.source}: {table.setting}"
    return published_table(study, table, measured or table.rows, title=title, notes=notes, places=Visibility.TEXT)


def published_table(
    study: Reproduction,
    table: PublishedTable,
    rows: Sequence[PublishedRow],
    *,
    title: str,
    notes: Sequence[str] = (),
    places: Visibility = Visibility.HTML,
) -> Table[PublishedRow]:
    names = [name for name in study.quantities if any(name in row.published for row in table.rows)]
    columns: list[Column[PublishedRow]] = [
        Column(title="Row, as published", short="row, as published", text=lambda row: row.name, is_number=False),
        Column(title="Paceline row", short="paceline row", text=lambda row: row.ours or "not run", is_number=False),
        *(_published_column(study, name) for name in names),
    ]
    return Table(title=title, columns=columns, rows=rows, notes=notes, places=places)


def _published_column(study: Reproduction, name: str) -> Column[PublishedRow]:
    def text(row: PublishedRow) -> str:
        value = row.published.get(name)
        return DASH if value is None else figure_text(value, study.quantities[name].unit)

    return _quantity_column(study, name, text)


@dataclass(frozen=True)
class Load:
    """The resources that one worker used when row `key` of the experiment was measured."""

    key: str
    load: WorkerLoad


def load_table(study: Reproduction, places: Visibility) -> Table[Load]:
    """Return a table of the resources that each worker used."""
    columns: list[Column[Load]] = [
        Column(title="Row", short="row", text=lambda one: one.key, is_number=False),
        Column(title="Worker", short="worker", text=lambda one: str(one.load.rank)),
        Column(
            title="CPU",
            short="CPU",
            text=lambda one: share(None if one.load.cpu_percent is None else one.load.cpu_percent / 100),
            help="100 % is one core",
        ),
        Column(title="Memory, MB", short="MB memory", text=lambda one: megabytes(one.load.peak_rss_bytes, 1)),
        Column(title="Network sent, MB", short="MB sent", text=lambda one: megabytes(one.load.network_sent_bytes, 1)),
        Column(
            title="Network received, MB",
            short="MB received",
            text=lambda one: megabytes(one.load.network_received_bytes, 1),
            importance=30,
        ),
        Column(
            title="Disk read, MB",
            short="MB read",
            text=lambda one: megabytes(one.load.disk_read_bytes, 1),
            importance=20,
        ),
        Column(
            title="Disk written, MB",
            short="MB written",
            text=lambda one: megabytes(one.load.disk_written_bytes, 1),
            importance=10,
        ),
    ]
    return Table(
        id="resources-of-workers",
        title="Resources of each worker, measured here in the first repeat",
        columns=columns,
        rows=[Load(row.key, one) for row in study.ours for one in row.load],
        places=places,
    )
