"""Emulated clusters as lines of text: the list of clusters, and the figures of a check."""

from __future__ import annotations

import os

from paceline.cluster.check import BANDWIDTH, CPU, LATENCY
from paceline.cluster.layout import ClusterLayout
from paceline.results.commands import ClusterFigure, ListedCluster


def cluster_line(one: ListedCluster) -> str:
    """A cluster in one line, beginning with its name."""
    first, last = one.addresses[0], one.addresses[-1]
    span = first if first == last else f"{first} to {last}"
    ends = f"ends with process {one.parent}" if one.parent else "stays until down"
    building = "" if one.is_ready else ", not ready"
    return f"{one.name:8}  {one.asked}, {span}, {len(one.processes)} processes inside, {ends}{building}"


def more_than_there_is(layout: ClusterLayout, num_cores: int | None = None) -> str:
    """A warning where the CPU shares of all nodes exceed the cores of the machine."""
    asked, there = sum(node.cpus or 0 for node in layout.nodes), num_cores or os.cpu_count() or 1
    if asked <= there:
        return ""
    return f"CPU shares add up to {asked:g} cores, this machine has {there}: they hold while not all nodes are busy."


def busy_machine(load: float | None = None, num_cores: int | None = None) -> str:
    """A warning where other load would lower the measured figures."""
    runnable, there = os.getloadavg()[0] if load is None else load, num_cores or os.cpu_count() or 1
    if runnable < 0.75 * there:
        return ""
    return f"This machine is busy (load {runnable:.1f} on {there} cores): figures may be lower than requested."


def figure_line(figure: ClusterFigure) -> str:
    """One figure, its request and the verdict."""
    line = f"{figure.what:10} {figure.where:10} {_quantity(figure, figure.measured):>14}"
    if figure.asked is None:
        return f"{line} (not requested)"
    percent = f"{100 * figure.measured / figure.asked:5.1f} %"
    return f"{line} of {_quantity(figure, figure.asked):14} {percent}  {'' if figure.is_met else 'NOT '}as asked"


def missed(wrong: list[ClusterFigure]) -> str:
    return "; ".join(f"{one.what} {one.where} {_quantity(one, one.measured)}" for one in wrong)


def _quantity(figure: ClusterFigure, value: float) -> str:
    if figure.what == BANDWIDTH:
        return f"{value / 1e9:.3f} Gbit/s" if value >= 1e9 else f"{value / 1e6:.1f} Mbit/s"
    if figure.what == LATENCY:
        return f"{1e3 * value:.3f} ms"
    return f"{value:.3f} cores" if figure.what == CPU else f"{value / 2**20:,.0f} MiB"
