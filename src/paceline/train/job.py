"""Functions that run in worker and server processes: warm up, train and measure, or serve parameters.

A server is a process that only holds parameters (parameter server). A launcher's pool calls these functions.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.comm import Comm, Counter
from paceline.comm.traffic_counts import by_medium, bytes_by_link, medium_of
from paceline.data import Data, load_data
from paceline.data.bad_samples import SKIP as SKIP_SAMPLES
from paceline.errors import DivergedError, RunError
from paceline.models import build_model
from paceline.recipe import DataConfig, OptimizerConfig, Recipe
from paceline.results import Json, changed
from paceline.results.run import Link
from paceline.results.worker_report import WorkerReport
from paceline.strategies import Servers, Strategy, StrategySpec, Worker
from paceline.strategies.base import predict_traffic
from paceline.strategies.capabilities import as_asynchronous, metrics_of
from paceline.train.checkpointing import CheckpointPlace, Checkpoints
from paceline.train.context import Context
from paceline.train.finite import SKIP
from paceline.train.optimizers import build_optimizer
from paceline.train.recording import Earlier, recording
from paceline.train.replicas import mean_state, own_state, parameter_digest, replica_drift, save_weights
from paceline.train.step import Arithmetic, build_objective, forward_backward
from paceline.train.trainer import Trainer
from paceline.worker_activity import ACTIVITY

ROUNDING = 1e-12  # largest drift that rounding causes between equal replicas, whose mean is computed in float64


def warm_up() -> None:
    """Run one training step of a small model, so that the first task of the process is not slowed down.

    The first optimiser of a process imports torch's compiler, which takes seconds.
    """
    data = load_data(DataConfig(name="synthetic:1x28x28x2", train_samples=2, test_samples=1), seed=0)
    model = build_model("lenet5", data)
    optimizer = build_optimizer(OptimizerConfig(), model.parameters())
    inputs, target = data.train.batch(torch.arange(2), 0)
    forward_backward(model, inputs, target, objective=build_objective("cross-entropy"), arithmetic=Arithmetic())
    optimizer.step()


def make_trainer(context: Context, recipe: Recipe, strategy: str) -> Trainer:
    """Return the trainer of a worker, with data loaded, model built and strategy set up."""
    torch.manual_seed(recipe.seed)
    data = load_data(recipe.data, seed=recipe.seed)
    _check_same_samples(data, recipe, context.comm)
    model = build_model(recipe.model.name, data)
    return Trainer(recipe, StrategySpec.parse(strategy, recipe.codec).build(), data, context, model)


def _check_same_samples(data: Data, recipe: Recipe, comm: Comm) -> None:
    """Raise RunError if workers leave out different samples, for example because an image exists on one host only."""
    if recipe.data.on_bad_sample != SKIP_SAMPLES or comm.world_size == 1:
        return
    names = sorted((bad.split, bad.name) for bad in data.skipped)
    digest = hashlib.sha256(repr((len(data.train), len(data.test), names)).encode()).digest()
    with comm.uncounted():
        digests = comm.all_gather(torch.frombuffer(bytearray(digest), dtype=torch.uint8))
    for rank, other in enumerate(digests):
        if not torch.equal(other, digests[0]):
            raise RunError(
                f"worker {rank} cannot read the same samples as worker 0, so that they would train on different data; "
                f"compare `paceline data check {recipe.data.name}` on their hosts"
            )


def serve_job(context: Context, recipe: Recipe, strategy: str, **_: Any) -> None:
    """Run a parameter server until the workers are done. Its data, model and optimiser come from the recipe."""
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model.name, load_data(recipe.data, seed=recipe.seed))
    serve(context, recipe, StrategySpec.parse(strategy, recipe.codec).build(), model)


def serve(context: Context, recipe: Recipe, strategy: Strategy, model: nn.Module) -> None:
    """Run the strategy's parameter server until the workers are done. The workers send the initial weights."""
    assert isinstance(strategy, Servers), "only strategies with servers start servers"
    train = recipe.train
    model = Arithmetic(train.precision, train.channels_last, context.device).place(model)
    optimizer = build_optimizer(recipe.optimizer, [p for p in model.parameters() if p.requires_grad])
    strategy.serve(
        Worker(
            comm=context.comm,
            codec=strategy.codec,
            model=model,
            optimizer=optimizer,
            servers=context.servers,
            warn=lambda text: context.emit({"kind": "warning", "text": text}),
        )
    )


def train_job(
    context: Context,
    recipe: Recipe,
    strategy: str,
    checkpoint: str,
    folder: str = "",
    steps_per_block: int = 0,
    checkpoints: Json | None = None,
) -> WorkerReport:
    """Train, and return the measurements of this worker.

    Unless `checkpoint` is empty, rank 0 saves the final model, averaged over workers, to this file. Rank 0 also saves
    the weights after epochs in the same folder, if the recipe asks for checkpoints of epochs. `checkpoints` holds the
    fields of a `CheckpointPlace`: where checkpoints are written, and the one from which the run is resumed. `folder` is
    the folder of the run; if it is empty, measurements are not written to files. If `steps_per_block` is not 0, steps
    form blocks of this size, and only some blocks are recorded (see `is_measured` in measure/observer.py), to measure
    the overhead of recording.
    """
    ACTIVITY.enter("set-up")
    started = time.perf_counter()
    trainer = make_trainer(context, recipe, strategy)
    comm = context.comm
    comm.counter.clear()
    own = Checkpoints(trainer, CheckpointPlace(**checkpoints or {}), strategy)
    own.restore()
    comm.barrier()
    setup_s = time.perf_counter() - started
    earlier = Earlier(trainer.first_step, own.run_s)
    with recording(trainer, folder=folder, steps_per_block=steps_per_block, earlier=earlier) as clock:
        report = _train(
            trainer,
            strategy,
            checkpoint,
            lambda num_steps: own.after_step(num_steps, clock.run_time(time.perf_counter())),
        )
        own.finish()
    measured = trainer.observers.report_fields()
    if earlier.num_steps:  # the kernel's counters of this process exclude the steps before
        measured |= {"at_last_step": None}
    return changed(report, setup_s=setup_s, **measured)


def _train(trainer: Trainer, strategy: str, checkpoint: str, on_checkpoint: Callable[[int], None]) -> WorkerReport:
    context, recipe, comm = trainer.context, trainer.recipe, trainer.context.comm

    def save_epoch(epoch: int) -> None:
        interval = recipe.train.checkpoint_interval
        if interval is None or interval.unit != "epochs" or (epoch + 1) % interval.count:
            return
        # No collective under an asynchronous strategy: rank 0 saves its own replica.
        is_asynchronous = as_asynchronous(trainer.strategy) is not None
        state = own_state(trainer.model) if is_asynchronous else mean_state(trainer.model, comm)
        if comm.rank == 0 and checkpoint:
            metadata = {"model": recipe.model.name, "strategy": strategy, "epoch": str(epoch + 1)}
            save_weights(state, Path(checkpoint).with_name(f"epoch-{epoch + 1}.safetensors"), metadata)

    try:
        history = trainer.run(on_epoch=save_epoch, on_checkpoint=on_checkpoint)
    except DivergedError:
        if checkpoint and Path(checkpoint).parent.is_dir():  # a worker on another host may not have the folder
            metadata = {"model": recipe.model.name, "strategy": strategy, "rank": str(comm.rank)}
            file = Path(checkpoint).with_name(f"rank-{comm.rank}.safetensors")
            save_weights(own_state(trainer.model), file, metadata)
        raise
    ACTIVITY.enter("finish")
    wire = comm.wire()
    counted = by_medium(comm, comm.counter)
    predicted = predict_traffic(
        trainer.strategy,
        trainer.worker.specs,
        rank=comm.rank,
        world_size=comm.world_size,
        num_steps=len(history.iteration_s),
    )
    calls = sum(comm.counter.calls.values())
    links = _own_links(trainer.worker, predicted)
    # The traffic counts, read above, exclude the traffic of finish(). Drift is measured before finish() removes it.
    drift = replica_drift(trainer.model, comm)
    before_finish = trainer.evaluate() if drift > ROUNDING else None
    trainer.strategy.finish()
    skipped = trainer.finite.skipped_steps if trainer.finite.mode == SKIP else None
    if skipped and (comm.rank == 0 or not trainer.finite.is_shared):
        who = "the update" if trainer.finite.is_shared else f"the update of worker {comm.rank}"
        text = f"{who} was skipped in {len(skipped)} of {len(history.loss)} steps, because gradients were not finite"
        context.emit({"kind": "warning", "text": text})
    if comm.rank == 0 and any(not torch.isfinite(parameter).all() for parameter in trainer.model.parameters()):
        context.emit({"kind": "warning", "text": "the loss diverged: parameters are not finite; try a smaller --lr"})
    evaluation_started = time.perf_counter()
    test = trainer.evaluate()
    evaluation_s = time.perf_counter() - evaluation_started
    state = mean_state(trainer.model, comm)
    if comm.rank == 0 and checkpoint:
        save_weights(state, Path(checkpoint), {"model": recipe.model.name, "strategy": strategy})
    last_epoch = (len(history.loss) - 1) // trainer.plan.steps_per_epoch * trainer.plan.steps_per_epoch
    train = history.since(last_epoch, without=frozenset(trainer.finite.skipped_steps))
    return WorkerReport(
        rank=context.rank,
        steps_per_epoch=trainer.plan.steps_per_epoch,
        **vars(history),
        evaluation_s=evaluation_s,
        sent_bytes=wire.sent_bytes,
        received_bytes=wire.received_bytes,
        network_sent_bytes=counted["network"].sent_bytes,
        network_received_bytes=counted["network"].received_bytes,
        memory_sent_bytes=counted["memory"].sent_bytes,
        predicted_network_sent_bytes=by_medium(comm, predicted)["network"].sent_bytes,
        links=links,
        num_operations=calls,
        train_loss=train.loss,
        train_accuracy=train.accuracy,
        test_loss=test.loss,
        test_accuracy=test.accuracy,
        test_loss_before_finish=(before_finish or test).loss,
        test_accuracy_before_finish=(before_finish or test).accuracy,
        replica_drift=drift,
        strategy_metrics=metrics_of(trainer.strategy),
        parameter_digest=parameter_digest(trainer.model),
        num_parameters=sum(parameter.numel() for parameter in trainer.model.parameters()),
        skipped_steps=skipped,
        skipped_samples=len(trainer.data.skipped) if recipe.data.on_bad_sample == SKIP_SAMPLES else None,
        diverged=trainer.finite.reason or None,
    )


def _own_links(worker: Worker, predicted_operations: Counter) -> list[Link]:
    """Return the bytes from this worker to each peer, and from each server to this worker, counted and predicted.

    `predicted_operations` are the operations that the strategy predicts for the run.
    """
    comm = worker.comm
    counted = bytes_by_link(comm, comm.counter)
    predicted = bytes_by_link(comm, predicted_operations)
    return [
        Link(
            source=link.sender,
            target=link.receiver,
            bytes=round(counted.get(link, 0.0)),
            predicted_bytes=round(predicted.get(link, 0.0)),
            medium=medium_of(link, comm, worker.servers),
        )
        for link in sorted(counted.keys() | predicted.keys())
    ]
