"""The studies, found by walking this package: one file or folder, one class."""

from __future__ import annotations

from paceline.plugins import Registry
from paceline.study.base import Study

studies: Registry[Study] = Registry("study", "paceline.study", Study)
