"""Whether workers were given the same things, and really see different data."""

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
    """Remembers what the model was last called with in training; compared over workers once, before the first step."""

    def __init__(self, model: nn.Module) -> None:
        self._digest = _NO_DIGEST
        self._handle = model.register_forward_pre_hook(self._look, with_kwargs=True)

    def compare(self, comm: Comm) -> None:
        """Raise where two workers saw the same batch; the model is not watched any longer."""
        self._handle.remove()
        everybody = _exchange(self._digest, comm)
        first: dict[bytes, int] = {}
        for rank, digest in enumerate(everybody):
            if digest != _NO_DIGEST and digest in first:
                raise RunError(
                    f"workers {first[digest]} and {rank} see identical batches, so that more workers would learn "
                    "nothing more: use paceline.shard(loader), or parallel(..., check_data=False) if that is meant"
                )
            first.setdefault(digest, rank)

    def close(self) -> None:
        self._handle.remove()

    def _look(self, model: nn.Module, inputs: Any, arguments: Any) -> None:
        if torch.compiler.is_compiling() or not (model.training and torch.is_grad_enabled()):
            return
        tensors = [leaf.detach() for leaf in tree_leaves((inputs, arguments)) if _is_plain(leaf)]
        # A batch of nothing but one value is no sample of anything: a benchmark's zeros, say.
        if all(bool((tensor == tensor.reshape(-1)[0]).all()) for tensor in tensors):
            self._digest = _NO_DIGEST
            return
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        self._digest = digest.digest()


def check_alike(model: nn.Module, strategy: Strategy, comm: Comm) -> None:
    """Raise where workers hold models of other shapes or another strategy: they would wait for each other in vain."""
    for what, said in (
        ("strategies", [strategy.name, sorted(strategy.options.items()), strategy.codec.name]),
        ("models", [[name, *_facts(tensor)] for name, tensor in model.named_parameters()]),
        ("buffers", [[name, *_facts(tensor)] for name, tensor in model.named_buffers()]),
    ):
        everybody = _exchange(hashlib.sha256(repr(said).encode()).digest(), comm)
        odd = next((rank for rank, other in enumerate(everybody) if other != everybody[0]), None)
        if odd is not None:
            raise UsageError(f"workers 0 and {odd} called parallel() with different {what}")


def _facts(tensor: Tensor) -> list[Any]:
    return [tuple(tensor.shape), tensor.dtype, tensor.requires_grad]


def _exchange(digest: bytes, comm: Comm) -> list[bytes]:
    own = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
    with comm.uncounted():
        return [bytes(other.tolist()) for other in comm.all_gather(own)]


def _is_plain(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.layout is torch.strided and not leaf.is_quantized and leaf.numel() > 0
