"""What a worker's memory goes to: measured on a few samples in a process of its own, and played again for any batch.

Operations are watched while a worker trains on two tiny batches. Both take and free memory in the same order, so that
each piece of it is a line over the number of samples; playing the order again with the sizes of another batch gives
the most that this batch has alive at once. Nothing is assumed of the model.
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
from paceline.measure.resource_meters import open_meter
from paceline.models import build_model
from paceline.recipe import OptimizerConfig, Recipe
from paceline.train.allocator import LARGEST_BLOCK
from paceline.train.batchnorm import GlobalBatch, prepare_batchnorm
from paceline.train.context import Context
from paceline.train.losses import Objective, build_objective
from paceline.train.optimizers import build_optimizer
from paceline.train.step import Arithmetic, forward, forward_backward

SMALL, LARGE = 2, 4  # samples: BatchNorm needs two, and two batches make a line

Line = tuple[float, float]  # bytes without samples, bytes per sample
Change = tuple[int, Line | None]  # a piece of memory, and how large it is; None: it is freed


@dataclass(frozen=True)
class Peaks:
    """The most bytes alive at once of pieces in the heap, and of those so large that each is mapped by itself.

    What the heap has had stays with the process (see `train/allocator.py`), so that both count at the end.
    """

    heap_bytes: int = 0
    mapped_bytes: int = 0

    def over(self, other: Peaks) -> Peaks:
        return Peaks(max(self.heap_bytes, other.heap_bytes), max(self.mapped_bytes, other.mapped_bytes))


class Allocations(TorchDispatchMode):
    """Notes the memory that operations make and when it is freed, each piece by its number."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[tuple[int, int | None]] = []  # a piece, and its bytes; None where it is freed
        self._num_pieces = 0
        self._known: Any = WeakIdKeyDictionary()  # storages, by identity

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in _tensors((args, kwargs)):
            self._known[tensor.untyped_storage()] = True  # what was there before is nobody's making
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
        piece, self._num_pieces = self._num_pieces, self._num_pieces + 1
        self.events.append((piece, nbytes))
        return piece

    def _free(self, piece: int) -> None:
        self.events.append((piece, None))


def _workspace(func: Any, args: Any, result: Any) -> int:
    """What a convolution on a CPU takes for itself: its tensors once more, in blocks that fit vector registers."""
    if "convolution" not in str(func) or not any(tensor.device.type == "cpu" for tensor in _tensors(args)):
        return 0
    return sum(tensor.nbytes for tensor in _tensors((args, result)))


def _tensors(tree: Any) -> Iterable[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What `footprint_job` measured of one model on one data set."""

    process_bytes: int
    data_bytes: int
    parameter_bytes: int
    tensors: Sequence[tuple[int, int]]  # numbers in each trained tensor, bytes of each number
    batch_line: Line
    load_changes: Sequence[Change]
    step_changes: Sequence[Change]
    judge_changes: Sequence[Change]
    state_bytes: Mapping[OptimizerConfig, int]

    @property
    def specs(self) -> list[TensorSpec]:
        return [TensorSpec(numel, itemsize) for numel, itemsize in self.tensors]

    @property
    def gradient_bytes(self) -> int:
        return sum(spec.nbytes for spec in self.specs)


def footprint_job(context: Context, recipe: Recipe, optimizers: list[OptimizerConfig]) -> Footprint:
    """One worker, alone: bytes of the process, of its data and of its model; and what depends on a batch.

    `state_bytes` has the memory that each of the optimisers keeps.
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
    batch_line, changes = _lines(model, data, arithmetic, build_objective(recipe.train.loss))
    return Footprint(
        process_bytes=process_bytes,
        data_bytes=data_bytes,
        parameter_bytes=sum(tensor.nbytes for tensor in whole),
        tensors=[(parameter.numel(), parameter.element_size()) for parameter in trained],
        batch_line=batch_line,
        load_changes=changes["load"],
        step_changes=changes["step"],
        judge_changes=changes["judge"],
        state_bytes={config: _state_bytes(config, trained) for config in optimizers},
    )


def _lines(
    model: nn.Module, data: Data, arithmetic: Arithmetic, objective: Objective
) -> tuple[Line, dict[str, list[Change]]]:
    """The size of a loaded batch; and the memory taken and freed by loading one, a step on it, and an evaluation."""
    kept: list[Any] = []  # the batch

    def load(samples: int) -> None:
        indices = torch.arange(min(samples, len(data.train)))
        kept[:] = data.train.batch(indices, 0)

    def train(samples: int) -> None:
        del samples
        forward_backward(model, *kept, objective=objective, arithmetic=arithmetic)

    def judge(samples: int) -> None:
        indices = torch.arange(min(samples, len(data.test)))
        forward(model.eval(), *data.test.batch(indices, 0), objective=objective, arithmetic=arithmetic)
        model.train()

    def clear() -> None:
        model.zero_grad()

    seen: dict[str, list[Any]] = {"load": [], "step": [], "judge": []}
    sizes: list[int] = []
    for samples in (SMALL, LARGE):
        for name, phase in (("load", load), ("step", train), ("judge", judge)):
            clear()
            seen[name].append(_watched(phase, samples))
        sizes.append(sum(tensor.nbytes for tensor in _tensors(kept)))
    return _line(*sizes), {name: changes_of(*both) for name, both in seen.items()}


def _watched(phase: Callable[[int], None], samples: int) -> list[tuple[int, int | None]]:
    allocations = Allocations()
    with allocations:
        phase(samples)
        return list(allocations.events)  # what is freed later belongs to another phase


def changes_of(small: list[tuple[int, int | None]], large: list[tuple[int, int | None]]) -> list[Change]:
    """The order of two batches with a line for every piece; where they differ, all of the larger one's grows alike."""
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
    """The same order of taking and freeing for another number of samples."""
    alive: dict[int, int] = {}
    heap = mapped = heap_peak = mapped_peak = 0
    for piece, line in changes:
        nbytes = alive.pop(piece) * -1 if line is None else bytes_at(line, samples)
        if line is not None:
            alive[piece] = nbytes
        if abs(nbytes) >= LARGEST_BLOCK:
            mapped += nbytes
        else:
            heap += nbytes
        heap_peak, mapped_peak = max(heap_peak, heap), max(mapped_peak, mapped)
    return Peaks(heap_peak, mapped_peak)


def _state_bytes(config: OptimizerConfig, parameters: list[nn.Parameter]) -> int:
    """What an optimiser keeps after a step on gradients of zero."""
    copies = [nn.Parameter(torch.zeros_like(parameter)) for parameter in parameters]
    optimizer = build_optimizer(config, copies)
    for copy in copies:
        copy.grad = torch.zeros_like(copy)
    optimizer.step()
    return sum(tensor.nbytes for tensor in _tensors(list(optimizer.state.values())))
