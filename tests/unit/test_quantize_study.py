"""`paceline quantize`: every stage in one table, stored and shown again, and what is refused with nothing written."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from command import Said, run_command
from paceline.errors import UsageError
from paceline.plugins import load_reference
from paceline.present.studies.quantize import headline, last_integer
from paceline.quantize.calibration import METHODS
from paceline.results.json_files import convert
from paceline.results.quantize import Quantization
from paceline.runs import list_runs
from paceline.study.quantize import QuantizeOptions, find_source, load_source, quantize
from paceline.study.quantize.stages import ModelScore, StageListener, calibration_batches, confusion
from trained_samples import LENET, trained_run, trained_state

QUICK = ("--samples", "128", "--test-samples", "200", "--no-onnx")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory.mktemp("trained") / "small")


@pytest.fixture(scope="module")
def done(run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Said, dict[str, Any], Path]:
    """What the command said, the study as JSON, and where it was stored."""
    out = tmp_path_factory.mktemp("quantized")
    said = run_command("quantize", str(run), "--out", str(out), "--json", str(out / "study.json"), "--no-onnx")
    assert said.code == 0, said.err
    return said, json.loads((out / "study.json").read_text()), out


def typed(study: dict[str, Any]) -> Quantization:
    return convert(study, Quantization)


def test_stages_are_judged_from_float_to_integers(done: tuple[Said, dict[str, Any], Path]) -> None:
    _, study, _ = done
    stages = [(row["stage"], row["calibration"]) for row in study["stages"]]
    chosen = study["chosen_calibration"]
    assert stages == [
        ("float", None),
        ("weights-per-tensor", None),
        ("weights-per-channel", None),
        *(("activations", method) for method in METHODS),
        ("biases", chosen),
        ("integer", chosen),
    ]
    assert study["stages"][0]["test_accuracy"] > 0.85
    for row in study["stages"]:
        assert abs(row["change_points"]) <= 1.0, row  # 5 of 500 images
        assert row["agreement"] >= 0.98, row


def test_the_float_stage_is_the_model_itself(run: Path, done: tuple[Said, dict[str, Any], Path]) -> None:
    loaded = load_source(find_source(str(run), Path("runs"), {}))
    images, target = loaded.data.test.batch(torch.arange(len(loaded.data.test)), 0)
    with torch.no_grad():
        right = (loaded.model(images).argmax(1) == target).double().mean()
    assert done[1]["stages"][0]["test_accuracy"] == pytest.approx(float(right))


def test_what_was_stored_is_listed_shown_and_reported(done: tuple[Said, dict[str, Any], Path], tmp_path: Path) -> None:
    said, study, out = done
    listed = run_command("runs", "--out", str(out))
    assert "fully integer" in listed.out
    shown = run_command("runs", "show", "last", "--out", str(out))
    assert shown.code == 0, shown.err
    for text in (said.out, shown.out):
        assert "fully integer" in text
        assert "Most quantization noise" in text
        assert headline(typed(study)).text in " ".join(text.split())
    differing = run_command("runs", "diff", "last", "last", "--out", str(out))
    assert differing.code == 2
    assert "no steps to compare" in differing.err
    page = tmp_path / "page.html"
    reported = run_command(
        "report", "last", "--runs", str(out), "-o", str(page), "--markdown", str(tmp_path / "table.md")
    )
    assert reported.code == 0, reported.err
    text = page.read_text()
    for chart in ("stages", "weights", "activations", "noise", "confusion"):
        assert f'id="quantize-{chart}"' in text
    assert 'id="quantize-latency"' not in text
    assert "| fully integer |" in (tmp_path / "table.md").read_text()


def test_pictures_count_every_weight_and_activation(done: tuple[Said, dict[str, Any], Path]) -> None:
    _, study, _ = done
    sizes = {name.partition(".")[0]: t.numel() for name, t in trained_state().items() if name.endswith("weight")}
    for layer in study["weights"]:
        assert sum(layer["before"]) == sum(layer["after"]) == sizes[layer["layer"]]
        assert 30 < layer["snr_db"] < 60  # eight bits are about 6 dB each, less what outliers take
    names = [tensor["tensor"] for tensor in study["activations"]]
    assert names[0] == "images"
    assert {"conv1", "conv2", "linear1", "linear2", "linear3"} < set(names)
    for tensor in study["activations"]:
        assert set(tensor["ranges"]) == set(METHODS)
        assert tensor["ranges"]["minmax"][1] >= tensor["ranges"]["percentile"][1]
    assert sum(map(sum, study["confusion"])) == study["num_test_samples"]


def test_the_stored_integers_are_integers(done: tuple[Said, dict[str, Any], Path]) -> None:
    (folder,) = (path for path in done[2].iterdir() if path.is_dir())
    tensors = load_file(folder / "integers.safetensors")
    kinds = {name.rpartition(".")[2]: tensor.dtype for name, tensor in tensors.items()}
    assert kinds == {"weight": torch.int8, "bias": torch.int32, "scales": torch.float32}
    weights = sum(tensor.numel() for name, tensor in tensors.items() if name.endswith(".weight"))
    assert done[1]["sizes"]["int8_bytes"] < 1.1 * weights


@pytest.mark.parametrize(
    "options",
    [("--symmetric",), ("--per-tensor",), ("--calibration", "minmax"), ("--calibration", "mse,percentile")],
    ids=" ".join,
)
def test_options_lead_to_integers_as_well(options: tuple[str, ...], run: Path, tmp_path: Path) -> None:
    file = tmp_path / "study.json"
    arguments = ("--out", str(tmp_path / "runs"), "--json", str(file), "--no-report")
    said = run_command("quantize", str(run), *QUICK, *options, *arguments)
    assert said.code == 0, said.err
    study = json.loads(file.read_text())
    last = last_integer(typed(study))
    assert last is not None
    assert last.agreement is not None
    assert last.agreement >= 0.97
    if "--calibration" in options:
        assert study["request"]["calibrations"] == options[1].split(",")
    if options == ("--symmetric",):
        assert {tensor["zero_point"] for tensor in study["activations"]} == {0}
    (integers,) = (tmp_path / "runs").glob("*/integers.safetensors")
    scales = load_file(integers)["conv2.scales"]
    assert (len(scales.unique()) == 1) == (options == ("--per-tensor",))


def test_a_checkpoint_is_enough(run: Path, tmp_path: Path) -> None:
    inside = run / "checkpoints" / "final.safetensors"
    outside = tmp_path / "weights.safetensors"
    outside.write_bytes(inside.read_bytes())
    for path, options in ((inside, ()), (outside, ("--data", "mnist-mini"))):
        out = tmp_path / path.stem
        said = run_command("quantize", str(path), *QUICK, *options, "--out", str(out), "--calibration", "minmax")
        assert said.code == 0, said.err
        assert "fully integer" in said.out


def test_last_after_a_quantization_is_the_same_run_again(tmp_path: Path) -> None:
    out, words = tmp_path / "runs", (*QUICK, "--calibration", "minmax", "--no-report")
    trained_run(out / "small")
    for _ in range(2):
        said = run_command("quantize", "last", "--out", str(out), *words)
        assert said.code == 0, said.err
        assert said.out.startswith("small: lenet5")
    shutil.rmtree(out / "small")
    said = run_command("quantize", "last", "--out", str(out), *words)
    assert said.code == 2
    assert "is a quantization of 'small', which is not stored here" in said.err


def odd_run(folder: Path) -> Path:
    """A run of a model with a sigmoid in the middle."""
    from quantize_samples import odd_model

    name = f"{Path(__file__).parents[1] / 'quantize_samples.py'}:odd_model"
    return trained_run(folder, odd_model().state_dict(), of=LENET.replace({"model.name": name}))


def broken_run(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    state = {name: tensor.clone() for name, tensor in trained_state().items()}
    change(state)
    return trained_run(folder, state)


def test_what_has_no_integer_form_can_be_left_in_float(tmp_path: Path) -> None:
    run = odd_run(tmp_path / "odd")
    said = run_command("quantize", str(run), *QUICK, "--keep-float", "--out", str(tmp_path / "runs"))
    assert said.code == 0, said.err
    assert "Left in float: Sigmoid" in said.out
    assert said.out.count("fully integer") == said.out.count("Not fully integer") == 1
    assert run_command("runs", "--out", str(tmp_path / "runs")).code == 0


def own_run(folder: Path, text: str, **changes: str) -> Path:
    """A run of a user's own file."""
    folder.mkdir()
    file = folder / "own.py"
    file.write_text(text)
    of = LENET.replace(
        {"model.name": f"{file}:model"} | {key.replace("__", "."): value for key, value in changes.items()}
    )
    state = load_reference(f"{file}:model", "model")().state_dict()
    return trained_run(folder / "run", state, of=of)


THREE_CHANNELS = """
from torch import nn

def model():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2704, 10))
"""

REGRESSION = """
import torch
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))

def data(seed):
    inputs = torch.randn(200, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    target = inputs.sum(1).float()
    return (inputs[:150], target[:150]), (inputs[150:], target[150:])

def loss(output, target):
    return nn.functional.mse_loss(output.squeeze(1), target)
"""


def three_channels(folder: Path) -> Path:
    return own_run(folder, THREE_CHANNELS)


def test_a_model_without_classes_has_losses_alone(tmp_path: Path) -> None:
    file = tmp_path / "own" / "own.py"
    run = own_run(tmp_path / "own", REGRESSION, data__name=f"{file}:data", train__loss=f"{file}:loss")
    words = ("--trust", "--out", str(tmp_path / "out"), "--json", str(tmp_path / "study.json"))
    said = run_command("quantize", str(run), *words)
    assert said.code == 0, said.err
    study = json.loads((tmp_path / "study.json").read_text())
    assert {row["agreement"] for row in study["stages"]} == {row["test_accuracy"] for row in study["stages"]} == {None}
    assert study["confusion"] == []
    assert study["num_calibration_samples"] == 150
    first, last = study["stages"][0], last_integer(typed(study))
    assert last is not None
    assert last.test_loss == pytest.approx(first["test_loss"], rel=0.05)
    assert "calibrated on 150 training samples" in " ".join(said.out.split())


def _nan(state: dict[str, torch.Tensor]) -> None:
    state["conv2.weight"][0, 0, 0, 0] = float("nan")


def _fewer(state: dict[str, torch.Tensor]) -> None:
    del state["linear3.bias"]


def _other_shape(state: dict[str, torch.Tensor]) -> None:
    state["conv1.weight"] = torch.zeros(6, 3, 5, 5)


@pytest.mark.parametrize(
    "make, options, message",
    [
        (lambda f: broken_run(f, _nan), (), "not finite: 'conv2.weight'"),
        (lambda f: broken_run(f, _fewer), (), "it has no 'linear3.bias'"),
        (lambda f: broken_run(f, _other_shape), (), r"'conv1.weight' is \(6, 3, 5, 5\) instead of \(6, 1, 5, 5\)"),
        (trained_run, ("--model", "resnet18"), "of model 'lenet5', does not fit model 'resnet18'"),
        (trained_run, ("--samples", "0"), "leaves nothing to calibrate with"),
        (trained_run, ("--calibration", "minmacs"), "did you mean 'minmax'"),
        (trained_run, ("--calibration", ","), "--calibration is empty"),
        (trained_run, ("--percentile", "20"), "--percentile must be above 50"),
        (trained_run, ("--percentile", "99", "--calibration", "mse"), "--percentile needs the percentile method"),
        (trained_run, ("--finetune", "-1"), "--finetune must be a number of steps"),
        (trained_run, ("--strategy", "ring"), "add --finetune N"),
        (trained_run, ("--no-onnx", "-o", "file.onnx"), "-o writes an ONNX file and conflicts with --no-onnx"),
        (three_channels, (), "fails on data 'mnist-mini': RuntimeError"),
        (odd_run, (), "without an integer form: Sigmoid"),
        (odd_run, ("--finetune", "5"), "without an integer form: Sigmoid"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_nothing_is_written(
    make: Callable[[Path], Path], options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    run, out = make(tmp_path / "run"), tmp_path / "out"
    said = run_command("quantize", str(run), "--trust", "--out", str(out), *QUICK, *options)
    assert said.code == 2
    assert re.search(message, " ".join(said.err.split())), said.err
    assert not out.exists() or not any(out.iterdir())


def test_what_is_no_run_is_refused(run: Path, tmp_path: Path) -> None:
    lone = tmp_path / "lone.safetensors"
    save_file({"a": torch.zeros(1)}, lone)
    with pytest.raises(UsageError, match="add --model and --data"):
        find_source(str(lone), tmp_path, {})
    with pytest.raises(UsageError, match="there is no checkpoint"):
        find_source(str(tmp_path / "none.safetensors"), tmp_path, {})
    (tmp_path / "text.safetensors").write_text("no weights")
    with pytest.raises(UsageError, match="cannot be read"):
        find_source(str(tmp_path / "text.safetensors"), tmp_path, {"data.name": "mnist-mini"})
    with pytest.raises(UsageError, match="batchnorm off"):
        load_source(find_source(str(run), tmp_path, {"train.batchnorm": "off"}))
    (run / "checkpoints" / "final.safetensors").rename(run / "checkpoints" / "other.safetensors")
    try:
        with pytest.raises(UsageError, match="has no checkpoints"):
            find_source(str(run), tmp_path, {})
    finally:
        (run / "checkpoints" / "other.safetensors").rename(run / "checkpoints" / "final.safetensors")


def test_a_study_that_is_interrupted_stays(run: Path, tmp_path: Path) -> None:
    loaded = load_source(find_source(str(run), tmp_path, {}))

    def stop(row: dict[str, Any]) -> None:
        if row["stage"] == "weights-per-tensor":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(loaded, QuantizeOptions(onnx=False), out=tmp_path / "out", listener=StageListener(stage_ends=stop))
    [stored] = list_runs(tmp_path / "out")
    assert (stored.kind, stored.status, stored.study) == ("study", "interrupted", "unfinished quantize")
    said = run_command("runs", "--out", str(tmp_path / "out"), "show", "last")
    assert (said.code, "interrupted" in said.out, said.err) == (0, True, "")


def test_calibration_images_are_the_same_every_time(run: Path, tmp_path: Path) -> None:
    data = load_source(find_source(str(run), tmp_path, {})).data.train
    batches = calibration_batches(data, 130, seed=3)
    first, again = torch.cat(list(batches())), torch.cat(list(batches()))
    assert len(first) == 130
    assert torch.equal(first, again)
    other = torch.cat(list(calibration_batches(data, 130, seed=4)()))
    assert not torch.equal(first, other)


def test_confusion_has_the_first_models_answers_down() -> None:
    first = ModelScore(0.0, None, torch.tensor([0, 0, 1, 2]))
    second = ModelScore(0.0, None, torch.tensor([0, 2, 1, 2]))
    assert confusion(first, second, 3) == [[1, 0, 1], [0, 1, 0], [0, 0, 1]]
    assert first.agreement(second) == 0.75
    many = ModelScore(0.0, None, torch.tensor([0, 8]))
    assert len(confusion(many, many, 7)) == 9  # a model with more outputs than there are classes
    assert confusion(many, ModelScore(0.0, None, torch.tensor([0, 500])), 7) == []
    assert first.agreement(ModelScore(0.0, None, torch.empty(0, dtype=torch.int64))) is None


def test_the_method_that_moves_training_scores_least_goes_on(done: tuple[Said, dict[str, Any], Path]) -> None:
    _, study, _ = done
    distances = study["distances"]
    assert set(distances) == set(METHODS)
    assert study["chosen_calibration"] == min(distances, key=distances.__getitem__)
