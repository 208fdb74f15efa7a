"""Functions on the model replicas of all workers: make them equal, compare, average and save them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from paceline.comm import Comm
from paceline.durable_files import durable_path
from paceline.errors import RunError


def make_equal(model: nn.Module, comm: Comm) -> None:
    """Broadcast the parameters and buffers of rank 0 to all workers.

    This is necessary because a user's model function may initialise the model differently on each worker.
    """
    if comm.world_size == 1:
        return
    with comm.uncounted(), torch.no_grad():
        for tensor in _tensors(model).values():
            contiguous = tensor.contiguous()
            comm.broadcast(contiguous, root=0)
            tensor.copy_(contiguous)


def parameter_digest(model: nn.Module) -> str:
    """Return a hash (SHA-256, hexadecimal) of the names and bits of all parameters."""
    return _digest({name: p.detach() for name, p in model.named_parameters()})


def all_equal(model: nn.Module, comm: Comm) -> bool:
    """Return whether parameters and buffers are bitwise equal on all workers."""
    if comm.world_size == 1:
        return True
    own = torch.frombuffer(bytearray(bytes.fromhex(_digest(_tensors(model)))), dtype=torch.uint8)
    with comm.uncounted():
        return all(torch.equal(own, other) for other in comm.all_gather(own))


def replica_drift(model: nn.Module, comm: Comm) -> float:
    """Return the drift of the replicas: the maximum over workers of ||w - mean|| / ||mean||.

    w are the parameters of a worker, and mean is the average of w over all workers.
    """
    if comm.world_size == 1:
        return 0.0
    sums = torch.zeros(2, dtype=torch.float64)
    with comm.uncounted(), torch.no_grad():
        for parameter in model.parameters():
            own = parameter.detach().double().cpu().contiguous()
            mean = own.clone()
            comm.all_reduce(mean)
            mean /= comm.world_size
            sums += torch.stack([(own - mean).square().sum(), mean.square().sum()])
        gathered = comm.all_gather(sums)
    return max(float((difference / norm).sqrt()) for difference, norm in gathered)


def own_state(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of this worker's state_dict, on the CPU."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}


def mean_state(model: nn.Module, comm: Comm) -> dict[str, Tensor]:
    """Return the state_dict on the CPU, with its floating-point tensors averaged over all workers.

    Other tensors are those of this worker.
    """
    state = own_state(model)
    if all_equal(model, comm):
        return state
    with comm.uncounted(), torch.no_grad():
        for tensor in state.values():
            if tensor.is_floating_point():
                comm.all_reduce(tensor)
                tensor /= comm.world_size
    return state


def save_weights(state: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """Write weights to a safetensors file. After a crash, the file has its old or its new content."""
    try:
        with durable_path(path) as temporary:
            save_file(state, temporary, metadata=metadata)
    except (OSError, SafetensorError) as error:
        raise RunError(f"checkpoint {path.name} cannot be written: {error}") from error


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
