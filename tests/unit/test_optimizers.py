"""LARS and LAMB, against results computed by hand and against SGD and Adam."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.errors import UsageError
from paceline.recipe import OptimizerConfig
from paceline.strategies.sharded import ELEMENTWISE_OPTIMIZERS
from paceline.train.optimizers import Lamb, Lars, build_optimizer

NAMES = ("sgd", "adam", "adamw", "lars", "lamb")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def parameter(values: Any, dtype: torch.dtype = torch.float64) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=dtype))


def step(optimizer: Optimizer, *gradients: Any) -> None:
    """Take one step with these gradients, in the order of the parameters; None means no gradient."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for p, gradient in zip(parameters, gradients, strict=True):
        p.grad = None if gradient is None else torch.as_tensor(gradient, dtype=p.dtype).clone()
    optimizer.step()


def flat(tensor: Tensor) -> list[float]:
    return [float(value) for value in tensor.detach().flatten()]


def norm(values: list[float]) -> float:
    return math.sqrt(sum(value * value for value in values))


def lars_by_hand(
    w: list[float], gradients: list[list[float]], *, lr: float, momentum: float, decay: float, trust: float
) -> list[float]:
    v = [0.0] * len(w)
    for g in gradients:
        ratio = trust * norm(w) / (norm(g) + decay * norm(w))
        v = [momentum * vi + lr * ratio * (gi + decay * wi) for vi, gi, wi in zip(v, g, w, strict=True)]
        w = [wi - vi for wi, vi in zip(w, v, strict=True)]
    return w


def lamb_by_hand(w: list[float], gradients: list[list[float]], *, lr: float, decay: float) -> list[float]:
    m, v = [0.0] * len(w), [0.0] * len(w)
    for t, g in enumerate(gradients, start=1):
        m = [0.9 * mi + 0.1 * gi for mi, gi in zip(m, g, strict=True)]
        v = [0.999 * vi + 0.001 * gi * gi for vi, gi in zip(v, g, strict=True)]
        u = [
            (mi / (1 - 0.9**t)) / (math.sqrt(vi / (1 - 0.999**t)) + 1e-6) + decay * wi
            for mi, vi, wi in zip(m, v, w, strict=True)
        ]
        w = [wi - lr * norm(w) / norm(u) * ui for wi, ui in zip(w, u, strict=True)]
    return w


GRADIENTS = [[6.0, -8.0], [1.0, 2.0], [-3.0, 0.5]]


def test_first_lars_step_in_numbers() -> None:
    w = parameter([[3.0, 4.0]])  # |w| = 5
    optimizer = Lars([w], lr=2.0, momentum=0.9, weight_decay=0.1, trust=0.01)
    step(optimizer, [[6.0, 8.0]])  # |g| = 10; ratio = 0.01 * 5 / 10.5; g + 0.1 w = (6.3, 8.4)
    assert flat(w) == pytest.approx([3.0 - 0.06, 4.0 - 0.08], rel=1e-12)


def test_lars_by_hand() -> None:
    w = parameter([[3.0], [-4.0]])
    optimizer = Lars([w], lr=0.7, momentum=0.9, weight_decay=0.05, trust=0.02)
    for gradient in GRADIENTS:
        step(optimizer, [[value] for value in gradient])
    expected = lars_by_hand([3.0, -4.0], GRADIENTS, lr=0.7, momentum=0.9, decay=0.05, trust=0.02)
    assert flat(w) == pytest.approx(expected, rel=1e-12)


def test_first_lamb_step_in_numbers() -> None:
    w = parameter([[3.0, 4.0]])
    optimizer = Lamb([w], lr=0.1, eps=0.0)
    step(optimizer, [[6.0, -8.0]])  # the first Adam direction is the sign (1, -1); |w| / |u| = 5 / sqrt(2)
    moved = 0.1 * 5 / math.sqrt(2)
    assert flat(w) == pytest.approx([3.0 - moved, 4.0 + moved], rel=1e-12)


def test_lamb_by_hand() -> None:
    w = parameter([[3.0, -4.0]])
    optimizer = Lamb([w], lr=0.03, weight_decay=0.1)
    for gradient in GRADIENTS:
        step(optimizer, [gradient])
    assert flat(w) == pytest.approx(lamb_by_hand([3.0, -4.0], GRADIENTS, lr=0.03, decay=0.1), rel=1e-12)


def test_lars_is_sgd_on_vectors_whatever_the_decay() -> None:
    ours, theirs = parameter([3.0, -4.0]), parameter([3.0, -4.0])
    lars = Lars([ours], lr=0.1, momentum=0.9, weight_decay=0.5)
    sgd = torch.optim.SGD([theirs], lr=0.1, momentum=0.9)
    for gradient in GRADIENTS:
        step(lars, gradient)
        step(sgd, gradient)
    assert flat(ours) == pytest.approx(flat(theirs), rel=1e-12)


def test_lars_is_sgd_on_a_layer_whose_ratio_is_one() -> None:
    """|w| = |g| and trust 1."""
    ours, theirs = parameter([[3.0, 4.0]]), parameter([[3.0, 4.0]])
    step(Lars([ours], lr=0.1, momentum=0.9, trust=1.0), [[-5.0, 0.0]])
    step(torch.optim.SGD([theirs], lr=0.1, momentum=0.9), [[-5.0, 0.0]])
    assert flat(ours) == pytest.approx(flat(theirs), rel=1e-12)


def test_lamb_is_adam_on_vectors_whatever_the_decay() -> None:
    ours, theirs = parameter([3.0, -4.0]), parameter([3.0, -4.0])
    lamb = Lamb([ours], lr=0.1, weight_decay=0.5)
    adam = torch.optim.Adam([theirs], lr=0.1, eps=1e-6)
    for gradient in GRADIENTS:
        step(lamb, gradient)
        step(adam, gradient)
    assert flat(ours) == pytest.approx(flat(theirs), rel=1e-12)


def test_steps_do_not_depend_on_the_size_of_gradients() -> None:
    """An update is proportional to the norm of the layer."""
    for make in (lambda w: Lars([w], lr=1.0, momentum=0.0), lambda w: Lamb([w], lr=1.0, eps=0.0)):
        small, large = parameter([[3.0, 4.0]]), parameter([[3.0, 4.0]])
        step(make(small), [[1.0, 2.0]])
        step(make(large), [[1000.0, 2000.0]])
        assert flat(small) == pytest.approx(flat(large), rel=1e-12)
        assert flat(small) != [3.0, 4.0]


def test_lars_spends_its_momentum_at_rate_zero() -> None:
    """The learning rate is inside the momentum, as in the paper."""
    w = parameter([1.0])
    optimizer = Lars([w], lr=0.1, momentum=0.5)
    step(optimizer, [1.0])
    assert flat(w) == pytest.approx([0.9])
    optimizer.param_groups[0]["lr"] = 0.0
    step(optimizer, [1.0])
    assert flat(w) == pytest.approx([0.85])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_every_dtype_and_shape(name: str, dtype: torch.dtype) -> None:
    # Each of the last two numbers fits in float16; their norm does not.
    values: list[Any] = [2.0, [1.0, -2.0], [[1.0, 2.0], [3.0, 4.0]], [[[6e4, 6e4]]]]
    parameters = [parameter(value, dtype) for value in values]
    lr = {"lars": 20.0, "lamb": 0.1}[name]
    optimizer = build_optimizer(OptimizerConfig(name=name, lr=lr, momentum=0.9, weight_decay=1e-5), parameters)
    for _ in range(3):
        step(optimizer, *(torch.ones(p.shape) for p in parameters))
    for p, value in zip(parameters, values, strict=True):
        assert p.dtype == dtype
        assert torch.isfinite(p).all()
        assert (p < torch.tensor(value, dtype=dtype)).all()


@pytest.mark.parametrize("name", NAMES)
def test_zero_rate_and_zero_gradients_move_nothing(name: str) -> None:
    start: list[Any] = [[[1.0, 2.0], [3.0, 4.0]], [1.0, 2.0], [[0.0, 0.0]]]
    zeros = [torch.zeros(2, 2), torch.zeros(2), torch.zeros(1, 2)]
    for lr, gradients in ((0.0, [g + 1 for g in zeros]), (0.5, zeros)):
        parameters = [parameter(value) for value in start]
        optimizer = build_optimizer(OptimizerConfig(name=name, lr=lr, momentum=0.9), parameters)
        for _ in range(2):
            step(optimizer, *gradients)
        assert [p.tolist() for p in parameters] == start


@pytest.mark.parametrize("make", [lambda w: Lars([w], lr=0.5, trust=0.1), lambda w: Lamb([w], lr=0.5)])
def test_a_layer_of_zeros_is_not_stuck(make: Any) -> None:
    w = parameter([[0.0, 0.0]])
    step(make(w), [[1.0, 1.0]])
    assert flat(w) == pytest.approx([-0.5, -0.5], rel=1e-5)  # LAMB's eps is 1e-6


def test_zero_gradients_still_decay_lamb() -> None:
    w = parameter([[3.0, 4.0]])
    step(Lamb([w], lr=0.1, weight_decay=0.01), [[0.0, 0.0]])  # u = decay * w, so the step is lr * w
    assert flat(w) == pytest.approx([2.7, 3.6])


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_without_gradient_stays(name: str) -> None:
    moved, stays = parameter([[1.0, 2.0]]), parameter([[1.0, 2.0]])
    optimizer = build_optimizer(OptimizerConfig(name=name, lr=0.5, momentum=0.9, weight_decay=0.1), [moved, stays])
    step(optimizer, [[1.0, 1.0]], None)
    assert stays.tolist() == [[1.0, 2.0]]
    assert moved.tolist() != [[1.0, 2.0]]
    assert not optimizer.state.get(stays)


@pytest.mark.parametrize("name", NAMES)
def test_state_continues_where_it_was_saved(name: str) -> None:
    config = OptimizerConfig(name=name, lr=0.3, momentum=0.9, weight_decay=0.01)
    whole = [parameter([[3.0, -4.0]]), parameter([1.0, 2.0])]
    optimizer = build_optimizer(config, whole)
    step(optimizer, [GRADIENTS[0]], GRADIENTS[1])
    resumed = [copy.deepcopy(p) for p in whole]
    saved = copy.deepcopy(optimizer.state_dict())
    other = build_optimizer(config, resumed)
    other.load_state_dict(saved)
    for gradient in GRADIENTS:
        step(optimizer, [gradient], gradient)
        step(other, [gradient], gradient)
    assert [flat(p) for p in whole] == [flat(p) for p in resumed]
    forgetful = [copy.deepcopy(p) for p in whole]
    step(build_optimizer(config, forgetful), [GRADIENTS[0]], GRADIENTS[0])
    step(optimizer, [GRADIENTS[0]], GRADIENTS[0])
    assert [flat(p) for p in whole] != [flat(p) for p in forgetful]


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_state_is_tensors(name: str) -> None:
    w = parameter([[1.0, 2.0]])
    optimizer = build_optimizer(OptimizerConfig(name=name, momentum=0.9), [w])
    step(optimizer, [[1.0, 1.0]])
    assert optimizer.state[w]
    assert all(isinstance(value, Tensor) for value in optimizer.state[w].values())


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_hooks_and_closure(name: str) -> None:
    """Strategies rely on torch's step hooks."""
    w = parameter([[1.0, 2.0]])
    optimizer = build_optimizer(OptimizerConfig(name=name, lr=0.1), [w])
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))

    def closure() -> float:
        calls.append("closure")
        loss = (w * w).sum()
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) == 5.0
    assert calls == ["before", "closure", "after"]
    assert w.tolist() != [[1.0, 2.0]]


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_decides_the_optimizer(name: str) -> None:
    config = OptimizerConfig(name=name, lr=0.3, momentum=0.8, weight_decay=0.01)
    optimizer = build_optimizer(config, iter([parameter([1.0])]))
    assert type(optimizer).__name__.lower() == name
    group = optimizer.param_groups[0]
    assert group["lr"] == 0.3
    assert group["weight_decay"] == 0.01
    assert group.get("momentum", 0.8) == 0.8
    assert (type(optimizer) in ELEMENTWISE_OPTIMIZERS) == (name not in ("lars", "lamb"))


def test_nesterov() -> None:
    optimizer = build_optimizer(OptimizerConfig(momentum=0.9, nesterov=True), [parameter([1.0])])
    assert optimizer.param_groups[0]["nesterov"] is True


def test_an_unknown_optimizer_is_not_called_elementwise() -> None:
    class Own(torch.optim.SGD):
        pass

    assert Own not in ELEMENTWISE_OPTIMIZERS
    assert torch.optim.Adafactor not in ELEMENTWISE_OPTIMIZERS


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda w: Lars([w], lr=-1.0), r"Lars got lr -1\.0; it must be at least 0"),
        (lambda w: Lars([w], lr=math.nan), "Lars got lr nan; it must be at least 0"),
        (lambda w: Lars([w], lr=1.0, momentum=-0.5), r"Lars got momentum -0\.5; it must be at least 0"),
        (lambda w: Lars([w], lr=1.0, weight_decay=-0.5), r"Lars got weight_decay -0\.5; it must be at least 0"),
        (lambda w: Lars([w], lr=1.0, trust=-0.5), r"Lars got trust -0\.5; it must be at least 0"),
        (lambda w: Lamb([w], lr=-1.0), r"Lamb got lr -1\.0; it must be at least 0"),
        (lambda w: Lamb([w], lr=1.0, eps=-1.0), r"Lamb got eps -1\.0; it must be at least 0"),
        (lambda w: Lamb([w], lr=1.0, weight_decay=-1.0), r"Lamb got weight_decay -1\.0; it must be at least 0"),
        (lambda w: Lamb([w], lr=1.0, betas=(0.9, 1.0)), r"betas \(0\.9, 1\.0\); each must be at least 0 and below 1"),
    ],
)
def test_invalid_values_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(parameter([1.0]))


def test_no_parameters_are_refused() -> None:
    with pytest.raises(UsageError, match="the optimizer got no parameters; pass those of a model"):
        build_optimizer(OptimizerConfig(), [])


def test_an_unknown_name_is_refused() -> None:
    """The recipe refuses it first; a configuration created otherwise still gets a message."""
    config = OptimizerConfig()
    object.__setattr__(config, "name", "lambda")
    with pytest.raises(UsageError, match="unknown optimizer 'lambda'; did you mean 'lamb'"):
        build_optimizer(config, [parameter([1.0])])
