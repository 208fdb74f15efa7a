"""The training loop of one worker, for all strategies."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from paceline.checkpoint import seed_all
from paceline.comm import Comm
from paceline.data import Batch, Data, make_plan
from paceline.data.base import Tree
from paceline.measure.observer import COMMUNICATION, Observer, Observers
from paceline.recipe import Recipe
from paceline.results.run import Evaluation
from paceline.strategies import Strategy, Worker
from paceline.strategies.base import gradient_of
from paceline.strategies.capabilities import (
    as_asynchronous,
    hooked_parameters_of,
    keep_alive_of,
    loss_scale_of,
    micro_batches_of,
    no_sync_of,
    zero_grad,
)
from paceline.train.batchnorm import GlobalBatch, batchnorm_layers, prepare_batchnorm, synchronise_statistics
from paceline.train.context import Context
from paceline.train.evaluate import Score, TargetAccuracy, evaluate
from paceline.train.finite import CONTINUE, FiniteCheck
from paceline.train.optimizers import build_optimizer, learning_rate
from paceline.train.replica_check import ReplicaCheck
from paceline.train.replicas import make_equal
from paceline.train.step import Arithmetic, Outcome, build_objective, forward_backward, gradients_of_batch


@dataclass
class History:
    """Measurements of a worker's steps (56 bytes per step) and its evaluations, for its `WorkerReport`."""

    iteration_s: array[float] = field(default_factory=lambda: array("d"))  # whole step, including data loading
    data_s: array[float] = field(default_factory=lambda: array("d"))
    loss: array[float] = field(default_factory=lambda: array("d"))
    num_right: array[int] = field(default_factory=lambda: array("q"))
    num_answers: array[int] = field(default_factory=lambda: array("q"))
    num_samples: array[int] = field(default_factory=lambda: array("q"))
    step_sent_bytes: array[int] = field(default_factory=lambda: array("q"))  # cumulative, as counted by the comm
    evaluations: list[Evaluation] = field(default_factory=list)
    train_s: float = 0.0  # duration of the loop without evaluations and checkpoints

    def add(self, outcome: Outcome, *, iteration_s: float, data_s: float, sent_bytes: int) -> None:
        self.iteration_s.append(iteration_s)
        self.data_s.append(data_s)
        self.step_sent_bytes.append(sent_bytes)
        self.loss.append(outcome.loss)
        self.num_right.append(outcome.num_right)
        self.num_answers.append(outcome.num_answers)
        self.num_samples.append(outcome.num_samples)

    def since(self, first_step: int, *, without: Collection[int] = ()) -> Score:
        """Return mean training loss and accuracy of this worker's samples, from step `first_step` on.

        Steps in `without` are left out. Without samples the loss is NaN. Without predictions the accuracy is None.
        """
        steps = [step for step in range(first_step, len(self.loss)) if step not in without]
        samples, answers = (sum(counts[step] for step in steps) for counts in (self.num_samples, self.num_answers))
        loss = sum(self.loss[step] * self.num_samples[step] for step in steps) / samples if samples else float("nan")
        return Score(loss, sum(self.num_right[step] for step in steps) / answers if answers else None)


class Trainer:
    """One worker: a replica of the model, a shard of the data, and a strategy that synchronises the replicas."""

    def __init__(
        self,
        recipe: Recipe,
        strategy: Strategy,
        data: Data,
        context: Context,
        model: nn.Module,
        *,
        observers: Sequence[Observer] = (),
    ) -> None:
        train, comm = recipe.train, context.comm
        self.recipe, self.strategy, self.data, self.context = recipe, strategy, data, context
        self.plan = make_plan(
            data.train,
            batch_size=recipe.batch_size,
            num_workers=comm.world_size,
            seed=recipe.seed,
            order=recipe.data.order,
        )
        self.total_steps = recipe.num_steps(len(data.train))
        self.arithmetic = Arithmetic(train.precision, train.channels_last, context.device)
        self.objective = build_objective(train.loss)
        self.global_batch = GlobalBatch(comm)
        self.model = prepare_batchnorm(self.arithmetic.place(model), train.batchnorm, self.global_batch)
        make_equal(self.model, comm)
        seed_all(recipe.seed + 1 + comm.rank)  # dropout differs between workers
        optimizer = build_optimizer(recipe.optimizer, [p for p in self.model.parameters() if p.requires_grad])
        self.worker = Worker(
            comm=comm, codec=strategy.codec, model=self.model, optimizer=optimizer, servers=context.servers
        )
        if train.compile:
            self.worker.replica = torch.compile(self.model)  # type: ignore[assignment]
        strategy.setup(self.worker)
        self._is_last_micro_batch = True
        self._hooks = [p.register_post_accumulate_grad_hook(self._on_gradient) for p in hooked_parameters_of(strategy)]
        self.replica_check = ReplicaCheck(train.check_replicas, strategy, comm) if train.check_replicas else None
        self.history = History()
        self.finite = FiniteCheck(train.on_nonfinite, strategy, context)
        self.first_step = 0  # above 0 if the training is resumed
        self.target = TargetAccuracy(recipe.measure.target_accuracy, strategy, comm)
        self.observe(observers)

    def observe(self, observers: Sequence[Observer], *, steps_per_block: int = 0) -> None:
        """Set the observers of the training loop.

        If `steps_per_block` is not 0, steps form blocks of this size, and only some blocks are observed (see
        `is_measured` in measure/observer.py).
        """
        synchronize = self._synchronize if self.context.device.type == "cuda" else None
        self.observers = Observers(observers, synchronize, steps_per_block=steps_per_block)

    def run(
        self,
        on_step: Callable[[int], None] | None = None,
        on_epoch: Callable[[int], None] | None = None,
        on_checkpoint: Callable[[int], None] | None = None,
    ) -> History:
        """Train for all steps, or until the target accuracy is reached or training diverges; return the measurements.

        `on_step` is called after every step, `on_epoch` after every epoch. `on_checkpoint` is called after every step
        and everything else that follows it, with the number of completed steps, unless training ends there. The
        training time includes `on_step` and checks of replicas, but neither the other functions nor evaluations.
        Gradient hooks are removed at the end, so a trainer can run only once.
        """
        self.model.train()
        untimed_s = 0.0
        earlier_s = self.history.train_s  # before the training was resumed
        self.context.comm.barrier()
        started = time.perf_counter()
        for step in range(self.first_step, self.total_steps):
            epoch, index = divmod(step, self.plan.steps_per_epoch)
            self._step(step, epoch, index)
            if on_step is not None:
                on_step(step)
            if self.finite.is_stopped:
                break
            if self.replica_check is not None:
                self.replica_check.after_step(step, self.model.parameters())
            before = time.perf_counter()
            self.history.train_s = earlier_s + before - started - untimed_s
            if self._is_evaluated_after(step):
                self._evaluate_during_training(step, epoch, self.history.train_s)
            if on_epoch is not None and index == self.plan.steps_per_epoch - 1:
                on_epoch(epoch)
            if self.target.is_reached:
                break
            if on_checkpoint is not None:
                on_checkpoint(step + 1)
            untimed_s += time.perf_counter() - before
        asynchronous = as_asynchronous(self.strategy)
        if asynchronous is not None:
            asynchronous.wait_for_others()
        for hook in self._hooks:  # hooks and trainer form a reference cycle that is never collected
            hook.remove()
        self.observers.steps_end()
        return self.history

    def rehearse(self) -> None:
        """Run forward, backward and synchronisation of the first step again. Parameters and measurements stay.

        Buffers, random number generators, counters and the state of the strategy change; the caller restores them.
        """
        self.model.train()
        batch = self._load_batch(0, 0)
        zero_grad(self.strategy)
        self._forward_backward(*batch)
        self.strategy.after_backward()
        zero_grad(self.strategy)

    def evaluate(self) -> Score:
        """Synchronise BatchNorm statistics and evaluate the replica on the test set."""
        return self._evaluate(self.context.comm)

    def _is_evaluated_after(self, step: int) -> bool:
        """Return whether to evaluate the model after this step: at the end of every `eval_every`-th epoch.

        With a target accuracy, `eval_every` is 1 by default, and the model is also evaluated after the last step.
        """
        has_target = self.target.accuracy is not None
        every = self.recipe.train.eval_every or int(has_target)
        is_due = every > 0 and (step + 1) % (every * self.plan.steps_per_epoch) == 0
        return is_due or (has_target and step + 1 == self.total_steps)

    def _evaluate_during_training(self, step: int, epoch: int, train_s: float) -> None:
        # No collective under an asynchronous strategy: each worker evaluates its own replica.
        comm = self.context.comm if as_asynchronous(self.strategy) is None else None
        score = self._evaluate(comm, before_batch=keep_alive_of(self.strategy))
        self.history.evaluations.append(
            Evaluation(step=step + 1, epoch=epoch + 1, train_s=train_s, loss=score.loss, accuracy=score.accuracy)
        )
        self.target.update(score.accuracy)

    def _evaluate(self, comm: Comm | None, *, before_batch: Callable[[], None] | None = None) -> Score:
        begin = self.observers.begin_phase("evaluation")
        if comm is not None:
            synchronise_statistics(self.model, self.recipe.train.batchnorm, comm, 1 / comm.world_size)
        score = evaluate(
            self.model,
            self.data.test,
            comm,
            objective=self.objective,
            arithmetic=self.arithmetic,
            before_batch=before_batch,
        )
        self.observers.end_phase("evaluation", begin)
        return score

    def _step(self, step: int, epoch: int, index: int) -> None:
        strategy, context, observers = self.strategy, self.context, self.observers
        started = time.perf_counter()
        observers.step_begins(step)
        observers.begin_phase("data")
        inputs, target = self._load_batch(epoch, index)
        has_samples = self.global_batch.has_samples
        observers.end_phase("data", started)
        data_done = time.perf_counter()
        self._set_learning_rate(step)
        zero_grad(strategy)
        self.finite.step_begins()
        outcome = self._forward_backward(inputs, target)
        begin = observers.begin_phase(COMMUNICATION)
        strategy.after_backward()
        observers.end_phase(COMMUNICATION, begin)
        begin = observers.begin_phase("optimizer")
        self.finite.take_step(
            step,
            loss=outcome.loss,
            has_samples=has_samples,
            recompute=lambda: gradients_of_batch(
                self.model,
                inputs,
                target,
                objective=self.objective,
                arithmetic=self.arithmetic,
                micro_batch_size=self.recipe.train.micro_batch_size,
            ),
        )
        observers.end_phase("optimizer", begin)
        begin = observers.begin_phase(COMMUNICATION)
        strategy.after_step()
        observers.end_phase(COMMUNICATION, begin)
        if context.device.type == "cuda":
            self._synchronize()
        if not has_samples:
            outcome = Outcome(0.0, 0, 0, 0)
        times = {"iteration_s": time.perf_counter() - started, "data_s": data_done - started}
        sent_bytes = context.comm.wire().sent_bytes
        self.history.add(outcome, **times, sent_bytes=sent_bytes)
        observers.step_ends(step, {"begin": started, **times, **vars(outcome), "sent_bytes": sent_bytes})

    def _load_batch(self, epoch: int, index: int) -> Batch:
        """Load this worker's samples of a step, and set its share of the global batch."""
        counts = self.plan.counts(index)
        self.worker.weight = counts[self.context.rank] / sum(counts)
        has_samples = self.global_batch.has_samples = counts[self.context.rank] > 0
        return self.data.train.batch(self._indices(epoch, index, has_samples=has_samples), epoch)

    def _forward_backward(self, inputs: Tree, target: Tree) -> Outcome:
        """Run forward and backward on this worker's samples. Afterwards every parameter has a gradient."""
        worker, has_samples = self.worker, self.global_batch.has_samples
        scale = loss_scale_of(self.strategy) if has_samples else 0.0
        self.global_batch.gradient_share = worker.weight / scale if scale else 0.0
        # A worker without samples computes on samples of rank 0, which must not change its own running statistics.
        is_placeholder = not has_samples and self.recipe.train.batchnorm != "sync"
        saved = [buffer.clone() for buffer in self._running_statistics()] if is_placeholder else []
        outcome = forward_backward(
            worker.replica,
            inputs,
            target,
            objective=self.objective,
            arithmetic=self.arithmetic,
            loss_scale=scale,
            micro_batch_size=self.recipe.train.micro_batch_size,
            least_pieces=micro_batches_of(self.strategy),
            before_last=self._no_sync,
            spreads_nonfinite=self.finite.mode != CONTINUE,
            observers=self.observers,
        )
        for buffer, value in zip(self._running_statistics() if saved else [], saved, strict=True):
            buffer.copy_(value)
        for parameter in worker.parameters:
            gradient_of(parameter)  # sets zeros where this worker has no gradient: every world size gives equal results
        return outcome

    def _synchronize(self) -> None:
        torch.cuda.synchronize(self.context.device)

    def _indices(self, epoch: int, index: int, *, has_samples: bool) -> torch.Tensor:
        if has_samples:
            return self.plan.shard(epoch, index, self.context.rank)
        # A worker without samples takes part with weight 0, and computes on samples of rank 0.
        return self.plan.shard(epoch, index, 0)[:1].repeat(2)

    def _running_statistics(self) -> list[torch.Tensor]:
        return [buffer for layer in batchnorm_layers(self.model) for buffer in layer.buffers()]

    def _set_learning_rate(self, step: int) -> None:
        steps_per_epoch = self.plan.steps_per_epoch
        rate = learning_rate(step, self.recipe, steps_per_epoch=steps_per_epoch, total_steps=self.total_steps)
        for group in self.worker.optimizer.param_groups:
            group["lr"] = rate

    @contextmanager
    def _no_sync(self) -> Iterator[None]:
        self._is_last_micro_batch = False
        with no_sync_of(self.strategy):
            yield
        self._is_last_micro_batch = True

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        if self._is_last_micro_batch:
            self.strategy.on_gradient(parameter)
