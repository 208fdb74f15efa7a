"""Prediction of a run's peak memory. `paceline sweep` refuses runs that would need more memory than is available.

The prediction extrapolates from a footprint: the allocations of training on a few samples, recorded in a new process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from paceline.errors import WorkerError
from paceline.launch.base import Task
from paceline.launch.local import LocalPool
from paceline.recipe import Recipe
from paceline.strategies import StrategySpec
from paceline.strategies.capabilities import buffer_bytes_of, micro_batches_of, optimizer_share_of
from paceline.study.entries import Entry
from paceline.train.allocator import LARGEST_BLOCK
from paceline.train.context import ignore_event
from paceline.train.evaluate import BATCH
from paceline.train.footprint import Footprint, Peaks, bytes_at, footprint_job, replay

# These values were found with benchmarks/memory.py; docs/sweep.md says how accurate the prediction is.
HEAP_FACTOR = 2.0  # allows for heap fragmentation and temporary memory of libraries
TRAINING_BYTES = 10_000_000  # code and caches loaded in the first steps
# For versions 2 and 1 of Linux control groups: the folder, the files with the limit and the usage, and the entry of
# memory.stat with the reclaimable part of the usage.
CONTROL_GROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)

FootprintKey = tuple[Any, ...]  # the settings that determine a footprint; see footprint_key


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predicted peak memory of one worker, split into parts, and the numbers of workers and servers."""

    process_bytes: int  # interpreter, libraries, connections
    data_bytes: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int  # including the batch and temporary memory of layers
    buffers_bytes: int  # buffers of the strategy
    num_workers: int
    num_servers: int

    @property
    def worker_bytes(self) -> int:
        model = self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes
        return self.process_bytes + self.data_bytes + model + self.activations_bytes + self.buffers_bytes

    @property
    def server_bytes(self) -> int:
        """Memory of a parameter server in bytes.

        Compared with a worker, a server holds one more gradient (a received one), but no activations and no buffers.
        """
        model = self.parameters_bytes + 2 * self.gradients_bytes + self.optimizer_bytes
        return self.process_bytes + self.data_bytes + model

    @property
    def total_bytes(self) -> int:
        return self.num_workers * self.worker_bytes + self.num_servers * self.server_bytes

    def to_dict(self) -> dict[str, int]:
        """Return all fields, and the memory of one worker and of all processes, as plain values."""
        sums = {"worker_bytes": self.worker_bytes, "total_bytes": self.total_bytes}
        return {**dataclasses.asdict(self), **sums}


def footprint_key(recipe: Recipe) -> FootprintKey:
    """Return the settings on which a memory footprint depends. Runs with equal settings share one footprint."""
    train = recipe.train
    return (
        recipe.model,
        recipe.data,
        train.precision,
        train.channels_last,
        train.loss,
        train.batchnorm,
        recipe.device,
        recipe.seed,
    )


def measure_footprints(recipes: Iterable[Recipe]) -> tuple[dict[FootprintKey, Footprint], list[str]]:
    """Measure one memory footprint per distinct `footprint_key` of the recipes, each in a new process.

    Return the footprints by their keys, and a sentence for each footprint that could not be measured.
    """
    groups: dict[FootprintKey, list[Recipe]] = {}
    for recipe in recipes:
        groups.setdefault(footprint_key(recipe), []).append(recipe)
    found, reasons = {}, []
    for key, group in groups.items():
        try:
            found[key] = _footprint(group)
        except WorkerError as error:
            reasons.append(f"memory of {group[0].model.name} on {group[0].data.name} cannot be predicted: {error}")
    return found, reasons


def _footprint(recipes: Sequence[Recipe]) -> Footprint:
    recipe = recipes[0]
    optimizers = list(dict.fromkeys(recipe.optimizer for recipe in recipes))
    arguments = {"recipe": recipe, "optimizers": optimizers}
    task = Task(footprint_job, arguments, num_workers=1, device=recipe.device, timeout_s=recipe.timeout_s)
    found: Footprint
    with LocalPool(1) as launcher:
        [found] = launcher.run(task, ignore_event)
    return found


def predict(footprint: Footprint, recipe: Recipe, entry: Entry, micro_batch_size: int | None = None) -> Prediction:
    """Predict the peak memory of a run's workers. If `micro_batch_size` is set, it replaces the recipe's.

    A worker loads a batch, computes on one micro-batch at a time, then evaluates the replica and copies it for saving.
    The heap never shrinks, so the activity that needs most memory determines its size. Large blocks are mapped outside
    the heap, and their memory is returned to the system as soon as they are freed.
    """
    recipe = entry.recipe(recipe)
    strategy = StrategySpec.parse(entry.spec, entry.codec).build()
    samples = -(-recipe.batch_size // entry.num_workers)
    micro = micro_batch_size or recipe.train.micro_batch_size or samples
    num_pieces = min(max(-(-samples // micro), micro_batches_of(strategy)), samples)
    piece = -(-samples // num_pieces)
    gradients = footprint.gradient_bytes
    batch = _block_peaks(bytes_at(footprint.batch_line, samples))
    step = replay(footprint.step_changes, piece)  # includes the gradients of the micro-batch
    before = gradients if num_pieces > 1 else 0  # gradients accumulated over micro-batches
    heap = max(batch.heap_bytes + step.heap_bytes + before - gradients, 0)
    peaks = Peaks(heap, batch.mapped_bytes + step.mapped_bytes)
    peaks = peaks.maximum(replay(footprint.load_changes, samples)).maximum(replay(footprint.evaluation_changes, BATCH))
    copy = _block_peaks(footprint.parameter_bytes)  # saving copies single tensors, then all of them in one block
    peaks = peaks.maximum(Peaks(footprint.parameter_bytes + copy.heap_bytes, copy.mapped_bytes))
    return Prediction(
        process_bytes=footprint.process_bytes + TRAINING_BYTES,
        data_bytes=footprint.data_bytes,
        parameters_bytes=footprint.parameter_bytes,
        gradients_bytes=gradients,
        optimizer_bytes=round(
            footprint.state_bytes[recipe.optimizer] * optimizer_share_of(strategy, entry.num_workers)
        ),
        activations_bytes=round(HEAP_FACTOR * peaks.heap_bytes) + peaks.mapped_bytes,
        buffers_bytes=buffer_bytes_of(strategy, footprint.specs, rank=0, world_size=entry.num_workers),
        num_workers=entry.num_workers,
        num_servers=entry.num_servers,
    )


def _block_peaks(nbytes: int) -> Peaks:
    """Return the peak memory of one block of `nbytes`: in the heap, or mapped outside it if the block is large."""
    return Peaks(mapped_bytes=nbytes) if nbytes >= LARGEST_BLOCK else Peaks(nbytes)


@dataclass(frozen=True)
class MemoryLimit:
    """Memory available on this machine or on one emulated node, and the number of processes that share it."""

    available_bytes: int
    num_workers: int  # workers and servers
    is_node: bool = False  # whether this is the memory of an emulated node

    def __str__(self) -> str:
        available = amount(self.available_bytes)
        return f"a node has {available} (cluster.memory)" if self.is_node else f"{available} are available"

    def needed_bytes(self, prediction: Prediction) -> int:
        if self.num_workers >= prediction.num_workers:
            return prediction.total_bytes
        return self.num_workers * prediction.worker_bytes


def memory_limits(recipe: Recipe, entry: Entry) -> list[MemoryLimit]:
    """Return the memory available to a run: that of this machine and, if limited, that of an emulated node."""
    limits = [MemoryLimit(available_bytes(), entry.num_processes)]
    node_bytes = recipe.cluster.memory_bytes if recipe.cluster.nodes else None
    if node_bytes is not None:
        on_a_node = -(-entry.num_processes // recipe.cluster.nodes)
        limits.append(MemoryLimit(node_bytes, on_a_node, is_node=True))
    return limits


def memory_refusal(footprint: Footprint, recipe: Recipe, entry: Entry, limits: Sequence[MemoryLimit]) -> str:
    """Return why a run does not fit into memory, with a remedy such as micro-batches, or an empty string if it fits."""
    prediction = predict(footprint, recipe, entry)
    for limit in limits:
        needed = limit.needed_bytes(prediction)
        if needed <= limit.available_bytes:
            continue
        workers = min(limit.num_workers, prediction.num_workers)
        each = f" ({workers} workers of {amount(prediction.worker_bytes)})" if workers > 1 else ""
        remedy = _memory_remedy(footprint, recipe, entry, limits, limit)
        return f"needs {amount(needed)}{each}, but {limit}; {remedy}"
    return ""


def _memory_remedy(
    footprint: Footprint, recipe: Recipe, entry: Entry, limits: Sequence[MemoryLimit], limit: MemoryLimit
) -> str:
    if recipe.train.batchnorm == "sync":
        return "use a smaller batch (batchnorm sync takes no micro-batches)"
    size = fitting_micro_batch(footprint, recipe, entry, limits)
    needed = amount(limit.needed_bytes(predict(footprint, recipe, entry, size or 1)))
    if size is None:
        return f"even one sample at a time would need {needed}, so use fewer workers or a smaller model"
    return f"--micro-batch-size {size} would need {needed}"


def fitting_micro_batch(
    footprint: Footprint, recipe: Recipe, entry: Entry, limits: Sequence[MemoryLimit]
) -> int | None:
    """Return the largest micro-batch size, among powers of two, with which a run fits into memory.

    Return None if even a micro-batch of one sample does not fit.
    """
    size = 1 << (-(-recipe.batch_size // entry.num_workers)).bit_length() - 1
    while size:
        prediction = predict(footprint, recipe, entry, size)
        if all(limit.needed_bytes(prediction) <= limit.available_bytes for limit in limits):
            return size
        size //= 2
    return None


def available_bytes(control_groups: Sequence[tuple[Path, str, str, str]] = CONTROL_GROUPS) -> int:
    """Return the memory available on this machine, or in this process's control group (cgroup) if that is less."""
    found = [int(psutil.virtual_memory().available)]
    for folder, limit_file, used_file, files in control_groups:
        limit, used = _words(folder / limit_file), _words(folder / used_file)
        if limit and used and limit[0].isdecimal():
            words = _words(folder / "memory.stat")
            files_bytes = int(words[words.index(files) + 1]) if files in words else 0
            found.append(max(int(limit[0]) - int(used[0]) + files_bytes, 0))
    return min(found)


def _words(file: Path) -> list[str]:
    """Return the words of a text file, or an empty list if it does not exist."""
    return file.read_text(encoding="ascii").split() if file.is_file() else []


def amount(num_bytes: float) -> str:
    """Format a number of bytes as MB or GB."""
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"
