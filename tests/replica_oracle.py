"""Oracle for strategies that mix weights: one process trains all replicas and mixes them number by number.

It shares no code with the strategies: mixing is written as plain loops over plain numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from paceline.comm import Counter
from paceline.data import ShardPlan
from paceline.strategies import StrategySpec
from paceline.train.context import Context
from paceline.train.optimizers import build_optimizer, learning_rate
from paceline.train.step import Arithmetic, build_objective, forward_backward
from paceline.train.trainer import Trainer
from toys import toy_data, toy_model, toy_recipe

Vectors = list[list[float]]  # every worker's replica as plain numbers


def flat(model: torch.nn.Module) -> list[float]:
    return [number for p in model.parameters() if p.requires_grad for number in p.detach().flatten().tolist()]


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


class Mixing:
    """Mixing of replicas after a step (default: none) and at the end (default: their mean)."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers

    def mix(self, step: int, replicas: Vectors) -> Vectors:  # noqa: ARG002
        return replicas

    def finish(self, replicas: Vectors) -> list[float]:
        return [mean(list(numbers)) for numbers in zip(*replicas, strict=True)]


class StepwiseMixing(Mixing):
    """A number is passed along the workers; the k-th (from 0) continues with the mean of the first k + 1."""

    def __init__(
        self,
        num_workers: int,
        *,
        form: str = "chunks",
        rotate: bool = True,
        exact_every: int = 0,
        delayed: bool = False,
    ) -> None:
        super().__init__(num_workers)
        self.form, self.rotate, self.exact_every, self.delayed = form, rotate, exact_every, delayed
        self.corrections: Vectors | None = None

    def chunk_of(self, element: int, length: int) -> int:
        """Return the chunk of a number; the first `length mod p` chunks are one number longer."""
        if self.form == "whole":
            return 0
        last = -1
        for chunk in range(self.num_workers):
            last += length // self.num_workers + (1 if chunk < length % self.num_workers else 0)
            if element <= last:
                return chunk
        raise AssertionError(f"{element} lies beyond {length}")

    def order(self, step: int, chunk: int) -> list[int]:
        """Return the workers in the order in which a chunk is passed along."""
        first = chunk - step if self.rotate else chunk
        return [(first + k) % self.num_workers for k in range(self.num_workers)]

    def mix(self, step: int, replicas: Vectors) -> Vectors:
        replicas = self.corrected(replicas)
        length = len(replicas[0])
        if self.exact_every and (step + 1) % self.exact_every == 0:
            return [[mean([r[e] for r in replicas]) for e in range(length)] for _ in replicas]
        mixed = [[0.0] * length for _ in replicas]
        for element in range(length):
            visited: list[float] = []
            for worker in self.order(step, self.chunk_of(element, length)):
                visited.append(replicas[worker][element])
                mixed[worker][element] = mean(visited)
        if self.delayed:
            full = [mean([r[e] for r in replicas]) for e in range(length)]
            self.corrections = [[full[e] - row[e] for e in range(length)] for row in mixed]
        return mixed

    def corrected(self, replicas: Vectors) -> Vectors:
        corrections, self.corrections = self.corrections, None
        if corrections is None:
            return replicas
        return [[a + b for a, b in zip(w, c, strict=True)] for w, c in zip(replicas, corrections, strict=True)]

    def finish(self, replicas: Vectors) -> list[float]:
        return super().finish(self.corrected(replicas))


class GossipMixing(Mixing):
    def mix(self, step: int, replicas: Vectors) -> Vectors:
        distances = [1]
        while distances[-1] * 2 < self.num_workers:
            distances.append(distances[-1] * 2)
        away = distances[step % len(distances)]
        pairs = [(replicas[i], replicas[(i - away) % self.num_workers]) for i in range(self.num_workers)]
        return [[(a + b) / 2 for a, b in zip(own, other, strict=True)] for own, other in pairs]


class LocalSgdMixing(Mixing):
    def __init__(self, num_workers: int, *, every: int, start: list[float], lr: float = 1.0, momentum: float = 0.0):
        super().__init__(num_workers)
        self.every, self.lr, self.momentum = every, lr, momentum
        self.anchor, self.velocity = list(start), [0.0] * len(start)
        self.is_synchronised = True

    def mix(self, step: int, replicas: Vectors) -> Vectors:
        self.is_synchronised = (step + 1) % self.every == 0
        if not self.is_synchronised:
            return replicas
        for e in range(len(self.anchor)):
            gradient = self.anchor[e] - mean([r[e] for r in replicas])
            self.velocity[e] = self.momentum * self.velocity[e] + gradient
            self.anchor[e] -= self.lr * (gradient + self.momentum * self.velocity[e])
        return [list(self.anchor) for _ in replicas]

    def finish(self, replicas: Vectors) -> list[float]:
        return replicas[0] if self.is_synchronised else super().finish(replicas)


def _stepwise(num_workers: int, options: dict[str, Any], start: list[float]) -> Mixing:
    del start
    return StepwiseMixing(
        num_workers,
        form=options["form"],
        rotate=options["rotate"],
        exact_every=options["exact_every"],
        delayed=options["correct"] == "delayed",
    )


def _gossip(num_workers: int, options: dict[str, Any], start: list[float]) -> Mixing:
    del options, start
    return GossipMixing(num_workers)


def _local_sgd(num_workers: int, options: dict[str, Any], start: list[float]) -> Mixing:
    lr, momentum = options["outer_lr"], options["outer_momentum"]
    return LocalSgdMixing(num_workers, every=options["sync_every"], start=start, lr=lr, momentum=momentum)


# Every strategy that averages weights needs an entry: number of workers, options and initial weights to a mixing.
ORACLES: dict[str, Callable[[int, dict[str, Any], list[float]], Mixing]] = {
    "gossip": _gossip,
    "local-sgd": _local_sgd,
    "stepwise": _stepwise,
}


def oracle_for(strategy: str, num_workers: int, model: str = "plain") -> Mixing:
    """Return the mixing of a strategy for a toy model."""
    spec = StrategySpec.parse(strategy)
    return ORACLES[spec.name](num_workers, spec.build().options, flat(toy_model(model)))


def replica_steps(changes: dict[str, Any], mixing: Mixing, model: str = "plain") -> Iterator[Vectors]:
    """Yield all replicas after each step of a toy training, then the one replica that `finish` produces."""
    size = mixing.num_workers
    recipe, data = toy_recipe(size, changes), toy_data()
    models = [toy_model(model) for _ in range(size)]
    optimizers = [build_optimizer(recipe.optimizer, [p for p in m.parameters() if p.requires_grad]) for m in models]
    plan = ShardPlan(len(data.train), recipe.batch_size, size, recipe.seed)
    total_steps = recipe.num_steps(len(data.train))
    objective, arithmetic = build_objective(recipe.train.loss), Arithmetic("fp64")
    replicas: Vectors = []
    for step in range(total_steps):
        epoch, index = divmod(step, plan.steps_per_epoch)
        rate = learning_rate(step, recipe, steps_per_epoch=plan.steps_per_epoch, total_steps=total_steps)
        for rank, (replica, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            indices = plan.shard(epoch, index, rank)
            if len(indices):
                forward_backward(replica, *data.train.batch(indices, epoch), objective=objective, arithmetic=arithmetic)
            for parameter in replica.parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)  # no samples: only momentum moves it
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
        replicas = mixing.mix(step, [flat(replica) for replica in models])
        for replica, numbers in zip(models, replicas, strict=True):
            write(replica, numbers)
        yield replicas
    yield [mixing.finish(replicas)]


def write(model: torch.nn.Module, numbers: list[float]) -> None:
    values = torch.tensor(numbers, dtype=torch.float64)
    trained = [p for p in model.parameters() if p.requires_grad]
    with torch.no_grad():
        for parameter, part in zip(trained, values.split([p.numel() for p in trained]), strict=True):
            parameter.copy_(part.view_as(parameter))


def follow(context: Context, strategy: str, changes: dict[str, Any], model: str = "plain") -> dict[str, Any]:
    """Return one worker's replica after every step and after `finish`, and its counted and predicted traffic."""
    comm = context.comm
    built = StrategySpec.parse(strategy).build()
    trainer = Trainer(toy_recipe(context.world_size, changes), built, toy_data(), context, toy_model(model))
    steps: list[list[float]] = []
    traffic: list[tuple[Any, Any]] = []
    comm.counter.clear()

    def look(step: int) -> None:
        steps.append(flat(trainer.model))
        predicted = Counter.of(built.traffic(trainer.worker.specs, comm.rank, comm.world_size, step))
        traffic.append((dict(comm.counter.nbytes), dict(predicted.nbytes)))
        comm.counter.clear()

    trainer.run(look)
    built.finish()
    return {"steps": steps, "traffic": traffic, "finished": flat(trainer.model), "metrics": built.metrics()}


def relative_error(found: list[float], expected: list[float]) -> float:
    a, b = (torch.tensor(numbers, dtype=torch.float64) for numbers in (found, expected))
    return float((a - b).norm() / b.norm())


def resume(context: Context, strategy: str, changes: dict[str, Any], at: int) -> tuple[list[float], list[float]]:
    """Return the weights of an uninterrupted training and of one resumed from a checkpoint at step `at`."""
    recipe, data = toy_recipe(context.world_size, changes), toy_data()

    def fresh() -> Trainer:
        return Trainer(recipe, StrategySpec.parse(strategy).build(), data, context, toy_model("plain"))

    def train(trainer: Trainer, first: int, stop: int) -> None:
        for step in range(first, stop):
            trainer._step(step, *divmod(step, trainer.plan.steps_per_epoch))

    whole = fresh()
    train(whole, 0, at)
    stored: list[dict[str, Any]] = [_copy(whole.model.state_dict()), whole.worker.optimizer.state_dict()]
    stored[1] = {**stored[1], "state": {k: _copy(v) for k, v in stored[1]["state"].items()}}
    stored.append(_copy(whole.strategy.state_dict()))
    train(whole, at, whole.total_steps)
    whole.strategy.finish()
    again = fresh()
    again.model.load_state_dict(stored[0])
    again.worker.optimizer.load_state_dict(stored[1])
    again.strategy.load_state_dict(stored[2])
    train(again, at, again.total_steps)
    again.strategy.finish()
    return flat(whole.model), flat(again.model)


def _copy(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()}
