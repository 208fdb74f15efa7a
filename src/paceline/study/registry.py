"""Registry of studies, found by walking this package: one file or folder with one class each."""

from __future__ import annotations

from paceline.plugins import Registry
from paceline.study.base import Study

studies: Registry[Study] = Registry("study", "paceline.study", Study)
