"""Data classes of a page of results: columns, tables, findings, facts, sections with charts.

A page is what one command shows. terminal.py, html.py and text_renderers.py render it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Flag, auto
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from paceline.present.styles import Style
from paceline.results import Row

if TYPE_CHECKING:
    from paceline.present.chart import Chart
    from paceline.present.pages import PageContent
    from paceline.runs import Stored

T = TypeVar("T")

ALWAYS_SHOWN = 100  # importance of a column that a terminal of any width shows


class Visibility(Flag):
    """The renderers that show a column, a table, a finding or a list of facts.

    `NOTEBOOK` includes plain text in a Python session.
    """

    TERMINAL = auto()
    MARKDOWN = auto()
    NOTEBOOK = auto()
    HTML = auto()
    TEXT = TERMINAL | MARKDOWN | NOTEBOOK
    ALL = TERMINAL | MARKDOWN | NOTEBOOK | HTML


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table. The first column of a table names the row.

    `text` returns the text of the cell in a row. `help` explains the column without repeating its title, as in "mean
    over workers", and is part of the legend below the table. In a narrow terminal, the column of the lowest
    `importance` is left out first.
    """

    title: str
    text: Callable[[T], str]
    _: KW_ONLY
    short: str = ""  # the heading in a terminal; if empty, the full title
    group: str = ""  # a heading over several columns of an HTML table
    is_number: bool = True
    importance: int = ALWAYS_SHOWN
    places: Visibility = Visibility.ALL
    help: str = ""

    @property
    def heading(self) -> str:
        """The heading in a terminal: the short title, or the full title if there is no short one."""
        return self.short or self.full_title

    @property
    def full_title(self) -> str:
        """The heading of the column's group, if it has one, followed by the title."""
        return f"{self.group} {self.title}".strip()


@dataclass(frozen=True, kw_only=True)
class Table(Generic[T]):
    """A table: its columns, which format the cells, and its rows.

    `notes` are sentences below the table, in addition to the explanations of columns. `definitions` explain words of
    the findings, as in "exact: the same update as one worker".
    """

    columns: Sequence[Column[T]]
    rows: Sequence[T]
    title: str = ""
    id: str = ""
    notes: Sequence[str] = ()
    definitions: Sequence[str] = ()
    places: Visibility = Visibility.ALL
    keys: Sequence[int] = ()  # per row: index of its strategy in `Page.key`, for the colour
    best: int | None = None  # index of the row to highlight
    full_names: Sequence[str] = ()  # per row: the full label; the table may show a short form
    summary: str = ""  # text after the title of a collapsed table on the HTML page

    def columns_in(self, place: Visibility) -> list[Column[T]]:
        return [column for column in self.columns if place & column.places]

    def cells(self, columns: Sequence[Column[T]]) -> list[list[str]]:
        return [[column.text(row) for column in columns] for row in self.rows]


def plain_table(headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str] = ()) -> Table[Any]:
    """Return a table of strings. `numbers` has the headings of the columns that are aligned as numbers."""

    def column(index: int, heading: str) -> Column[Sequence[str]]:
        return Column(title=heading, text=lambda row: row[index], is_number=heading in numbers)

    return Table(columns=[column(index, heading) for index, heading in enumerate(headings)], rows=rows)


Kind = Literal["headline", "finding", "detail", "caution", "problem", "code"]


@dataclass(frozen=True)
class Finding:
    """One or more sentences about one subject. The text is complete without the title.

    The kind decides how renderers show it: the headline is the main result, a detail is on the HTML page only, a
    caution limits the validity of the measurements, a problem is highlighted, and code is not wrapped, so that it can
    be copied.
    """

    text: str
    title: str = ""
    kind: Kind = "finding"
    places: Visibility = Visibility.ALL


@dataclass(frozen=True)
class Tile:
    """A number at the top of the HTML page, with its name and a note."""

    name: str
    value: str
    note: str


Fact = tuple[str, str]


@dataclass(frozen=True)
class Facts:
    """A list of names and values, such as the conditions of a measurement."""

    rows: Sequence[Fact]
    title: str = ""
    id: str = ""
    places: Visibility = Visibility.ALL


@dataclass(frozen=True)
class PageSection:
    """A section of the HTML page with charts and tables.

    `missing` has a sentence for each chart that could not be drawn.
    """

    id: str
    title: str
    charts: list[Chart] = field(default_factory=list)
    tables: list[Table[Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class KeyEntry:
    """An entry in the page's legend: a strategy or other series, and its style in all charts."""

    label: str
    style: Style
    full_label: str = ""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Everything that a command shows of one study or several runs, for all renderers.

    A terminal shows tables above findings; the HTML page shows findings, `tables`, the sections with charts, and
    `appendix`, in this order. `make_sections` is called only for HTML pages and for images of charts.
    """

    kind: str  # the line above the title, such as "Paceline report"
    title: str
    description: str = ""
    intro: Sequence[str] = ()  # lines that identify the stored results: name, status, model and data
    started: str = ""
    num_sources: int = 1
    findings: Sequence[Finding] = ()
    tiles: Sequence[Tile] = ()
    tables: Sequence[Table[Any]] = ()
    tables_title: str = "Strategies"
    facts: Sequence[Facts] = ()
    key: Sequence[KeyEntry] = ()  # legend of all charts
    names: Sequence[Fact] = ()  # shortened labels, each with the full label
    make_sections: Callable[[], Sequence[PageSection]] = tuple
    appendix: Sequence[Table[Any]] = ()  # collapsed tables: the workers of every row
    appendix_title: str = "Workers"
    recipes: Sequence[Fact] = ()  # each: name of a run or study, and its recipe as TOML
    foot: str = ""  # where the results are stored

    @property
    def headline(self) -> str:
        """The text of the finding of kind "headline", or an empty text if there is none."""
        return next((finding.text for finding in self.findings if finding.kind == "headline"), "")

    def findings_in(self, place: Visibility) -> list[Finding]:
        return [finding for finding in self.findings if place & finding.places]


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The cells of a run or study in the list that `paceline runs` prints."""

    strategy: str
    workers: int | None = None
    iteration_s: float | None = None
    test_accuracy: float | None = None


class Presenter(ABC):
    """Base class of presenters. A presenter makes the page of one type of study; a registry finds it in studies/."""

    name: ClassVar[str] = ""  # name of the study; "run" for a run, "several" for several runs and studies on one page
    shows_empty: ClassVar[bool] = False  # whether the presenter can make the page of a study without rows

    @abstractmethod
    def page(self, material: PageContent) -> Page: ...

    def best(self, rows: Sequence[Row]) -> Row:
        """Return the row that represents the study in the list of runs: the fastest row."""
        from paceline.study.run_results import fastest_of

        return fastest_of(rows)

    def summary(self, stored: Stored) -> RunSummary:
        """Summarise a run or study by its fastest strategy, for the list of runs.

        Without a result, the summary names a run's requested strategy or a study's number of requested strategies.
        """
        if not stored.results:
            requested = f"{len(stored.strategies)} requested" if stored.kind == "study" else stored.requested_label
            return RunSummary(strategy=requested)
        rows = [result for result in stored.results if isinstance(result, Row)]
        best = self.best(rows) if rows else stored.results[0]
        return RunSummary(
            strategy=f"fastest: {best.label}" if rows else best.label,
            workers=best.workers,
            iteration_s=best.iteration_s.mean,
            test_accuracy=best.final.test_accuracy,
        )
