"""Registry of studies. It imports the modules of this package to find their study classes."""

from __future__ import annotations

from paceline.plugins import Registry
from paceline.study.base import Study

studies: Registry[Study] = Registry("study", "paceline.study", Study)
