"""The page of a comparison of strategies, and the page of several runs and studies."""

from __future__ import annotations

from typing import ClassVar

from paceline.present.comparison_page import comparison_page, study_of
from paceline.present.page_parts import Finding, Page, Presenter
from paceline.present.pages import PageContent, requested_repeats
from paceline.present.studies.sweep import is_sweep, sweep_page
from paceline.results import CompareResult


class ComparePresenter(Presenter):
    name: ClassVar[str] = "compare"

    def page(self, material: PageContent) -> Page:
        failed = study_of(material, CompareResult).failed or []
        also = [
            Finding(f"{one.label} diverged in repeat {one.repeat}: {one.error}.", "Diverged", "problem")
            for one in failed
        ]
        return comparison_page(material, also=also)


class SeveralPresenter(Presenter):
    """Makes the page of several runs and studies.

    The page is that of a sweep if all rows are points of sweeps over the same settings, else that of a comparison.
    """

    name: ClassVar[str] = "several"

    def page(self, material: PageContent) -> Page:
        if is_sweep(material.rows):
            return sweep_page(material, repeats=min(map(requested_repeats, material.sources)))
        return comparison_page(material)
