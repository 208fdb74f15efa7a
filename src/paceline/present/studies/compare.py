"""The page of a comparison, and of runs and studies side by side."""

from __future__ import annotations

from typing import ClassVar

from paceline.present.comparison import comparison_page
from paceline.present.material import Material
from paceline.present.model import Page, Presenter


class ComparePresenter(Presenter):
    name: ClassVar[str] = "compare"

    def page(self, material: Material) -> Page:
        return comparison_page(material)


class SeveralPresenter(ComparePresenter):
    """Runs and studies that a user puts side by side."""

    name: ClassVar[str] = "several"
