"""Removal of control characters, wrapping, and file names from labels."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command import Said, run_command
from paceline.api.notebook_view import StudyView
from paceline.cli import main
from paceline.cli.output import PlainConsole
from paceline.cli.progress import strategy_progress
from paceline.errors import RunError, UsageError, WorkerError
from paceline.present.page_parts import plain_table
from paceline.present.terminal import show_tables
from paceline.results import StudyResult, changed
from paceline.runs import read, timestamped
from paceline.study.entries import Entry
from paceline.text import MOST_NAME_BYTES, file_name_of, plain_text, shortened
from report_samples import result, usual_study, write_run, write_study

HOSTILE = "r\x1b[31med\x1b[0m\x07 \x1b]0;title\x07\u202egnir\x9b2J\x85\u2028"
SHOWN = "red ]0;titlegnir"
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def assert_plain(said: Said) -> None:
    assert not CONTROL.search(said.out + said.err), repr(said.out + said.err)


class TestPlainText:
    def test_sequences_controls_and_overrides_are_removed(self) -> None:
        assert plain_text(HOSTILE) == SHOWN

    def test_lines_become_one_unless_they_are_kept(self) -> None:
        assert plain_text("a\n\tb\r\nc") == "a b c"
        assert plain_text("a\n\tb\r\nc", keep_lines=True) == "a\n\tb\nc"

    def test_halves_of_characters_can_be_encoded(self) -> None:
        assert plain_text(os.fsdecode(b"a\xff")).encode() == "a\N{REPLACEMENT CHARACTER}".encode()

    def test_letters_of_any_language_stay(self) -> None:
        text = "Größe 中文 עברית 👩\u200d🔬 ² % [bold]"
        assert plain_text(text) == text

    @given(st.text())
    def test_no_control_character_is_left_in_any_text(self, text: str) -> None:
        assert not CONTROL.search(plain_text(text))
        assert "\n" not in plain_text(text)
        assert plain_text(plain_text(text)) == plain_text(text)


def test_long_words_of_an_error_are_shortened() -> None:
    assert (
        shortened(f"not {'9' * 5000} is no number") == f"not {'9' * 200}\N{HORIZONTAL ELLIPSIS}{'9' * 50} is no number"
    )
    assert shortened("a " * 1000) == "a " * 1000


class TestFileNames:
    @pytest.mark.parametrize(
        ("label", "name"),
        [
            ("ring", "ring"),
            ("overlap:bucket_mb=5+int8", "overlap_bucket_mb=5+int8"),
            ("topk:ratio=0.05", "topk_ratio=0.05"),
            ("my/own.py:Mine", "my_own.py_Mine"),
            ("größe, 4", "größe__4"),
            (HOSTILE, "r__31med__0m____0_title__gnir_2J__"),
        ],
    )
    def test_a_label_as_a_name(self, label: str, name: str) -> None:
        assert file_name_of(label) == name

    def test_long_names_are_cut_and_stay_different(self) -> None:
        one, other = file_name_of("ü" * 300), file_name_of("ü" * 301)
        assert one != other
        assert max(len(one.encode()), len(other.encode())) <= MOST_NAME_BYTES

    def test_stamped_names_have_fewer_signs(self) -> None:
        assert timestamped("a=b+c\x1b[31m")[16:] == "a-b-c--31m"


class TestStoredRuns:
    @pytest.fixture
    def out(self, tmp_path: Path) -> Path:
        write_run(tmp_path / f"a-{HOSTILE}", result(HOSTILE, 0.01))
        write_run(tmp_path / "b-failed", None, status="failed")
        summary = tmp_path / "b-failed" / "summary.json"
        summary.write_text(json.dumps({**json.loads(summary.read_text()), "error": HOSTILE}))
        study = usual_study()
        first, second, *others = study.results
        results = [first, changed(second, label=HOSTILE), *others]
        write_study(tmp_path / "c-study", changed(study, results=results))
        (tmp_path / f"d-{HOSTILE}").mkdir()
        (tmp_path / f"d-{HOSTILE}" / "summary.json").write_text("{")
        return tmp_path

    def test_the_list(self, out: Path) -> None:
        said = run_command("runs", "--out", str(out), width=200)
        assert said.code == 0
        assert f"a-{SHOWN}" in said.out
        assert_plain(said)

    @pytest.mark.parametrize("name", ["a-", "b-failed", "c-study"])
    def test_one_of_them(self, out: Path, name: str) -> None:
        said = run_command("runs", "--out", str(out), "show", name, width=200)
        assert said.code == 0
        assert SHOWN in said.out
        assert_plain(said)

    def test_an_unreadable_one_is_an_error(self, out: Path) -> None:
        said = run_command("runs", "--out", str(out), "show", "d-")
        assert said.code == 2
        assert_plain(said)

    def test_markdown_on_standard_output(self, out: Path) -> None:
        page = str(out / "page.html")
        said = run_command("report", str(out / "c-study"), "--markdown", "-", "-o", page)
        assert said.code == 0
        assert "title" in said.out
        assert_plain(said)

    def test_a_result_of_the_python_api(self, out: Path) -> None:
        study = read(out / "c-study").content
        assert isinstance(study, StudyResult)
        assert SHOWN in repr(StudyView(study, out))
        assert not CONTROL.search(repr(StudyView(study, out)))

    def test_a_name_that_is_not_utf8(self, tmp_path: Path) -> None:
        write_run(tmp_path / os.fsdecode(b"run-\xff"), result("ring", 0.01))
        said = run_command("runs", "--out", str(tmp_path))
        assert said.code == 0
        assert "run-\N{REPLACEMENT CHARACTER}" in said.out


@pytest.mark.parametrize(
    "error", [UsageError(HOSTILE), RunError(HOSTILE), WorkerError(1, HOSTILE, traceback=f"first\n{HOSTILE}")]
)
def test_errors_are_printed_without_controls(error: Exception) -> None:
    error.add_note(HOSTILE)
    err = io.StringIO()
    with (
        mock.patch("paceline.cli.make_app", side_effect=error),
        mock.patch.dict(os.environ, {"TORCH_CPP_LOG_LEVEL": "FATAL"}),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit),
    ):
        main()
    assert err.getvalue().count(SHOWN) >= 2
    assert not CONTROL.search(err.getvalue())


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_shows_no_controls_of_others(is_terminal: bool) -> None:
    entry = Entry(HOSTILE, "ring", "ring", {}, "fp32", "EXACT", 1)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), mock.patch.dict(os.environ, {"COLUMNS": "120", "TERM": "xterm"}):
        console = PlainConsole()
        console._force_terminal = is_terminal
        with strategy_progress([entry], repeats=1, console=console) as bars:
            bars.started(entry, 0)
            bars.event(entry, {"kind": "warning", "text": HOSTILE, "rank": 0})
    assert SHOWN in out.getvalue()
    own = re.sub("\x1b\\[[0-?]*[A-Za-z]", "", out.getvalue()) if is_terminal else out.getvalue()  # colours, the cursor
    assert not CONTROL.search(own.replace("\r", ""))


def test_columns_stay_aligned() -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), mock.patch.dict(os.environ, {"COLUMNS": "80"}):
        rows = [(name, "12") for name in ("a\x07\u202e\x1bb", "ab")]
        show_tables(PlainConsole(), [plain_table(("name", "value"), rows, numbers=("value",))])
    lines = [line for line in out.getvalue().splitlines() if "12" in line]
    assert len(lines) == 2
    assert lines[0] == lines[1]


def test_no_markup_arises_from_what_is_removed() -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        PlainConsole().print("[\x1b/nothing]")
    assert out.getvalue() == "[/nothing]\n"
