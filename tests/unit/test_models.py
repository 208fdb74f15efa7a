"""Built-in models equal the published ones, and models that cannot be trained are refused before training."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.data.base import Batch, Data, Dataset, call_model, slice_tree
from paceline.errors import UsageError
from paceline.models import build_model, model_names
from paceline.plugins import call_factory
from paceline.train.step import build_objective

EXAMPLES = Path(__file__).parents[2] / "examples"


class NoSamples(Dataset):
    """A data set without samples: models use only its shape and classes."""

    def __len__(self) -> int:
        return 0

    def batch(self, indices: Tensor, epoch: int) -> Batch:
        raise NotImplementedError


def data_of(*shape: int, classes: int = 10) -> Data:
    return Data(NoSamples(), NoSamples(), shape, classes)


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    "name, shape, classes, expected",
    [
        ("lenet5", (1, 28, 28), 10, 61_706),
        ("lenet5", (3, 32, 32), 10, 62_006),
        ("lenet5", (1, 28, 28), 26, 61_706 + 16 * 85),
        ("lenet5", (1, 16, 16), 10, 61_706 - 120 * (400 - 64)),
        ("vgg11", (3, 32, 32), 10, 9_231_114),
        ("vgg11", (3, 64, 64), 10, 9_231_114),
        ("vgg11", (1, 32, 32), 100, 9_231_114 - 2 * 9 * 64 + 90 * 513),
        ("resnet18", (3, 32, 32), 10, 11_173_962),
        ("resnet18", (1, 28, 28), 10, 11_173_962 - 2 * 9 * 64),
        ("resnet50", (3, 224, 224), 1000, 25_557_032),
        ("resnet50", (3, 224, 224), 10, 25_557_032 - 990 * 2049),
    ],
)
def test_number_of_parameters(name: str, shape: tuple[int, ...], classes: int, expected: int) -> None:
    with torch.device("meta"):  # shapes without memory: this is about counting
        assert num_parameters(build_model(name, data_of(*shape, classes=classes))) == expected


@pytest.mark.parametrize(
    "name, shape",
    [
        ("lenet5", (1, 28, 28)),
        ("lenet5", (3, 32, 32)),
        ("lenet5", (2, 12, 40)),
        ("vgg11", (3, 32, 32)),
        ("vgg11", (1, 64, 33)),
        ("resnet18", (3, 32, 32)),
        ("resnet18", (1, 8, 9)),
        ("resnet50", (3, 32, 32)),
    ],
)
def test_scores_per_class_and_a_gradient_for_every_parameter(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = build_model(name, data_of(*shape, classes=7))
    output = model(torch.randn(3, *shape))
    assert output.shape == (3, 7)
    F.cross_entropy(output, torch.tensor([0, 3, 6])).backward()
    for path, parameter in model.named_parameters():
        assert parameter.grad is not None, path
        assert torch.isfinite(parameter.grad).all(), path
        if not (name == "vgg11" and path.endswith("bias")):  # a bias in front of a BatchNorm receives rounding only
            assert parameter.grad.abs().sum() > 0, path


def test_min_side_is_the_smallest_that_works() -> None:
    assert build_model("lenet5", data_of(1, 12, 12))(torch.randn(2, 1, 12, 12)).shape == (2, 10)
    assert build_model("vgg11", data_of(1, 32, 32)).eval()(torch.randn(1, 1, 32, 32)).shape == (1, 10)


def test_resnet50_on_imagenet_sized_images_leaves_7_by_7() -> None:
    with torch.device("meta"):
        model = build_model("resnet50", data_of(3, 224, 224, classes=1000))
        images = torch.empty(2, 3, 224, 224)
        assert model.body(model.stem(images)).shape == (2, 2048, 7, 7)  # type: ignore[operator]
        assert model(images).shape == (2, 1000)


def test_resnet18_has_no_pooling_in_front_of_its_blocks() -> None:
    with torch.device("meta"):
        model = build_model("resnet18", data_of(3, 32, 32))
        assert model.body(model.stem(torch.empty(2, 3, 32, 32))).shape == (2, 512, 4, 4)  # type: ignore[operator]


@pytest.mark.parametrize("name", ["vgg11", "resnet18"])
def test_convolutions_start_as_he_says(name: str) -> None:
    torch.manual_seed(0)
    model = build_model(name, data_of(3, 32, 32))
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == {"vgg11": 8, "resnet18": 20}[name]
    for convolution in convolutions:
        expected = math.sqrt(2 / (convolution.out_channels * math.prod(convolution.kernel_size)))
        # The deviation of 1,728 normal numbers (the smallest layer) is known to 1.7%; this is four times that.
        assert float(convolution.weight.detach().std()) == pytest.approx(expected, rel=0.07)
        assert convolution.bias is None or not convolution.bias.any()


def test_the_seed_decides_the_weights() -> None:
    def first_weights(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return next(build_model("lenet5", data_of(1, 28, 28)).parameters())

    assert torch.equal(first_weights(1), first_weights(1))
    assert not torch.equal(first_weights(1), first_weights(2))


def test_names_come_with_a_line_each() -> None:
    names = model_names()
    assert list(names) == ["lenet5", "resnet18", "resnet50", "vgg11"]
    assert names["lenet5"].startswith("LeNet-5")
    assert all(line.endswith(".") and "\n" not in line for line in names.values())


@pytest.mark.parametrize("name", ["lenet5", "resnet18", "resnet50", "vgg11"])
def test_data_that_does_not_fit_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=rf"model '{name}' takes images .* but this data has inputs of shape \(32,\)"):
        build_model(name, data_of(32))
    with pytest.raises(UsageError, match=rf"model '{name}' takes images .* has inputs that are not a single tensor"):
        build_model(name, data_of())
    with pytest.raises(UsageError, match=rf"model '{name}' is a classifier, but this data has no classes; use data"):
        build_model(name, data_of(3, 224, 224, classes=0))
    with pytest.raises(UsageError, match=r"of at least (\d+) x \1 pixels, but this data has 100 x 7; use larger"):
        build_model(name, data_of(3, 100, 7))


def test_one_pixel_less_than_needed_is_refused() -> None:
    for name, side in {"lenet5": 12, "vgg11": 32, "resnet18": 8, "resnet50": 32}.items():
        with pytest.raises(UsageError, match=f"at least {side} x {side} pixels"):
            build_model(name, data_of(3, side, side - 1))


def test_unknown_model() -> None:
    with pytest.raises(UsageError, match=r"unknown model 'resnet81'; did you mean 'resnet18'\?"):
        build_model("resnet81", data_of(3, 32, 32))


FACTORIES = """
import torch
from torch import nn

def both(shape, num_classes):
    return nn.Linear(shape[0], num_classes)

def classes_only(*, num_classes, width=3):
    return nn.Linear(width, num_classes)

def neither():
    return nn.Linear(2, 1)

def anything(**given):
    model = nn.Linear(1, 1)
    model.given = given
    return model

class Own(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.linear = nn.Linear(4, num_classes)

def not_a_module():
    return 3

def nothing_to_train():
    return nn.ReLU()

def frozen():
    return nn.Linear(2, 2).requires_grad_(False)

def lazy():
    return nn.LazyLinear(2)

def raises():
    raise RuntimeError("no luck")

built = nn.Linear(2, 2)
number = 5
"""


@pytest.fixture
def factories(tmp_path: Path) -> str:
    path = tmp_path / "factories.py"
    path.write_text(FACTORIES)
    return str(path)


def test_a_factory_gets_what_it_accepts(factories: str) -> None:
    def shapes(name: str) -> list[tuple[int, ...]]:
        return [tuple(p.shape) for p in build_model(f"{factories}:{name}", data_of(6, classes=5)).parameters()]

    assert shapes("both") == [(5, 6), (5,)]
    assert shapes("classes_only") == [(5, 3), (5,)]
    assert shapes("neither") == [(1, 2), (1,)]
    assert shapes("Own") == [(5, 4), (5,)]
    assert build_model(f"{factories}:anything", data_of(6, classes=5)).given == {"shape": (6,), "num_classes": 5}


def test_a_factory_of_an_importable_module() -> None:
    model = build_model("paceline.models.lenet5:LeNet5", data_of(1, 28, 28))
    assert num_parameters(model) == 61_706


@pytest.mark.parametrize(
    "name, message",
    [
        ("not_a_module", r"returned a int; return a torch\.nn\.Module"),
        ("nothing_to_train", "has no trainable parameter; return one with requires_grad"),
        ("frozen", "has no trainable parameter; return one with requires_grad"),
        ("lazy", "has lazy parameters without a shape; call it once on an input before returning it"),
        ("raises", "raised RuntimeError: no luck"),
        ("built", "is a Linear object; name a function that builds it"),
        ("number", "is a int; name a function or a class"),
        ("fronzen", "unknown model in .*factories.py 'fronzen'; did you mean 'frozen'"),
    ],
)
def test_a_factory_that_gives_no_model_is_refused(factories: str, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        build_model(f"{factories}:{name}", data_of(6))
    assert name in str(caught.value)


@pytest.mark.parametrize("example, lr, fraction", [("transformer_lm", 0.003, 0.9), ("regression", 0.01, 0.2)])
def test_examples_learn(example: str, lr: float, fraction: float) -> None:
    file = f"{EXAMPLES / example}.py"
    (inputs, targets), (test_inputs, test_targets) = call_factory(f"{file}:data", "data", seed=0)
    torch.manual_seed(0)
    model = build_model(f"{file}:model", data_of(classes=0))
    objective = build_objective(f"{file}:loss")
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)

    def loss_on_test_set() -> float:
        with torch.no_grad():
            return float(objective.loss(call_model(model, test_inputs), test_targets))

    before = loss_on_test_set()
    for start in range(0, 30 * 32, 32):
        batch, target = slice_tree((inputs, targets), start, start + 32)
        optimizer.zero_grad()
        objective.loss(call_model(model, batch), target).backward()
        optimizer.step()
    assert loss_on_test_set() < fraction * before
    counted = objective.correct(call_model(model, test_inputs), test_targets)
    assert (counted is None) == (example == "regression")


def test_a_transformer_does_not_look_ahead() -> None:
    model = build_model(f"{EXAMPLES / 'transformer_lm.py'}:model", data_of(classes=0))
    words = torch.randint(16, (1, 32))
    changed = words.clone()
    changed[0, 20] = (changed[0, 20] + 1) % 16
    same = torch.isclose(model(words), model(changed)).all(dim=-1)[0]
    assert same[:20].all()
    assert not same[20]
