"""The presenter of every study, found by walking present/studies/."""

from __future__ import annotations

from paceline.plugins import Registry
from paceline.present.model import Presenter

presenters: Registry[Presenter] = Registry("study", "paceline.present.studies", Presenter)
