"""SIGINT, SIGTERM and SIGHUP end a command in the same way: with a KeyboardInterrupt that runs its clean-up.

`install` sets the handlers in the process of a command. `deferred` protects a block of code, in any process, from being
interrupted halfway. This module is imported before anything else, so it imports only modules that load fast.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # the name that type checkers know; importing `typing` takes milliseconds
if TYPE_CHECKING:
    import signal
    from types import FrameType, TracebackType
    from typing import Any, NoReturn
else:
    import _signal as signal  # the module in C below `signal`, which takes 5 ms to make enumerations

SENTENCE = "paceline: interrupted\n"  # printed by a command that was interrupted before it started anything
RETRY_S = 0.05  # time until an interrupt that could not be raised, or was lost, is raised again
SIGNALS = tuple(
    number for name in ("SIGINT", "SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None
)

_num_requests = 0  # signals since the start of the command
_needs_clean_up = False


def install() -> None:
    """Let SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread.

    Signals that this process ignores stay ignored, as SIGHUP under `nohup`.
    """
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _on_signal)
    signal.signal(signal.SIGALRM, _on_timer)
    sys.unraisablehook = _report_unraisable


def require_clean_up() -> None:
    """Note that the command starts processes or writes files, so that it must not end without clean-up."""
    global _needs_clean_up
    _needs_clean_up = True


def ignore_from_now_on() -> None:
    """Ignore further signals, because the command is over and only the interpreter's own clean-up remains."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)


def _on_signal(_: int, frame: FrameType | None) -> None:
    global _num_requests
    _num_requests += 1
    signal.setitimer(signal.ITIMER_REAL, RETRY_S, RETRY_S)
    _raise_interrupt(frame)


def _on_timer(_: int, frame: FrameType | None) -> None:
    """Raise an interrupt that waits for the end of an import, or that was lost, for example in a destructor."""
    _raise_interrupt(frame)


def _raise_interrupt(frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, except during clean-up after one. During an import, wait until the import is over.

    If there is nothing to clean up yet, the process exits during an import, because importing torch takes seconds. A
    second signal is raised in any case.
    """
    if _is_unwinding():
        return
    if _num_requests == 1 and _is_importing(frame):
        if not _needs_clean_up:
            _exit()
        return
    raise KeyboardInterrupt


def _exit() -> NoReturn:
    try:
        os.write(2, SENTENCE.encode())
    finally:
        os._exit(1)


def _is_unwinding() -> bool:
    """Return whether the main thread is handling a KeyboardInterrupt, so that clean-up is in progress."""
    error: BaseException | None = sys.exc_info()[1]
    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__context__
    return False


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether a module is being imported. An import that is interrupted can leave a C extension half loaded."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _report_unraisable(unraisable: Any) -> None:
    """Report an exception in a destructor or callback, except KeyboardInterrupt, which the timer raises again."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)


class deferred:
    """Context manager: signals that arrive in the block take effect at its end. In other threads it does nothing.

    It is a class because a generator could itself be interrupted between its start and the block.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._pending: list[int] = []

    def __enter__(self) -> None:
        try:
            for number in (*SIGNALS, signal.SIGALRM):
                handler = signal.getsignal(number)
                if handler not in (None, signal.SIG_IGN) and (number in SIGNALS or handler is _on_timer):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        except ValueError:  # raised in other threads, which never run handlers
            self._handlers = {}
        except BaseException:
            self._restore()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore()
        for number in dict.fromkeys(self._pending):
            signal.raise_signal(number)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._pending.append(number)

    def _restore(self) -> None:
        try:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
        except BaseException:  # a handler that was restored has just run: restore the others too
            self._restore()
            raise
