"""Colours, dashes and markers of charts: for strategies, for the parts of a step and for workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.results import Row

# Okabe and Ito's palette for colour-blind readers, with violet and brown instead of yellow and black, which are
# unreadable on white or black. The baselines (one worker, and workers that never synchronise) are grey.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7A5FB5", "#8C6D31")
REFERENCES = {"one-worker": "#6B7683", "none": "#A0A8B2"}
# Where colours repeat, the dash and the marker distinguish strategies.
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x")

# The parts of a step, stacked in the order of `PARTS`, in colours of Paul Tol's bright scheme.
COMPUTE, COMMUNICATION, WAITING, DATA, REST = "#4477AA", "#EE6677", "#CCBB44", "#228833", "#A3A9B0"
PARTS = {
    "compute": COMPUTE,
    "overlap": COMPUTE,  # computing and communicating at once: stripes in both colours
    "communication": COMMUNICATION,
    "waiting": WAITING,
    "data": DATA,
    "rest": REST,
}
PART_NAMES = {part: part for part in PARTS} | {"rest": "other"}  # in charts, tables and sentences
PHASES = {
    "data": DATA,
    "forward": "#7FA8D4",
    "backward": COMPUTE,
    "optimizer": "#7A6FB0",
    "evaluation": REST,
    "communication": "#9B5B3F",
}
# Communication operations in a timeline. Operations that are used together, such as send and recv, have clearly
# different colours, and no operation has the colour of a phase.
OPERATIONS = {
    "all_reduce": COMMUNICATION,
    "send": COMMUNICATION,
    "recv": "#882255",
    "gather": "#F08A4B",
    "scatter": "#B03A9B",
    "reduce_scatter": "#F08A4B",
    "all_gather": "#882255",
    "broadcast": "#B03A9B",
    "barrier": "#8C6D31",
}

# Colours of the workers of one strategy: similar in lightness, readable on white and on black.
RAMP = ("#3B6FB6", "#2A9D8F", "#7CB342", "#B08D2F", "#8E5EA2", "#C2577A", "#5A7F94", "#A46A3F")


@dataclass(frozen=True)
class Style:
    """The colour, dash and marker of a strategy in every chart."""

    colour: str
    dash: str = "solid"
    symbol: str = "circle"

    @property
    def strokes(self) -> str:
        """The dash as a value of the SVG attribute stroke-dasharray."""
        return {"solid": "", "dash": "5 3", "dot": "2 2", "dashdot": "5 2 2 2", "longdash": "8 3"}[self.dash]


def styles(strategies: Sequence[str]) -> list[Style]:
    """Return a style for each strategy name, in the order of the names.

    Up to five strategies of the same colour differ in dash and marker. After that, styles repeat.
    """
    hues = iter(PALETTE * (len(strategies) // len(PALETTE) + 1))
    used: dict[str, int] = {}
    found = []
    for strategy in strategies:
        colour = REFERENCES.get(strategy) or next(hues)
        turn = used.get(colour, 0)
        used[colour] = turn + 1
        found.append(Style(colour, DASHES[turn % len(DASHES)], SYMBOLS[turn % len(SYMBOLS)]))
    return found


def styles_of(rows: Sequence[Row]) -> list[Style]:
    """Return the style of each row's strategy."""
    return styles([row.strategy for row in rows])


def worker_style(rank: int) -> Style:
    turn = rank // len(RAMP) + rank  # neighbours differ in dash as well as in colour
    return Style(RAMP[rank % len(RAMP)], DASHES[turn % len(DASHES)], SYMBOLS[turn % len(SYMBOLS)])
