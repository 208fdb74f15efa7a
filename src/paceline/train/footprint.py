"""What a worker's memory goes to: measured on a few samples in a process of its own, as lines over the batch.

Operations are watched while a worker trains on two tiny batches. Both make the same operations in the same order, so
what is alive after each of them is a line over the number of samples; the highest of these lines at a batch's size is
the most that such a batch needs. Nothing is assumed of the model.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from paceline.data import Data, load_data
from paceline.measure.process import open_meter
from paceline.models import build_model
from paceline.recipe import OptimizerConfig, Recipe
from paceline.train.batchnorm import GlobalBatch, prepare_batchnorm
from paceline.train.context import Context
from paceline.train.losses import Objective, build_objective
from paceline.train.optimizers import build_optimizer
from paceline.train.step import Arithmetic, forward, forward_backward

SMALL, LARGE = 2, 4  # samples: BatchNorm needs two, and two batches make a line

Line = tuple[float, float]  # bytes without samples, bytes per sample


class Allocations(TorchDispatchMode):
    """Adds up the memory that operations make, for as long as it lives; `timeline` has the sum after each."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.timeline: list[int] = []
        self._live = 0
        self._known: Any = WeakIdKeyDictionary()  # storages, by identity

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in _tensors((args, kwargs)):
            self._known[tensor.untyped_storage()] = True  # what was there before is nobody's making
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            self._count(tensor.untyped_storage())
        self.timeline.append(self._live + _workspace(func, args, result))
        return result

    def _count(self, storage: Any) -> None:
        if storage not in self._known:
            self._known[storage] = True
            self._live += storage.nbytes()
            weakref.finalize(storage, self._free, storage.nbytes())

    def _free(self, nbytes: int) -> None:
        self._live -= nbytes


def _workspace(func: Any, args: Any, result: Any) -> int:
    """What a convolution on a CPU takes for itself: its tensors once more, in blocks that fit vector registers."""
    if "convolution" not in str(func) or not any(tensor.device.type == "cpu" for tensor in _tensors(args)):
        return 0
    return sum(tensor.nbytes for tensor in _tensors((args, result)))


def _tensors(tree: Any) -> Iterable[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def footprint_job(context: Context, recipe: Recipe, optimizers: list[OptimizerConfig]) -> dict[str, Any]:
    """One worker, alone: bytes of the process, of its data and of its model; and lines for all that depends on a batch.

    `state_bytes` has what each of the optimisers keeps, in their order.
    """
    meter = open_meter()
    process_bytes = meter.read().rss_bytes
    torch.manual_seed(recipe.seed)
    data = load_data(recipe.data, seed=recipe.seed)
    data_bytes = max(meter.read().rss_bytes - process_bytes, 0)
    meter.close()
    arithmetic = Arithmetic(recipe.train.precision, recipe.train.channels_last, context.device)
    model = arithmetic.place(build_model(recipe.model.name, data))
    model = prepare_batchnorm(model, recipe.train.batchnorm, GlobalBatch(context.comm)).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    whole = [*model.parameters(), *model.buffers()]
    return {
        "process_bytes": process_bytes,
        "data_bytes": data_bytes,
        "parameter_bytes": sum(tensor.nbytes for tensor in whole),
        "tensors": [(parameter.numel(), parameter.element_size()) for parameter in trained],
        **_lines(model, data, arithmetic, build_objective(recipe.train.loss)),
        "state_bytes": [_state_bytes(config, trained) for config in optimizers],
    }


def _lines(model: nn.Module, data: Data, arithmetic: Arithmetic, objective: Objective) -> dict[str, Any]:
    """Loading a batch, what stays of it, a step on it, and judging the replica on one."""
    kept: dict[str, Any] = {}

    def load(samples: int) -> None:
        indices = torch.arange(min(samples, len(data.train)))
        kept["batch"] = data.train.batch(indices, 0)

    def train(samples: int) -> None:
        del samples
        forward_backward(model, *kept["batch"], objective=objective, arithmetic=arithmetic)

    def judge(samples: int) -> None:
        indices = torch.arange(min(samples, len(data.test)))
        forward(model.eval(), *data.test.batch(indices, 0), objective=objective, arithmetic=arithmetic)
        model.train()

    def clear() -> None:
        model.zero_grad()

    timelines: dict[str, list[list[int]]] = {"load": [], "step": [], "judge": []}
    sizes: list[int] = []
    for samples in (SMALL, LARGE):
        for name, phase in (("load", load), ("step", train), ("judge", judge)):
            clear()
            timelines[name].append(_watched(phase, samples))
        sizes.append(sum(tensor.nbytes for tensor in _tensors(kept["batch"])))
    return {
        "batch_line": _line(*sizes),
        **{f"{name}_lines": highest(lines_of(*both)) for name, both in timelines.items()},
    }


def _watched(phase: Callable[[int], None], samples: int) -> list[int]:
    allocations = Allocations()
    with allocations:
        phase(samples)
    return allocations.timeline


def lines_of(small: list[int], large: list[int]) -> list[Line]:
    """A line for every operation; where the two batches made different ones, one line through both peaks."""
    if len(small) != len(large):
        return [_line(max(small, default=0), max(large, default=0))]
    return [_line(*both) for both in zip(small, large, strict=True)]


def _line(small: float, large: float) -> Line:
    slope = max((large - small) / (LARGE - SMALL), 0.0)
    return max(small - slope * SMALL, 0.0), slope


def highest(lines: Iterable[Line]) -> list[Line]:
    """Those lines that are above all others for some batch, the flattest first."""
    found: list[Line] = []
    for constant, slope in sorted(set(lines), key=lambda line: (line[1], line[0])):
        while found and found[-1][0] <= constant:  # flatter and lower: never above
            found.pop()
        found.append((constant, slope))
    return found


def bytes_at(lines: Iterable[Line], samples: int) -> int:
    """The most that any of the lines reaches for so many samples."""
    return round(max((constant + slope * samples for constant, slope in lines), default=0.0))


def _state_bytes(config: OptimizerConfig, parameters: list[nn.Parameter]) -> int:
    """What an optimiser keeps after a step on gradients of zero."""
    copies = [nn.Parameter(torch.zeros_like(parameter)) for parameter in parameters]
    optimizer = build_optimizer(config, copies)
    for copy in copies:
        copy.grad = torch.zeros_like(copy)
    optimizer.step()
    return sum(tensor.nbytes for tensor in _tensors(list(optimizer.state.values())))
