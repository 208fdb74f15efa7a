"""The state of a worker between two steps: everything that decides the rest of its training, and its measurements."""

from __future__ import annotations

from array import array
from typing import Any

import torch
from torch import Tensor

from paceline.checkpoint import Tree, load_optimizer_state, optimizer_state, rng_state, set_rng_state
from paceline.checkpoint.state_tree import restore_
from paceline.comm import Counter
from paceline.errors import RunError
from paceline.results import convert, to_json
from paceline.results.run import Evaluation
from paceline.strategies.capabilities import as_wrapped
from paceline.train.trainer import History, Trainer

_COLUMNS = ("iteration_s", "data_s", "loss", "num_right", "num_answers", "num_samples", "step_sent_bytes")


def worker_state(trainer: Trainer) -> Tree:
    """Return the state of a worker after its last step. Tensors are not copied."""
    return {
        "model": _model_tensors(trainer),
        "optimizer": optimizer_state(trainer.worker.optimizer),
        "strategy": trainer.strategy.state_dict(),
        "random": rng_state(),
        "history": _history_state(trainer.history),
        "counter": _counter_state(trainer.context.comm.counter),
        "skipped_steps": list(trainer.finite.skipped_steps),
    }


def restore_worker(trainer: Trainer, state: Tree, *, num_steps: int) -> None:
    """Restore a result of `worker_state`, so that training continues after `num_steps` completed steps.

    Every worker calls it, before the first step. Raises RunError if the state does not fit the model.
    """
    if as_wrapped(trainer.strategy) is not None and num_steps:
        # DistributedDataParallel arranges its buckets in its first step. With more than two workers, the arrangement
        # changes the order of sums, so the first step is repeated; everything else that it changes is restored below.
        trainer.rehearse()
    try:
        own = _model_tensors(trainer)
        if own.keys() != state["model"].keys():
            odd = sorted(own.keys() ^ state["model"].keys())[0]
            raise ValueError(f"{odd!r} is in only one of the two")
        for name, tensor in state["model"].items():
            restore_(own[name], tensor)
        load_optimizer_state(trainer.worker.optimizer, state["optimizer"])
        trainer.strategy.load_state_dict(state["strategy"])
        _load_history(trainer.history, state["history"])
        _load_counter(trainer.context.comm.counter, state["counter"])
        trainer.finite.skipped_steps[:] = state["skipped_steps"]
        trainer.first_step = num_steps
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"the checkpoint does not fit the model of this run: {error}") from error
    set_rng_state(state["random"])


def _model_tensors(trainer: Trainer) -> dict[str, Tensor]:
    return {**dict(trainer.model.named_parameters()), **dict(trainer.model.named_buffers())}


def _history_state(history: History) -> Tree:
    columns = {name: _as_tensor(getattr(history, name)) for name in _COLUMNS}
    evaluations = [to_json(evaluation) for evaluation in history.evaluations]
    return {**columns, "evaluations": evaluations, "train_s": history.train_s}


def _load_history(history: History, state: Tree) -> None:
    for name in _COLUMNS:
        getattr(history, name).extend(state[name].tolist())
    history.evaluations.extend(convert(evaluation, Evaluation) for evaluation in state["evaluations"])
    history.train_s = state["train_s"]


def _as_tensor(values: array[Any]) -> Tensor:
    dtype = torch.float64 if values.typecode == "d" else torch.int64
    # A copy, because an array that is exported to a tensor cannot grow.
    return torch.frombuffer(bytearray(values.tobytes()), dtype=dtype) if values else torch.empty(0, dtype=dtype)


def _counter_state(counter: Counter) -> Tree:
    return [[op, peer, counter.nbytes[op, peer], counter.calls[op, peer]] for op, peer in counter.nbytes]


def _load_counter(counter: Counter, state: Tree) -> None:
    counter.clear()
    for op, peer, nbytes, calls in state:
        counter.nbytes[op, peer], counter.calls[op, peer] = nbytes, calls
