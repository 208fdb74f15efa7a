"""Layers of users' models and of stored runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from command import run_command
from paceline.data import load_data
from paceline.dataflow.accesses import encoded_share
from paceline.dataflow.chips import load_chip
from paceline.dataflow.model_layers import UNSUPPORTED, layers_of, read_layers
from paceline.dataflow.network_cost import analyse
from paceline.errors import UsageError
from paceline.models import build_model
from paceline.present.charts.registry import make_section
from paceline.quantize.fake_quant import Rounding, Simulated
from paceline.quantize.fx_trace import trace
from paceline.quantize.ops import Conv
from paceline.quantize.quantized import stored_grid
from paceline.recipe import Recipe, load_recipe
from paceline.runs import find
from trained_samples import trained_run, trained_state

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
    given = {"num_images": 2, "input_shape": None, "with_linear": False, "runs": Path("runs"), **changes}
    return list(read_layers(name, load_chip("eyeriss"), **given)[1])  # type: ignore[arg-type]


def test_a_users_model(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(MODEL)
    first, second = read(f"{file}:ready", input_shape=(3, 16, 16))
    assert (first.name, first.num_groups, first.shape.stride, first.shape.padding) == ("0", 1, (2, 2), (1, 1))
    assert (second.name, second.num_groups) == ("2", 4)
    assert (second.shape.num_filters, second.shape.num_channels) == (3, 2)
    assert (second.shape.kernel_height, second.shape.kernel_width, second.shape.input_height) == (5, 3, 8)
    assert second.num_macs == 2 * 12 * 4 * 6 * 2 * 15
    *_, linear = read(f"{file}:ready", input_shape=(3, 16, 16), with_linear=True)
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


class Patches(nn.Module):
    """Cuts every image into four."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(1, 2, 3), nn.Linear(288, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        cut = images.reshape(-1, 1, 14, 14)
        return self.linear(self.conv(input=cut).flatten(1))


@pytest.mark.parametrize("tried", [1, 3])
def test_layers_that_read_several_times_as_many_as_images(tried: int) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = Patches()
    layers = layers_of(model, torch.zeros(tried, 1, 28, 28), num_images=6, with_linear=True)
    assert [layer.shape.num_images for layer in layers] == [24, 24]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(6, 1, 28, 28))
    assert 2 * sum(layer.num_macs for layer in layers) == counter.get_total_flops()


def test_an_image_without_a_batch() -> None:
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 3)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.conv(images[0])

    (layer,) = layers_of(Single(), torch.zeros(1, 2, 9, 9), num_images=2)
    assert (layer.shape.num_images, layer.shape.num_channels, layer.shape.input_height) == (2, 2, 9)
    with pytest.raises(UsageError, match="layer conv reads 1 inputs for 4 images"):
        layers_of(Single(), torch.zeros(4, 2, 9, 9), num_images=2)


def test_models_that_cannot_be_followed() -> None:
    with pytest.raises(UsageError, match=r"layer 0: the kernel \(5 x 5\) is larger than the padded input"):
        layers_of(nn.Sequential(nn.Conv2d(1, 1, 5)), torch.zeros(1, 1, 3, 3), num_images=1)
    with pytest.raises(UsageError, match="has dilation"):
        layers_of(nn.Sequential(nn.Conv2d(1, 1, 3, dilation=2)), torch.zeros(1, 1, 9, 9), num_images=1)
    with pytest.raises(UsageError, match="padding='same' with an even kernel"):
        layers_of(nn.Sequential(nn.Conv2d(1, 1, (3, 4), padding="same")), torch.zeros(1, 1, 9, 9), num_images=1)
    with pytest.raises(UsageError, match="pads with 'reflect'"):
        layers_of(nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"), torch.zeros(1, 1, 9, 9), num_images=1)
    with pytest.raises(UsageError, match="runs no convolution module"):
        layers_of(nn.Linear(4, 2), torch.zeros(1, 4), num_images=1)
    with pytest.raises(UsageError, match="does not take inputs of 3x9x9"):
        layers_of(nn.Conv2d(1, 1, 3), torch.zeros(1, 3, 9, 9), num_images=1)


@pytest.mark.parametrize(
    ("words", "kernel", "numbers"), [("same", (5, 3), (2, 1)), ("same", (1, 1), (0, 0)), ("valid", (3, 3), (0, 0))]
)
def test_padding_in_words(words: str, kernel: tuple[int, int], numbers: tuple[int, int]) -> None:
    model = nn.Conv2d(1, 1, kernel, padding=words)
    (layer,) = layers_of(model, torch.zeros(1, 1, 9, 9), num_images=1)
    assert layer.shape.padding == numbers
    assert model(torch.zeros(1, 1, 9, 9)).shape[2:] == (layer.shape.output_height, layer.shape.output_width)


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_other_convolutions_are_not_left_out_in_silence(kind: type[nn.Module]) -> None:
    sides = [9] * int(kind.__name__[-2])
    model = nn.Sequential(nn.Sequential(kind(1, 1, 3)), nn.Flatten())
    with pytest.raises(UsageError, match=f"layer 0.0 is a {kind.__name__}; only Conv2d"):
        layers_of(model, torch.zeros(1, 1, *sides), num_images=1)


def test_a_layer_that_is_passed_twice_has_two_rows() -> None:
    conv = nn.Conv2d(2, 2, 3, padding=1)
    layers = layers_of(nn.Sequential(conv, nn.ReLU(), conv), torch.zeros(1, 2, 9, 9), num_images=1)
    result = analyse(layers, load_chip("eyeriss"))
    assert [row["name"] for row in result["layers"]] == ["0", "0 (2)"]
    for chart in make_section("network", "", result).charts:
        if chart.id != "dataflows":
            assert [len(trace["x"]) for trace in chart.views[-1].traces] == [2] * len(chart.views[-1].traces)


def test_parts_of_a_layers_time_are_its_time() -> None:
    """Also where DRAM bounds it."""
    model = nn.Sequential(nn.Conv2d(64, 64, 3), nn.Flatten(), nn.Linear(64 * 14 * 14, 10))
    layers = layers_of(model, torch.zeros(1, 64, 16, 16), num_images=4, with_linear=True)
    result = analyse(layers, load_chip("eyeriss"))
    assert {row["bound"] for row in result["layers"]} > {"dram"}
    times = next(chart for chart in make_section("network", "", result).charts if chart.id == "layer-times")
    parts = [trace["y"] for trace in times.views[0].traces]
    assert [sum(layer) for layer in zip(*parts, strict=True)] == pytest.approx(
        [1e3 * row["time_s"] for row in result["layers"]]
    )


def test_every_vector_of_a_linear_layer_counts() -> None:
    (layer,) = layers_of(nn.Linear(6, 4), torch.zeros(1, 5, 3, 6), num_images=2, with_linear=True)
    assert (layer.shape.num_images, layer.shape.num_channels, layer.num_macs) == (30, 6, 30 * 24)


def stored(recipe: Recipe, model: nn.Module, runs: Path) -> None:
    """A run of the name `mine`, with its weights."""
    trained_run(runs / "mine", model.state_dict(), of=recipe)


def test_a_run_counts_its_own_zeros(tmp_path: Path) -> None:
    """Zeros behind a ReLU come from the weights that were trained and the images that it was tested on."""
    recipe = load_recipe("lenet5-mnist")
    data = load_data(recipe.data, seed=recipe.seed)
    torch.manual_seed(0)
    model = build_model(recipe.model.name, data)
    stored(recipe, model, tmp_path)
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
    assert second.input_share == encoded_share(between.numpy(), load_chip("eyeriss"))
    given = ("dataflow", "network", "mine", "--runs", str(tmp_path), "--batch", "3")
    row = json.loads(run_command(*given, "--json", "-").out)["layers"][0]
    assert row["gated"]["products"] == round(first.zero_products * row["macs"])
    weights = tmp_path / "mine" / "checkpoints" / "final.safetensors"
    save_file({f"old.{name}": value for name, value in model.state_dict().items()}, weights)
    refused = run_command(*given, width=300)
    assert refused.code == 2
    assert (
        "the weights of run 'mine' do not fit model lenet5, whose code has changed: Error(s) in loading" in refused.err
    )
    weights.unlink()
    with pytest.raises(UsageError, match="no recipe or final weights"):
        read("mine", runs=tmp_path)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stored quantization of a model that was trained."""
    folder = tmp_path_factory.mktemp("quantized")
    words = ("--samples", "64", "--test-samples", "50", "--calibration", "mse", "--no-onnx", "--no-report")
    said = run_command("quantize", str(trained_run(folder / "run")), *words, "--out", str(folder / "out"))
    assert said.code == 0, said.err
    return folder / "out"


def test_a_run_in_integers_counts_the_zeros_of_its_integers(quantized: Path) -> None:
    layers = read("last", runs=quantized, num_images=20, with_linear=True)
    assert [layer.name for layer in layers] == ["conv1", "conv2", "linear1", "linear2", "linear3"]
    plain = read("lenet5", input_shape=(1, 28, 28), num_images=20, with_linear=True)
    assert [layer.shape for layer in layers] == [layer.shape for layer in plain]
    study = find("last", quantized)
    weights = load_file(study.folder / "integers.safetensors")
    zeros = [float((weights[f"{layer.name}.weight"] == 0).double().mean()) for layer in layers]
    assert [layer.filter_zeros for layer in layers] == pytest.approx(zeros)
    # The same network in floats that are rounded as the integers are: a sum next to a half may fall to either side.
    recipe = Recipe.from_dict(study.recipe_values)
    data = load_data(recipe.data, seed=recipe.seed)
    images, _ = data.test.batch(torch.arange(20), 0)
    model = build_model(recipe.model.name, data)
    model.load_state_dict(trained_state())
    grids = {row.tensor: stored_grid(row.scale, row.zero_point, symmetric=False) for row in study.content.activations}
    graph = trace(model, images)
    values: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        Simulated(graph, Rounding(grids=grids, biases=True))(images, values.__setitem__)
    for layer in layers:
        (op,) = (op for op in graph.layers if op.name == layer.name)
        given = values[op.inputs[0]]
        assert layer.input_zeros == pytest.approx(float((given == 0).double().mean()), abs=0.002)
        assert layer.input_share == pytest.approx(encoded_share(given.numpy(), load_chip("eyeriss")), abs=0.003)
        assert layer.zero_products == pytest.approx(zero_products(given, op), abs=0.002)
    assert 0.1 < layers[1].input_zeros < 0.95
    assert layers[0].zero_products > layers[0].input_zeros  # padding


def zero_products(given: torch.Tensor, op: object) -> float:
    """Each weight meets its pixels in turn; nothing of the package is used."""
    if not isinstance(op, Conv):
        return float((given == 0).double().mean())
    down, across = op.padding
    padded = nn.functional.pad(given, (across, across, down, down))
    height, width = (padded.shape[2 + axis] - op.weight.shape[2 + axis] + 1 for axis in range(2))
    met = [
        padded[:, :, y : y + height : op.stride[0], x : x + width : op.stride[1]] == 0
        for y in range(op.weight.shape[2])
        for x in range(op.weight.shape[3])
    ]
    return float(torch.stack(met).double().mean())


MIXED = """
from torch import nn

class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 8, (3, 1), padding=(1, 0), groups=4)
        self.last = nn.Linear(8, 10)

    def forward(self, x):
        x = self.norm(self.first(x).relu())
        x = self.grouped(self.grouped(x).relu()).relu()
        return self.last(x.mean((2, 3)))

def mixed():
    import torch
    torch.manual_seed(0)
    made = Mixed()
    nn.init.uniform_(made.norm.running_mean, -1, 1)
    return made
"""


def test_floats_and_integers_of_a_model_have_the_same_layers(tmp_path: Path) -> None:
    """A BatchNorm that cannot be folded is no convolution, a module that is passed twice counts twice, groups stay."""
    file = tmp_path / "mixed.py"
    file.write_text(MIXED)
    recipe = load_recipe("lenet5-mnist").replace({"model.name": f"{file}:mixed"})
    model = build_model(recipe.model.name, load_data(recipe.data, seed=recipe.seed))
    stored(recipe, model, tmp_path)
    words = ("--samples", "64", "--test-samples", "50", "--no-onnx", "--no-report")
    made = run_command("quantize", str(tmp_path / "mine"), "--trust", *words, "--out", str(tmp_path / "quantized"))
    assert made.code == 0, made.err
    integers = read("last", runs=tmp_path / "quantized", num_images=20, with_linear=True, trust=True)
    floats = read("mine", runs=tmp_path, num_images=20, with_linear=True, trust=True)
    assert [layer.name for layer in integers] == ["first", "grouped", "grouped", "last"]
    for one, other in zip(integers, floats, strict=True):
        assert (one.name, one.shape, one.num_groups) == (other.name, other.shape, other.num_groups)
        assert one.zero_products == pytest.approx(other.zero_products, abs=0.02)  # what is nearly zero is zero


def test_the_command_says_what_zeros_save(quantized: Path) -> None:
    words = ("dataflow", "network", "last", "--runs", str(quantized), "--batch", "2")
    said = run_command(*words)
    assert said.code == 0, said.err
    assert max(map(len, said.out.splitlines())) <= 100
    text = " ".join(said.out.split())
    assert "of the products are with 0" in text
    assert "Integer-only: int8 weights" in text
    total = json.loads(run_command(*words, "--json", "-").out)["total"]
    assert 0 < total["gated"]["products"] < total["macs"]
    refused = run_command(*words, "--input-shape", "3x8x8")
    assert (refused.code, "has an input shape already" in refused.err) == (2, True)


def test_integers_of_another_model_are_refused(quantized: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(find("last", quantized).folder, tmp_path / "copied"))
    tensors = load_file(copied / "integers.safetensors")
    save_file({name: value for name, value in tensors.items() if "conv2" not in name}, copied / "integers.safetensors")
    with pytest.raises(UsageError, match="belong to another model: they do not fit layer 'conv2'"):
        read("copied", runs=tmp_path)
    (copied / "integers.safetensors").write_bytes(b"no tensors")
    with pytest.raises(UsageError, match=r"no integers\.safetensors to read"):
        read("copied", runs=tmp_path)
