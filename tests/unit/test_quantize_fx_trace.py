"""Tracing: same scores as the model, BatchNorm folded, operations without integer form reported."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.data.base import Data, Dataset
from paceline.errors import UsageError
from paceline.models import build_model
from paceline.quantize.fx_trace import trace
from paceline.quantize.ops import Clip, FloatOp
from quantize_samples import Residual, with_statistics


class Nothing(Dataset):
    def __len__(self) -> int:
        return 0

    def batch(self, indices: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


def built_in(name: str, shape: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(0)
    return with_statistics(build_model(name, Data(Nothing(), Nothing(), shape, 10)))


@pytest.mark.parametrize(
    "name, shape, kinds",
    [
        ("lenet5", (1, 28, 28), {"convolution", "max pooling", "flatten", "linear"}),
        ("vgg11", (3, 32, 32), {"convolution", "max pooling", "average pooling", "flatten", "linear"}),
        ("resnet18", (3, 32, 32), {"convolution", "addition", "average pooling", "flatten", "linear"}),
    ],
)
def test_built_in_models_keep_their_scores(name: str, shape: tuple[int, ...], kinds: set[str]) -> None:
    model, images = built_in(name, shape), torch.randn(2, *shape)
    graph = trace(model, images)
    assert {op.kind for op in graph.ops} == kinds
    with torch.no_grad():
        expected = model(images)
        # Folding multiplies in another order: a few units in the last place of float32, grown over the layers.
        torch.testing.assert_close(graph.run(images), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def test_a_users_own_network_keeps_its_scores() -> None:
    torch.manual_seed(0)
    model, images = with_statistics(Residual()), torch.randn(3, 3, 16, 16)
    graph = trace(model, images)
    assert graph.left_in_float == []
    assert not {"batch normalisation", "dropout"} & {op.kind for op in graph.ops}
    with torch.no_grad():
        torch.testing.assert_close(graph.run(images), model(images), rtol=1e-4, atol=1e-5)


def test_tracing_leaves_the_model_as_it_was() -> None:
    model = with_statistics(Residual()).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trace(model, torch.randn(2, 3, 16, 16))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding_mode="reflect", padding=1)
        self.norm = nn.LayerNorm(32)
        self.scale = nn.Parameter(torch.ones(1))
        self.last = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).sigmoid().flatten(1)
        scores: Tensor = self.last(self.norm(x * self.scale))
        return scores.softmax(1)


def test_what_has_no_integer_form_is_named_and_stays() -> None:
    model, images = Odd().eval(), torch.randn(2, 1, 4, 4)
    graph = trace(model, images)
    assert [op.what for op in graph.ops if isinstance(op, FloatOp)] == [
        "Conv2d", "sigmoid", "scale", "mul", "LayerNorm", "softmax",
    ]  # fmt: skip
    with torch.no_grad():
        torch.testing.assert_close(graph.run(images), model(images))


@pytest.mark.parametrize(
    "module",
    [
        nn.AvgPool2d(3, padding=1, count_include_pad=False),
        nn.AvgPool2d(2, ceil_mode=True),
        nn.AvgPool2d(2, divisor_override=3),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.AdaptiveAvgPool2d(2),
        pytest.param(
            nn.Conv2d(2, 2, 2, padding="same"), marks=pytest.mark.filterwarnings("ignore:Using padding='same'")
        ),
        nn.Hardtanh(-1.0, 1.0),
        nn.Linear(7, 3),
        nn.ConvTranspose2d(2, 2, 3),
    ],
    ids=str,
)
def test_forms_that_integers_do_not_have_are_left_in_float(module: nn.Module) -> None:
    images = torch.randn(2, 2, 7, 7)
    graph = trace(nn.Sequential(module), images)
    assert [op.what for op in graph.left_in_float] == [type(module).__name__]
    with torch.no_grad():
        torch.testing.assert_close(graph.run(images), module(images))


@pytest.mark.parametrize(
    "module, kind",
    [
        (nn.AvgPool2d(3, stride=2, padding=1), "average pooling"),
        (nn.AdaptiveAvgPool2d((2, 4)), "average pooling"),
        (nn.MaxPool2d((2, 3), stride=1, padding=1), "max pooling"),
        (nn.Conv2d(2, 4, (3, 5), padding="same", dilation=2), "convolution"),
        (nn.Conv2d(2, 4, 3, stride=2, groups=2, padding="valid"), "convolution"),
        (nn.Hardtanh(0.0, 2.0), "relu"),
        (nn.ReLU6(), "relu"),
        (nn.BatchNorm2d(2), "convolution"),
    ],
    ids=str,
)
def test_forms_that_integers_have_keep_their_numbers(module: nn.Module, kind: str) -> None:
    module, images = with_statistics(module), torch.randn(2, 2, 8, 8) * 5
    graph = trace(nn.Sequential(module), images)
    assert [op.kind for op in graph.ops] == [kind]
    with torch.no_grad():
        torch.testing.assert_close(graph.run(images), module(images))


class BranchedNorm(nn.Module):
    """The layer before the BatchNorm is used twice: folding it would change the other use."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return x + self.norm(x)


def test_batchnorm_is_not_folded_into_what_others_use() -> None:
    model, images = with_statistics(BranchedNorm()), torch.randn(2, 1, 5, 5)
    graph = trace(model, images)
    assert [op.kind for op in graph.ops] == ["convolution", "convolution", "addition"]
    with torch.no_grad():
        torch.testing.assert_close(graph.run(images), model(images))


class InPlace(nn.Module):
    """Adds up what an operation in place has changed meanwhile: a trace of pure operations cannot see that."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu = nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.relu(x) + x


class Chooses(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


@pytest.mark.parametrize(
    "model, message",
    [
        (Chooses(), "cannot be traced"),
        (Two(), "several inputs"),
        (InPlace(), "outputs of the traced model differ"),
        (nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, track_running_stats=False)), "no running statistics"),
    ],
    ids=["control flow", "two inputs", "in place", "no statistics"],
)
def test_what_cannot_be_traced_is_said(model: nn.Module, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trace(model, torch.randn(2, 1, 4, 4))


def test_a_relu_behind_a_maximum_is_part_of_the_layer_before() -> None:
    """Its grid then holds nothing that is clipped away."""
    layers = [nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.ReLU6(), nn.Linear(12, 2)]
    model, images = nn.Sequential(*layers), torch.randn(2, 1, 6, 6) * 20
    graph = trace(model, images)
    assert [op.kind for op in graph.ops] == ["convolution", "max pooling", "flatten", "linear"]
    first = graph.layers[0]
    assert first.clip == Clip(6.0)
    seen: dict[str, Tensor] = {}
    with torch.no_grad():
        torch.testing.assert_close(graph.run(images, seen.__setitem__), model(images))
    assert float(seen[first.name].min()) == 0.0
    assert float(seen[first.name].max()) == 6.0


class UsedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return torch.relu(F.max_pool2d(x, 2)) + F.max_pool2d(x, 2)


def test_a_relu_is_no_part_of_what_others_use() -> None:
    model, images = UsedTwice(), torch.randn(2, 1, 6, 6)
    graph = trace(model, images)
    assert sorted(op.kind for op in graph.ops) == ["addition", "convolution", "max pooling", "max pooling", "relu"]
    with torch.no_grad():
        torch.testing.assert_close(graph.run(images), model(images))


class Keywords(nn.Module):
    """As some people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(input=torch.relu(input=self.conv(input=x)), start_dim=1)


def test_inputs_may_be_given_by_name() -> None:
    model, images = Keywords(), torch.randn(2, 1, 5, 5)
    graph = trace(model, images)
    assert [op.kind for op in graph.ops] == ["convolution", "flatten"]
    with torch.no_grad():
        torch.testing.assert_close(graph.run(images), model(images))


class OwnKernel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, x.size()[2:])


def test_a_kernel_that_is_worked_out_has_no_integer_form() -> None:
    graph = trace(OwnKernel(), torch.randn(2, 1, 5, 5))
    assert "avg_pool2d" in [op.what for op in graph.left_in_float]
