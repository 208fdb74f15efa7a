"""Signals: they end a command like Ctrl-C, at any moment, and never in the middle of a protected block."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from paceline.interrupts import deferred

HEAD = """
import os, signal, sys, time
from paceline import interrupts

def send(name="SIGTERM"):
    os.kill(os.getpid(), getattr(signal, name))

"""
INSTALL = "interrupts.install()\n"


def ran(code: str, *, install: bool = True, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HEAD + (INSTALL if install else "") + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=cwd)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_every_signal_is_an_interrupt(name: str) -> None:
    code = f"""
try:
    send({name!r})
    time.sleep(10)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = ran(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_an_ignored_signal_stays_ignored() -> None:
    code = "signal.signal(signal.SIGHUP, signal.SIG_IGN)\ninterrupts.install()\nsend('SIGHUP')\nprint('on')"
    assert ran(code, install=False).stdout == "on\n"


def test_clean_up_is_not_interrupted() -> None:
    code = """
try:
    try:
        send()
        time.sleep(10)
    finally:
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGINT"):
            send(name)
            time.sleep(3 * interrupts.RETRY_S)
        print("cleaned up")
except KeyboardInterrupt:
    try:
        raise RuntimeError("another") from None
    except RuntimeError:
        send()
        print("once")
"""
    done = ran(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "cleaned up\nonce\n", "")


def test_an_interrupt_in_a_destructor_is_not_lost() -> None:
    code = """
class Last:
    def __del__(self):
        send()
        time.sleep(0)

try:
    last = Last()
    del last
    time.sleep(10)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = ran(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_an_interrupt_that_is_swallowed_is_raised_again() -> None:
    code = """
try:
    try:
        send()
        time.sleep(10)
    except:
        pass
    time.sleep(10)
except KeyboardInterrupt:
    print("interrupted")
"""
    assert ran(code).stdout == "interrupted\n"


def test_other_errors_in_destructors_are_still_reported() -> None:
    done = ran("class Last:\n    def __del__(self): 1 / 0\nLast()")
    assert "ZeroDivisionError" in done.stderr


SLOW = "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(0.3)\nprint('imported')"


def test_an_import_is_completed_before_clean_up(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    code = """
interrupts.require_clean_up()
try:
    import slow
    time.sleep(10)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = ran(code, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "imported\ninterrupted\n", "")


def test_a_second_signal_does_not_wait_for_an_import(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(f"{SLOW}\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(10)")
    code = "interrupts.require_clean_up()\ntry:\n    import slow\nexcept KeyboardInterrupt:\n    print('interrupted')"
    assert ran(code, cwd=tmp_path).stdout == "imported\ninterrupted\n"


def test_a_command_that_holds_nothing_exits_in_the_middle_of_an_import(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    done = ran("import slow", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "paceline: interrupted\n")


def test_the_command_says_that_it_was_interrupted() -> None:
    code = """
import types
def command():
    send()
    time.sleep(10)
sys.modules["paceline.cli"] = types.SimpleNamespace(main=command)
from paceline.__main__ import main
main()
"""
    done = ran(code, install=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "paceline: interrupted\n")


def test_an_interrupt_inside_typer_has_the_same_exit_code() -> None:
    code = """
import paceline.cli
def make_app():
    def app(prog_name):
        try:
            send()
            time.sleep(10)
        except KeyboardInterrupt as error:
            raise SystemExit(130) from error
    return app
paceline.cli.make_app = make_app
from paceline.__main__ import main
main()
"""
    done = ran(code, install=False)
    assert (done.returncode, done.stderr) == (1, "paceline: interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_deferred_signal_takes_effect_at_the_end(number: signal.Signals) -> None:
    received: list[int] = []
    before = signal.signal(number, lambda number, _: received.append(number))
    try:
        with deferred():
            signal.raise_signal(number)
            with deferred():
                signal.raise_signal(number)
            assert received == []
        assert received == [number]
        assert signal.getsignal(number) is not before
    finally:
        signal.signal(number, before)


def test_a_library_is_interrupted_after_the_protected_block() -> None:
    steps: list[str] = []

    def store() -> None:
        with deferred():
            signal.raise_signal(signal.SIGINT)
            steps.append("stored")

    with pytest.raises(KeyboardInterrupt):
        store()
    assert steps == ["stored"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_in_a_protected_block_is_raised() -> None:
    with pytest.raises(ZeroDivisionError), deferred():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_defer_nothing() -> None:
    before, errors = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        try:
            with deferred():
                assert signal.getsignal(signal.SIGTERM) is before
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert errors == []
