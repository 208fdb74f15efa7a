"""Layers of users' models and of stored runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from command import run_command
from paceline.data import load_data
from paceline.dataflow.chips import load_chip
from paceline.dataflow.reading import layers_of, read_layers
from paceline.errors import UsageError
from paceline.models import build_model
from paceline.recipe import load_recipe
from paceline.runs import Folder, write_run

MODEL = """
from torch import nn

def model():
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 12, (5, 3), groups=4),
                         nn.Flatten(), nn.LazyLinear(4))

def ready():
    import torch
    made = model()
    made(torch.zeros(1, 3, 16, 16))
    return made
"""


def read(name: str, **changes: object) -> list[object]:
    given = {"num_images": 2, "input_shape": (3, 16, 16), "with_linear": False, "runs": Path("runs"), **changes}
    return list(read_layers(name, load_chip("eyeriss"), **given))  # type: ignore[arg-type]


def test_a_users_model(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(MODEL)
    first, second = read(f"{file}:ready")
    assert (first.name, first.num_groups, first.shape.stride, first.shape.padding) == ("0", 1, (2, 2), (1, 1))
    assert (second.name, second.num_groups) == ("2", 4)
    assert (second.shape.num_filters, second.shape.num_channels) == (3, 2)
    assert (second.shape.kernel_height, second.shape.kernel_width, second.shape.input_height) == (5, 3, 8)
    assert second.num_macs == 2 * 12 * 4 * 6 * 2 * 15
    *_, linear = read(f"{file}:ready", with_linear=True)
    assert (linear.name, linear.shape.num_channels, linear.shape.num_filters) == ("4", 12 * 4 * 6, 4)
    said = run_command("dataflow", "network", f"{file}:ready", "--input-shape", "3x16x16", "--linear", "--json", "-")
    assert [row["name"] for row in json.loads(said.out)["layers"]] == ["0", "2", "4"]


def test_macs_are_those_that_torch_counts() -> None:
    """torch counts two operations per multiply-accumulate."""
    from torch.utils.flop_counter import FlopCounterMode

    layers = read("resnet18", input_shape=(3, 32, 32), with_linear=True, num_images=1)
    model = build_model(
        "resnet18",
        load_data(load_recipe("resnet18-cifar10").replace({"data.name": "synthetic:3x32x32x10"}).data, seed=0),
    )
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(torch.zeros(1, 3, 32, 32))
    assert 2 * sum(layer.num_macs for layer in layers) == counter.get_total_flops()


def test_models_that_cannot_be_followed() -> None:
    with pytest.raises(UsageError, match="is dilated by"):
        layers_of(nn.Sequential(nn.Conv2d(1, 1, 3, dilation=2)), torch.zeros(1, 1, 9, 9), num_images=1)
    with pytest.raises(UsageError, match="padding='same'"):
        layers_of(nn.Sequential(nn.Conv2d(1, 1, 3, padding="same")), torch.zeros(1, 1, 9, 9), num_images=1)
    with pytest.raises(UsageError, match="has no convolution"):
        layers_of(nn.Linear(4, 2), torch.zeros(1, 4), num_images=1)
    with pytest.raises(UsageError, match="does not take inputs of 3x9x9"):
        layers_of(nn.Conv2d(1, 1, 3), torch.zeros(1, 3, 9, 9), num_images=1)


def test_a_run_counts_its_own_zeros(tmp_path: Path) -> None:
    """Zeros behind a ReLU come from the weights that were trained and the images that it was tested on."""
    recipe = load_recipe("lenet5-mnist")
    data = load_data(recipe.data, seed=recipe.seed)
    model = build_model(recipe.model.name, data)
    folder = Folder(tmp_path, "mine")
    save_file(model.state_dict(), folder.make_inner("checkpoints") / "final.safetensors")
    write_run(folder, recipe, {}, {"name": "mine", "started": "2026-01-31T12:00:00+0000", "status": "done"}, [])
    folder.commit()
    first, second = read("mine", runs=tmp_path, num_images=3)
    images, _ = data.test.batch(torch.arange(3), 0)
    assert first.input_zeros == pytest.approx(float((images == 0).float().mean()))
    with torch.no_grad():
        between = torch.relu(nn.functional.max_pool2d(model.conv1(images), 2))
    assert second.input_zeros == pytest.approx(float((between == 0).float().mean()))
    assert 0 < second.input_zeros < 1
    assert first.output_zeros == second.input_zeros
    padded = nn.functional.pad(images, (2, 2, 2, 2))
    zeros = sum(float((padded[:, :, y : y + 28, x : x + 28] == 0).sum()) for y in range(5) for x in range(5))
    assert first.zero_products == pytest.approx(zeros / (3 * 28 * 28 * 25))
    assert 0 < second.input_share < 1
    given = ("dataflow", "network", "mine", "--runs", str(tmp_path), "--batch", "3")
    row = json.loads(run_command(*given, "--json", "-").out)["layers"][0]
    assert row["gated"]["products"] == round(first.zero_products * row["macs"])
    (tmp_path / "mine" / "checkpoints" / "final.safetensors").unlink()
    with pytest.raises(UsageError, match="no recipe or final weights"):
        read("mine", runs=tmp_path)
