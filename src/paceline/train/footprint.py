"""Memory that a worker needs for any batch size, extrapolated from training on two small batches.

A dispatch mode records every allocation while a worker trains on the two batches. Usually the order of allocations is
the same for both batches, so each allocation has two recorded sizes, which determine its size as a linear function of
the number of samples. Replaying all allocations with the sizes for another batch gives the peak memory of that batch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from paceline.codecs import TensorSpec
from paceline.data import Data, load_data
from paceline.measure.resource_usage import open_usage_reader
from paceline.models import build_model
from paceline.recipe import OptimizerConfig, Recipe
from paceline.train.allocator import LARGEST_BLOCK
from paceline.train.batchnorm import GlobalBatch, prepare_batchnorm
from paceline.train.context import Context
from paceline.train.optimizers import build_optimizer
from paceline.train.step import Arithmetic, Objective, build_objective, forward, forward_backward

SMALL, LARGE = 2, 4  # samples: BatchNorm needs two; two batches determine a line

Line = tuple[float, float]  # linear function of the number of samples: fixed bytes, bytes per sample
Change = tuple[int, Line | None]  # the number of an allocation, and its size when allocated or None when freed


@dataclass(frozen=True)
class Peaks:
    """Peak bytes of two groups of allocations: those in the heap, and those so large that each is mapped separately.

    The heap does not shrink after its peak (see `train/allocator.py`), so the process needs the sum of both peaks.
    """

    heap_bytes: int = 0
    mapped_bytes: int = 0

    def maximum(self, other: Peaks) -> Peaks:
        """Return the larger of the two heap peaks, and the larger of the two mapped peaks."""
        return Peaks(max(self.heap_bytes, other.heap_bytes), max(self.mapped_bytes, other.mapped_bytes))


class Allocations(TorchDispatchMode):
    """Recorder of the memory that torch operations allocate and free. Each allocation has a number, from 0."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[tuple[int, int | None]] = []  # number of an allocation, and its bytes or None when freed
        self._num_allocations = 0
        self._known: Any = WeakIdKeyDictionary()  # storages, by identity

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in _tensors((args, kwargs)):
            self._known[tensor.untyped_storage()] = True  # not allocated by this operation
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage not in self._known:
                self._known[storage] = True
                weakref.finalize(storage, self._free, self._take(storage.nbytes()))
        workspace = _workspace(func, args, result)
        if workspace:
            self._free(self._take(workspace))
        return result

    def _take(self, nbytes: int) -> int:
        piece, self._num_allocations = self._num_allocations, self._num_allocations + 1
        self.events.append((piece, nbytes))
        return piece

    def _free(self, piece: int) -> None:
        self.events.append((piece, None))


def _workspace(func: Any, args: Any, result: Any) -> int:
    """Estimate the bytes of a CPU convolution's workspace: copies of its tensors in a blocked layout.

    Returns 0 for other operations.
    """
    if "convolution" not in str(func) or not any(tensor.device.type == "cpu" for tensor in _tensors(args)):
        return 0
    return sum(tensor.nbytes for tensor in _tensors((args, result)))


def _tensors(tree: Any) -> Iterable[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Memory that one model on one data set needs, as measured by `footprint_job`."""

    process_bytes: int  # resident memory before data and model are loaded
    data_bytes: int  # resident memory that loading the data adds
    parameter_bytes: int  # parameters and buffers
    tensors: Sequence[tuple[int, int]]  # elements and bytes per element of each trained tensor
    batch_line: Line  # bytes of a loaded batch
    load_changes: Sequence[Change]  # allocations while a batch is loaded
    step_changes: Sequence[Change]  # allocations during forward and backward
    evaluation_changes: Sequence[Change]
    state_bytes: Mapping[OptimizerConfig, int]  # state of each optimiser after one step

    @property
    def specs(self) -> list[TensorSpec]:
        return [TensorSpec(numel, itemsize) for numel, itemsize in self.tensors]

    @property
    def gradient_bytes(self) -> int:
        return sum(spec.nbytes for spec in self.specs)


def footprint_job(context: Context, recipe: Recipe, optimizers: list[OptimizerConfig]) -> Footprint:
    """Measure the memory of one worker: process, data, model, training step, and the state of each optimiser.

    Run it in a fresh process, since memory that the process already holds counts as `process_bytes`.
    """
    reader = open_usage_reader()
    process_bytes = reader.read().rss_bytes
    torch.manual_seed(recipe.seed)
    data = load_data(recipe.data, seed=recipe.seed)
    data_bytes = max(reader.read().rss_bytes - process_bytes, 0)
    reader.close()
    arithmetic = Arithmetic(recipe.train.precision, recipe.train.channels_last, context.device)
    model = arithmetic.place(build_model(recipe.model.name, data))
    model = prepare_batchnorm(model, recipe.train.batchnorm, GlobalBatch(context.comm)).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    tensors = [*model.parameters(), *model.buffers()]
    batch_line, changes = _lines(model, data, arithmetic, build_objective(recipe.train.loss))
    return Footprint(
        process_bytes=process_bytes,
        data_bytes=data_bytes,
        parameter_bytes=sum(tensor.nbytes for tensor in tensors),
        tensors=[(parameter.numel(), parameter.element_size()) for parameter in trained],
        batch_line=batch_line,
        load_changes=changes["load"],
        step_changes=changes["step"],
        evaluation_changes=changes["evaluation"],
        state_bytes={config: _state_bytes(config, trained) for config in optimizers},
    )


def _lines(
    model: nn.Module, data: Data, arithmetic: Arithmetic, objective: Objective
) -> tuple[Line, dict[str, list[Change]]]:
    """Measure memory of training and evaluation with two batch sizes, and extrapolate it to any number of samples.

    Returns the bytes of a loaded batch, and the allocations in each of the phases `load` (of a batch), `step` (forward
    and backward) and `evaluation`. All sizes are linear functions of the number of samples.
    """
    batch: list[Any] = []

    def load(samples: int) -> None:
        indices = torch.arange(min(samples, len(data.train)))
        batch[:] = data.train.batch(indices, 0)

    def train(samples: int) -> None:
        del samples
        forward_backward(model, *batch, objective=objective, arithmetic=arithmetic)

    def evaluate(samples: int) -> None:
        indices = torch.arange(min(samples, len(data.test)))
        forward(model.eval(), *data.test.batch(indices, 0), objective=objective, arithmetic=arithmetic)
        model.train()

    events: dict[str, list[Any]] = {"load": [], "step": [], "evaluation": []}
    sizes: list[int] = []
    for samples in (SMALL, LARGE):
        for name, phase in (("load", load), ("step", train), ("evaluation", evaluate)):
            model.zero_grad()
            events[name].append(_record(phase, samples))
        sizes.append(sum(tensor.nbytes for tensor in _tensors(batch)))
    return _line(*sizes), {name: fit_changes(*both) for name, both in events.items()}


def _record(phase: Callable[[int], None], samples: int) -> list[tuple[int, int | None]]:
    allocations = Allocations()
    with allocations:
        phase(samples)
        return list(allocations.events)  # a copy, since tensors freed after the phase would still be added


def fit_changes(small: list[tuple[int, int | None]], large: list[tuple[int, int | None]]) -> list[Change]:
    """Return the recorded allocations, each with its size as a linear function of the number of samples.

    `small` and `large` are the allocations for batches of SMALL and LARGE samples. If their order differs, only those
    of the large batch are used, with sizes proportional to the number of samples.
    """
    is_same = [(piece, nbytes is None) for piece, nbytes in small] == [(piece, nb is None) for piece, nb in large]
    if not is_same:
        return [(piece, None if nbytes is None else (0.0, nbytes / LARGE)) for piece, nbytes in large]
    pairs = zip(small, large, strict=True)
    return [(piece, None if a is None or b is None else _line(a, b)) for (piece, a), (_, b) in pairs]


def _line(small: float, large: float) -> Line:
    slope = max((large - small) / (LARGE - SMALL), 0.0)
    return max(small - slope * SMALL, 0.0), slope


def bytes_at(line: Line, samples: int) -> int:
    return round(line[0] + line[1] * samples)


def replay(changes: Iterable[Change], samples: int) -> Peaks:
    """Return the peaks that recorded allocations would reach with a batch of `samples` samples."""
    alive: dict[int, int] = {}
    heap = mapped = heap_peak = mapped_peak = 0
    for piece, line in changes:
        nbytes = -alive.pop(piece) if line is None else bytes_at(line, samples)
        if line is not None:
            alive[piece] = nbytes
        if abs(nbytes) >= LARGEST_BLOCK:
            mapped += nbytes
        else:
            heap += nbytes
        heap_peak, mapped_peak = max(heap_peak, heap), max(mapped_peak, mapped)
    return Peaks(heap_peak, mapped_peak)


def _state_bytes(config: OptimizerConfig, parameters: list[nn.Parameter]) -> int:
    """Return the bytes of an optimiser's state after one step."""
    copies = [nn.Parameter(torch.zeros_like(parameter)) for parameter in parameters]
    optimizer = build_optimizer(config, copies)
    for copy in copies:
        copy.grad = torch.zeros_like(copy)
    optimizer.step()
    return sum(tensor.nbytes for tensor in _tensors(list(optimizer.state.values())))
