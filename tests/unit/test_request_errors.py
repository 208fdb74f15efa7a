"""Errors about commands, options and arguments are one sentence in Paceline's style."""

from __future__ import annotations

import pytest

from command import run_command


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("compare --workers four", "--workers must be a whole number, not 'four'"),
        ("compare --epochs 0.5", "--epochs must be a whole number, not '0.5'"),
        ("compare --lr abc", "--lr must be a number, not 'abc'"),
        ("compare --repeats 0", "--repeats must be at least 1, not 0"),
        ("compare --metrics-port 99999", "--metrics-port must be at most 65535, not 99999"),
        ("compare --wrokers 3", "unknown option '--wrokers'; did you mean '--workers'?"),
        ("compare --qqqqqqq", "unknown option '--qqqqqqq'; see `paceline compare --help`"),
        ("compare --comm", "--comm needs a value"),
        ("compare --report=3", "option '--report' does not take a value"),
        ("compare vgg11 extra thing", "unexpected argument 'extra thing'; see `paceline compare --help`"),
        ("report", "paceline report needs RUN...; see `paceline report --help`"),
        ("comprae", "no such command 'comprae'; did you mean 'compare'?"),
        ("runs shwo", "no such command 'shwo'; did you mean 'show'?"),
        ("--versoin", "unknown option '--versoin'; did you mean '--version'?"),
    ],
)
def test_a_wrong_request_is_answered_in_one_line(words: str, sentence: str) -> None:
    said = run_command(*words.split())
    assert (said.code, said.out, said.err) == (2, "", f"paceline: {sentence}\n")


def test_without_arguments_the_help_is_shown() -> None:
    said = run_command()
    assert said.code == 2
    assert "Usage: paceline" in said.out + said.err
