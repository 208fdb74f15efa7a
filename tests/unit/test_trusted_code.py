"""Code that a stored run names is executed only if it lies in the current folder, or with --trust."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from command import run_command
from golden_files import STORED
from paceline.errors import UsageError
from paceline.trusted_code import check_trusted, references_in

MODEL = """
from pathlib import Path

from paceline.models.lenet5 import LeNet5

Path(__file__).with_name("executed").touch()


def model(shape, num_classes):
    return LeNet5(shape, num_classes)
"""


@pytest.fixture(autouse=True)
def forgets_modules() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("paceline_user_", "somebodys")):
            del sys.modules[name]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, `work`, beside a folder `elsewhere`. Both hold the same model."""
    for name in ("work", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def stored_run(here: Path, model: str) -> Path:
    run = here / "runs" / "run"
    shutil.copytree(STORED / "run-ring", run)
    recipe = run / "recipe.toml"
    text = recipe.read_text()
    assert 'name = "lenet5"' in text
    recipe.write_text(text.replace('name = "lenet5"', f'name = "{model}"'))
    return run


def test_references_are_found_in_every_text() -> None:
    values = {
        "model": {"name": "a/b.py:make"},
        "strategies": ["ring", "ring,x y.py:Star:rounds=2+int8", "overlap+mine.py:Codec"],
        "loss": "package.module:loss",
        "plain": ["folder:/a.b/c", "synthetic:1x28x28x2", "parameter-server:servers=2", 3, None, True, "10:30"],
        "evil.py:key": 1,
    }
    found = set(references_in(values))
    assert {"a/b.py:make", "package.module:loss", "x y.py:Star", "mine.py:Codec", "evil.py:key"} <= found
    assert all(".py:" in one or one == "package.module:loss" for one in found)
    assert {"/x,y/evil.py:f", "/a+b/evil.py:f"} <= set(references_in(["/x,y/evil.py:f", "/a+b/evil.py:f"]))


def test_code_in_the_current_folder_is_trusted(here: Path) -> None:
    folder = here / "runs" / "run"
    (here / "models").mkdir()
    (here / "models" / "deep.py").touch()
    for name in ("model.py:model", "./model.py:model", "models/deep.py:make", f"{here}/model.py:model", "missing.py:x"):
        check_trusted({"model": name}, "run 'x'", folder=folder)


@pytest.mark.parametrize(
    "name",
    [
        "../elsewhere/model.py:model",
        "models/../../elsewhere/model.py:model",
        "{elsewhere}/model.py:model",
        "link.py:model",
        "linked/model.py:model",
        "~nobody-of-this-name/model.py:model",
        "\0.py:model",
        "ring,{elsewhere}/model.py:Star:rounds=2+int8",
        "runs/run/model.py:model",  # came with the run
        "runs/other/model.py:model",
    ],
)
def test_code_elsewhere_is_not(here: Path, name: str) -> None:
    elsewhere = here.parent / "elsewhere"
    (here / "link.py").symlink_to(elsewhere / "model.py")
    (here / "linked").symlink_to(elsewhere)
    values = {"recipe": {"model": {"name": name.format(elsewhere=elsewhere)}}}
    with pytest.raises(
        UsageError, match=r"run 'x' names '.*is not part of your code in the current folder, so it is not"
    ):
        check_trusted(values, "run 'x'", folder=here / "runs" / "run")
    check_trusted(values, "run 'x'", folder=here / "runs" / "run", trust=True)
    check_trusted(
        values, "run 'x'", folder=here / "runs" / "run", typed={"model.name": values["recipe"]["model"]["name"]}
    )


def test_code_beside_runs_in_the_current_folder_is_trusted(here: Path) -> None:
    check_trusted("model.py:model", "run 'x'", folder=here / "run")
    with pytest.raises(UsageError, match="is not part of your code"):
        check_trusted("run/model.py:model", "run 'x'", folder=here / "run")
    study = here / "results" / "study"
    (study / "runs" / "ring-1").mkdir(parents=True)
    (study / "study.json").touch()
    with pytest.raises(UsageError, match="is not part of your code"):
        check_trusted("results/study/model.py:model", "run 'x'", folder=study / "runs" / "ring-1")


def test_modules_are_trusted_by_their_file_without_importing_them(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, elsewhere = here / "runs" / "run", here.parent / "elsewhere"
    for place, package in ((here, "somebodys_own"), (elsewhere, "somebodys_other")):
        (place / package).mkdir()
        (place / package / "__init__.py").write_text("raise SystemExit('imported')")
        (place / package / "module.py").touch()
        monkeypatch.syspath_prepend(str(place))
    check_trusted("somebodys_own.module:make", "run 'x'", folder=folder)
    for name in (
        "somebodys_other.module:make",
        "subprocess.sub:run",
        "os.path:join",
        "paceline.runs.store:delete",
        "a..b:c",
    ):
        with pytest.raises(UsageError, match=r"is not part of your code in the current folder"):
            check_trusted(name, "run 'x'", folder=folder)
    assert "somebodys_own" not in sys.modules


COMMANDS = (["quantize", "run", "--no-onnx", "--samples", "8", "--no-report"], ["dataflow", "network", "run"])


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_commands_execute_a_stored_runs_model_only_if_trusted(here: Path, words: list[str]) -> None:
    elsewhere = here.parent / "elsewhere"
    stored_run(here, f"{elsewhere}/model.py:model")
    said = run_command(*words)
    assert said.code == 2
    assert "so it is not executed; run the command in the folder of the code, or add --trust" in " ".join(
        said.err.split()
    )
    assert not (elsewhere / "executed").exists()
    said = run_command(*words, "--trust")
    assert said.code == 0, said.err
    assert (elsewhere / "executed").exists()


def test_a_model_in_the_current_folder_needs_no_option(here: Path) -> None:
    stored_run(here, "model.py:model")
    said = run_command("dataflow", "network", "run")
    assert said.code == 0, said.err
    assert (here / "executed").exists()


def test_a_model_on_the_command_line_is_trusted(here: Path) -> None:
    name = f"{here.parent}/elsewhere/model.py:model"
    stored_run(here, name)
    said = run_command(*COMMANDS[0], "--model", name)
    assert said.code == 0, said.err


def test_a_model_that_weights_name_is_never_executed(here: Path) -> None:
    save_file({"weight": torch.zeros(1)}, here / "weights.safetensors", {"model": "model.py:model"})
    for more in ([], ["--trust"]):
        said = run_command("quantize", "weights.safetensors", "--data", "mnist-mini", *more)
        assert said.code == 2
        assert "code that a file of weights names is never executed; add --model" in " ".join(said.err.split())
        assert not (here / "executed").exists()


def test_a_resumed_study_executes_only_trusted_code(here: Path) -> None:
    elsewhere = here.parent / "elsewhere"
    study = here / "runs" / "study"
    shutil.copytree(STORED / "study-compare", study)
    file = study / "study.json"
    stored = json.loads(file.read_text())
    stored["status"] = "interrupted"
    stored["recipe"]["model"]["name"] = f"{elsewhere}/model.py:model"
    file.write_text(json.dumps(stored))
    said = run_command("compare", "--resume", "study")
    assert said.code == 2
    assert "study 'study' names" in said.err
    assert "or add --trust if you trust it" in " ".join(said.err.split())
    assert not (elsewhere / "executed").exists()
    said = run_command("compare", "--trust")
    assert (said.code, "--trust needs --resume" in said.err) == (2, True)


@pytest.mark.parametrize(
    "words",
    [
        ("runs",),
        ("runs", "show", "run"),
        ("runs", "diff", "run", str(STORED / "run-straggler")),
        ("report", "run"),
        ("trace", "run"),
        ("export", "run", "--to", "csv", "-o", "exported"),
    ],
    ids=lambda words: "-".join(words[:2]),
)
def test_other_commands_execute_nothing_of_a_stored_run(here: Path, words: tuple[str, ...]) -> None:
    run = stored_run(here, "model.py:model")
    recipe = run / "recipe.toml"
    text = recipe.read_text()
    for key, value in (("strategy", "ring"), ("loss", "cross-entropy"), ("name", "mnist-mini")):
        text = text.replace(f'{key} = "{value}"', f'{key} = "model.py:model"')
    assert text.count("model.py:model") >= 3
    recipe.write_text(text)
    said = run_command(*words)
    assert said.code == 0, said.err
    assert not (here / "executed").exists()
