"""Registry of the study classes by name. It imports all modules of this package to find them."""

from __future__ import annotations

from paceline.plugins import Registry
from paceline.study.base import Study

studies: Registry[Study] = Registry("study", "paceline.study", Study)
