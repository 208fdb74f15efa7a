"""Strategy `sharded`: each worker updates a slice of the parameters (ZeRO, stage 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from paceline.codecs import TensorSpec
from paceline.comm import Operation, SharedVector
from paceline.errors import UsageError
from paceline.strategies.base import Worker
from paceline.strategies.buckets import Bucket, Bucketed, GradientBuckets, plan_buckets, view_like
from paceline.strategies.capabilities import ShardedOptimizer, Withholding

# Optimisers whose update of an element depends on no other element, so that slices of a tensor can be updated apart.
# Subclasses are not included, because they may differ from their base.
ELEMENTWISE_OPTIMIZERS = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
)


@dataclass
class _Shard:
    """The slice of one parameter that this worker updates: elements `begin:end` of a vector of many parameters."""

    index: int  # of the parameter
    begin: int  # in the vector
    end: int
    kind: Any  # selects the vector
    parameter: nn.Parameter  # a view of the slice, for the optimiser


@dataclass(kw_only=True)
class Sharded(Bucketed, ShardedOptimizer, Withholding):
    """Gradients are reduce-scattered, each worker updates its slice, and parameters are all-gathered."""

    name: ClassVar[str] = "sharded"
    paper: ClassVar[str] = "Rajbhandari et al. 2020 (ZeRO, stage 1), arXiv:1910.02054"

    def check(self, num_workers: int, optimizer: type[torch.optim.Optimizer]) -> None:
        if num_workers > 1 and optimizer not in ELEMENTWISE_OPTIMIZERS:
            raise UsageError(
                f"strategy sharded needs an element-wise optimizer, and {optimizer.__name__.lower()} is not known "
                "to be one; use strategy overlap, or optimizer sgd, adam or adamw"
            )
        if self.codec.relative_error and self.codec.cast is None:
            raise UsageError(f"strategy sharded cannot use codec {self.codec.name}; use fp32, fp16 or bf16")

    def setup(self, worker: Worker) -> None:
        super().setup(worker)
        if worker.comm.world_size == 1:
            return
        self._parameter_vectors: dict[Any, SharedVector] = {}
        self._place_parameters()
        self._shards = [shard for bucket in self._buckets.buckets for shard in self._shards_of(bucket)]
        self._optimizer = self._inner_optimizer()
        # Gradients are set only once if the sums need no cast and no user's loop can replace gradients.
        self._has_lasting_gradients = worker.gradient_policy.partial_allowed and all(
            self._buckets.reductions[shard.kind].result.dtype == shard.parameter.dtype for shard in self._shards
        )
        self._buckets.is_reached = [True] * len(worker.parameters)
        self._set_gradients()
        first = self._buckets.buckets[0]
        # The first element of every worker's slice of the first bucket.
        self._marks = self._parameter_vectors[first.kind].memory[first.begin : first.end][
            :: (first.end - first.begin) // worker.comm.world_size
        ]
        self._marked_value: Tensor | None = None  # the value of this worker's element, while NaN is in its place

    def make_buckets(self) -> GradientBuckets:
        policy = self.worker.gradient_policy
        return GradientBuckets(
            self.worker,
            self.limits,
            is_scattered=policy.partial_allowed,
            is_shared=policy.in_place_allowed,
            divisor=self.worker.comm.world_size,
        )

    def after_backward(self) -> None:
        if self.worker.comm.world_size == 1:
            return
        self._buckets.finish()
        if not self.worker.gradient_policy.partial_allowed:
            self._buckets.set_gradients()
        elif not self._has_lasting_gradients:
            self._set_gradients()

    def step(self) -> None:
        worker = self.worker
        if worker.comm.world_size == 1:
            worker.optimizer.step()
            return
        if not worker.gradient_policy.partial_allowed:
            self._copy_replaced_gradients()
            worker.comm.barrier()  # a peer may still be reading parameters that this step changes
        for inner, outer in zip(self._optimizer.param_groups, worker.optimizer.param_groups, strict=True):
            inner.update({key: value for key, value in outer.items() if key != "params"})
        if not worker.gradient_policy.partial_allowed:
            self._set_gradients()
        if self._marked_value is None:
            self._optimizer.step()
        self._gather_parameters()

    def withhold(self) -> None:
        """Put NaN into this worker's part of the parameters, so that the gather at the end of `step` tells all workers.

        This worker's slices then stay as they are, while the other workers update theirs.
        """
        mark = self._marks[self.worker.comm.rank]
        self._marked_value = mark.clone()
        mark.fill_(torch.nan)

    def was_withheld(self) -> bool:
        if not bool(self._marks.isnan().any()):
            return False
        comm = self.worker.comm
        with comm.uncounted():
            comm.barrier()  # peers may still have to read the marks
            if self._marked_value is not None:
                self._marks[comm.rank].copy_(self._marked_value)
            self._gather_parameters()
        self._marked_value = None
        return True

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.worker.optimizer if self.worker.comm.world_size == 1 else self._optimizer

    def finish(self) -> None:
        """Copy every parameter from the comm's memory, where `setup` has placed it, to ordinary memory."""
        if self.worker.comm.world_size > 1:
            self.worker.comm.barrier()
            for parameter in self.worker.parameters:
                parameter.data = parameter.data.clone(memory_format=torch.preserve_format)

    def optimizer_share(self, num_workers: int) -> float:
        return 1 / num_workers

    def traffic(self, tensors: Sequence[TensorSpec], rank: int, world_size: int, step: int) -> list[Operation]:  # noqa: ARG002
        if world_size == 1:
            return []
        cast = self.codec.cast
        # Buckets are planned with the data type on the wire; parameters are gathered in their own type.
        sizes = [(t.numel, t.itemsize, (cast.itemsize if cast else t.itemsize, t.itemsize)) for t in tensors]
        buckets = plan_buckets(sizes, self.limits, divisor=world_size)
        operations = []
        for bucket in buckets:
            encoded, plain = bucket.kind
            length = bucket.end - bucket.begin
            operations.append(Operation("reduce_scatter", length * encoded))
            operations.append(Operation("all_gather", length // world_size * plain))
        return operations

    def state_dict(self) -> dict[str, Tensor]:
        """Return the optimiser state of this worker's slices, and the state of the codec."""
        if self.worker.comm.world_size == 1:
            return super().state_dict()
        return super().state_dict() | {
            f"optimizer.{index}.{name}": value
            for index, shard in enumerate(self._shards)
            for name, value in self._optimizer.state[shard.parameter].items()
            if isinstance(value, Tensor)
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        ours = {key: value for key, value in state.items() if key.startswith("optimizer.")}
        super().load_state_dict({key: value for key, value in state.items() if key not in ours})
        for key, value in ours.items():
            _, index, name = key.split(".", 2)
            self._optimizer.state[self._shards[int(index)].parameter][name] = value.clone()

    def _gather_parameters(self) -> None:
        for kind, vector in self._parameter_vectors.items():
            vector.gather([(b.begin, b.end) for b in self._buckets.buckets if b.kind == kind])

    def _place_parameters(self) -> None:
        """Move the parameters into vectors that the comm provides. Every step all-gathers these vectors at its end."""
        comm, buckets = self.worker.comm, self._buckets
        lengths = {bucket.kind: bucket.end for bucket in buckets.buckets}
        for kind, length in lengths.items():
            _, device, dtype = kind
            self._parameter_vectors[kind] = comm.shared_vector(length, dtype, device)
        for bucket in buckets.buckets:
            memory = self._parameter_vectors[bucket.kind].memory
            for index, offset in zip(bucket.members, bucket.offsets, strict=True):
                parameter = buckets.parameters[index]
                view = view_like(parameter, memory, offset)
                if comm.rank == 0 or not self._parameter_vectors[bucket.kind].is_one_memory:
                    view.copy_(parameter.detach())
                parameter.data = view
        comm.barrier()

    def _shards_of(self, bucket: Bucket) -> list[_Shard]:
        memory = self._parameter_vectors[bucket.kind].memory
        part = self._buckets.reductions[bucket.kind].part(bucket.begin, bucket.end)
        shards = []
        for index, offset in zip(bucket.members, bucket.offsets, strict=True):
            begin = max(part.start, offset)
            end = min(part.stop, offset + self._buckets.parameters[index].numel())
            if begin < end:
                parameter = nn.Parameter(memory[begin:end])
                shards.append(_Shard(index, begin, end, bucket.kind, parameter))
        return shards

    def _inner_optimizer(self) -> torch.optim.Optimizer:
        """Return a new optimiser for this worker's slices, with the class and settings of the user's optimiser."""
        outer = self.worker.optimizer
        indices = {parameter: index for index, parameter in enumerate(self._buckets.parameters)}
        groups = []
        for group in outer.param_groups:
            members = {indices[parameter] for parameter in group["params"] if parameter in indices}
            shards = [shard.parameter for shard in self._shards if shard.index in members]
            settings = {key: value for key, value in group.items() if key != "params"}
            groups.append({**settings, "params": shards})
        inner = type(outer)([{"params": [nn.Parameter(torch.empty(0))]}], lr=1.0)  # type: ignore[call-arg]
        inner.param_groups = groups
        return inner

    def _set_gradients(self) -> None:
        for shard in self._shards:
            shard.parameter.grad = self._gradient_of(shard)

    def _gradient_of(self, shard: _Shard) -> Tensor | None:
        if not self._buckets.is_reached[shard.index]:
            return None
        reduction = self._buckets.reductions[shard.kind]
        gradient = reduction.result[shard.begin : shard.end]
        return gradient if gradient.dtype == shard.parameter.dtype else gradient.to(shard.parameter.dtype)

    def _copy_replaced_gradients(self) -> None:
        """If the user's loop replaced gradients, copy them to the vectors that `step` reads.

        Also record which gradients are None.
        """
        for index, parameter in enumerate(self._buckets.parameters):
            self._buckets.is_reached[index] = parameter.grad is not None
            own = self._buckets.results[index]
            if parameter.grad is not None and parameter.grad.data_ptr() != own.data_ptr():
                own.copy_(parameter.grad)
