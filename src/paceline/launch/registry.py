"""Choice of the launcher for a request: one of this package, or the user's own, named as `file.py:Class`."""

from __future__ import annotations

from paceline.errors import UsageError
from paceline.launch.base import Launcher, LaunchRequest
from paceline.plugins import Registry

launchers: Registry[Launcher] = Registry("launcher", "paceline.launch", Launcher)


def choose_launcher(request: LaunchRequest) -> Launcher:
    """Return the launcher that a request selects, and let the launcher check the request.

    Raises UsageError if the request has a mistake or selects two launchers.
    """
    launcher = find_launcher(request)
    launcher.check()
    return launcher


def find_launcher(request: LaunchRequest) -> Launcher:
    """Return the launcher that a request selects. Its `check` is not called."""
    return _class_for(request)(request)


def _class_for(request: LaunchRequest) -> type[Launcher]:
    fits = {cls: fit.because for cls in launchers.classes.values() if (fit := cls.detect(request)) is not None}
    by_option = [cls for cls, because in fits.items() if because]
    if request.launcher:
        chosen = launchers.get(request.launcher)
        for other in by_option:
            if other is not chosen:
                raise UsageError(
                    f"--launcher {request.launcher} conflicts with {fits[other]}, which selects launcher "
                    f"{other.name}; use one of the two"
                )
        return chosen
    if len(by_option) > 1:
        raise UsageError(_conflict(by_option, fits))
    return by_option[0] if by_option else next(cls for cls, because in fits.items() if not because)


def _conflict(classes: list[type[Launcher]], because: dict[type[Launcher], str]) -> str:
    known = [one.conflicts[other.name] for one in classes for other in classes if other.name in one.conflicts]
    if known:
        return known[0]
    one, other, *_ = classes
    return f"{because[one]} selects launcher {one.name}, {because[other]} launcher {other.name}; use one of the two"
