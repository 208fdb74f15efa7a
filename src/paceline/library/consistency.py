"""Checks for mistakes in the user's script: workers must have the same model and strategy, but different data."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from paceline.comm import Comm
from paceline.errors import RunError, UsageError
from paceline.strategies import Strategy

_NO_DIGEST = bytes(32)


class DataCheck:
    """Checks once, before the first step, that no two workers got the same batch.

    Until then, a hook hashes the model's input in every training forward pass. The check compares the latest hashes.
    """

    def __init__(self, model: nn.Module) -> None:
        self._digest = _NO_DIGEST
        self._handle = model.register_forward_pre_hook(self._hash, with_kwargs=True)

    def compare(self, comm: Comm) -> None:
        """Remove the hook, and raise RunError if the latest inputs of two workers have the same hash.

        All workers must call this together.
        """
        self._handle.remove()
        digests = _gather(self._digest, comm)
        first: dict[bytes, int] = {}
        for rank, digest in enumerate(digests):
            if digest != _NO_DIGEST and digest in first:
                raise RunError(
                    f"workers {first[digest]} and {rank} got identical batches, so the additional worker adds "
                    "nothing: use paceline.shard(loader), or parallel(..., check_data=False) if this is intended"
                )
            first.setdefault(digest, rank)

    def close(self) -> None:
        self._handle.remove()

    def _hash(self, model: nn.Module, inputs: Any, arguments: Any) -> None:
        if torch.compiler.is_compiling() or not (model.training and torch.is_grad_enabled()):
            return
        tensors = [leaf.detach() for leaf in tree_leaves((inputs, arguments)) if _is_hashable(leaf)]
        # Do not compare inputs whose tensors are constant (such as zeros in a benchmark): they are no real data.
        if all(bool((tensor == tensor.reshape(-1)[0]).all()) for tensor in tensors):
            self._digest = _NO_DIGEST
            return
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        self._digest = digest.digest()


def check_alike(model: nn.Module, strategy: Strategy, comm: Comm) -> None:
    """Raise UsageError if workers have different strategies, parameters or buffers, since training would deadlock.

    Parameters and buffers are compared by name, order, shape, dtype and requires_grad, not by value.
    """
    for what, facts in (
        ("strategies", [strategy.name, sorted(strategy.options.items()), strategy.codec.name]),
        ("models", [[name, *_facts(tensor)] for name, tensor in model.named_parameters()]),
        ("buffers", [[name, *_facts(tensor)] for name, tensor in model.named_buffers()]),
    ):
        digests = _gather(hashlib.sha256(repr(facts).encode()).digest(), comm)
        odd = next((rank for rank, other in enumerate(digests) if other != digests[0]), None)
        if odd is not None:
            raise UsageError(
                f"workers 0 and {odd} called parallel() with different {what}; pass the same on every worker"
            )


def _facts(tensor: Tensor) -> list[Any]:
    return [tuple(tensor.shape), tensor.dtype, tensor.requires_grad]


def _gather(digest: bytes, comm: Comm) -> list[bytes]:
    own = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
    with comm.uncounted():
        return [bytes(other.tolist()) for other in comm.all_gather(own)]


def _is_hashable(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.layout is torch.strided and not leaf.is_quantized and leaf.numel() > 0
