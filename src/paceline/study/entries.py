"""Parsing and validation of the strategies that a study runs, before any worker starts.

An `Entry` is a strategy that the user named, or the one-worker baseline, after validation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.codecs import TensorSpec
from paceline.comm import comms
from paceline.comm.worker_placement import AUTO, choose_comm
from paceline.errors import UsageError
from paceline.parsing import first_repeated
from paceline.plugins import Options
from paceline.recipe import Changes, Recipe
from paceline.strategies import Guarantee, StrategySpec
from paceline.strategies.capabilities import as_asynchronous, check_model_of, servers_of
from paceline.train.checkpointing import check_checkpoints
from paceline.train.optimizers import optimizer_class
from paceline.train.replica_check import refuse_differing

ONE_WORKER = "one-worker"


@dataclass(frozen=True)
class Entry:
    """One strategy of a study, or its one-worker baseline, with the number of workers."""

    label: str  # the strategy's name in tables and messages
    spec: str  # the strategy that runs, with its options and codec
    name: str  # the strategy without options and codec
    options: Options
    codec: str
    guarantee: str
    num_workers: int
    num_servers: int = 0

    @property
    def num_processes(self) -> int:
        return self.num_workers + self.num_servers

    def recipe(self, recipe: Recipe) -> Recipe:
        """Return `recipe` with this entry's strategy, codec and number of workers. Keep the global batch size."""
        changes: Changes = {"strategy": self.spec, "strategies": [], "codec": self.codec}
        if self.num_workers != recipe.workers:
            changes |= {"workers": self.num_workers, "train.batch_size": recipe.batch_size}
        return recipe.replace(changes)


def settle_comm(recipe: Recipe, num_nodes: int = 1) -> Recipe:
    """Return the recipe with `auto` replaced by the comm (communication backend) that suits its workers and nodes.

    Raises UsageError if the recipe names a comm that cannot be used here. Emulated nodes count as separate hosts,
    because they share no memory.
    """
    num_nodes = max(num_nodes, recipe.cluster.nodes)
    if recipe.comm == AUTO:
        choice = choose_comm(num_workers=recipe.workers, num_nodes=num_nodes, device=recipe.device)
        return recipe.replace({"comm": choice})
    # `preflight` raises UsageError for comms that do not connect processes.
    reason = reason_against_comm(recipe.comm, num_nodes) if comms.get(recipe.comm).between_processes else ""
    if reason:
        raise UsageError(f"comm {recipe.comm!r} cannot be used here: {reason}; use --comm auto")
    return recipe


def reason_against_comm(comm_name: str, num_nodes: int = 1) -> str:
    """Return why a comm (communication backend) cannot connect processes here, or an empty string if it can."""
    comm = comms.get(comm_name)
    if not comm.between_processes:
        return "it does not connect processes"
    if num_nodes > 1 and not comm.between_nodes:
        return f"it does not connect hosts, but there are {num_nodes}"
    return comm.unavailable()


def make_entry(text: str, recipe: Recipe) -> Entry:
    """Parse a strategy that the user named. Raise UsageError if the strategy cannot run."""
    if text == ONE_WORKER:
        # The baseline runs the same training loop with a single worker, so it is exact without synchronisation.
        return Entry(text, "none", text, {}, recipe.codec, Guarantee.EXACT.value, 1)
    spec = StrategySpec.parse(text, recipe.codec)
    strategy = spec.build()
    if reason := strategy.unavailable():
        raise UsageError(f"strategy {text!r} cannot run here: {reason}, or use another strategy")
    if reason := strategy.unsupported(comms.get(recipe.comm)):
        raise UsageError(f"strategy {text!r} cannot run: {reason}; use --comm torch, or another strategy")
    check_checkpoints(strategy, recipe.train.checkpoint_interval, recipe.workers)
    strategy.check(recipe.workers, optimizer_class(recipe.optimizer.name))
    if as_asynchronous(strategy) and recipe.train.batchnorm == "sync":
        raise UsageError(
            f"strategy {text!r} is asynchronous, and batchnorm sync needs synchronous workers; use another --batchnorm"
        )
    if recipe.train.check_replicas:
        refuse_differing(strategy)
    return Entry(
        str(spec),
        str(spec),
        spec.name,
        strategy.options,
        spec.codec,
        strategy.guarantee.value,
        recipe.workers,
        servers_of(strategy, recipe.workers),
    )


def check_models(entries: list[Entry], tensors: Sequence[TensorSpec]) -> None:
    """Raise UsageError if one of the strategies cannot train a model with these tensors."""
    for entry in entries:
        check_model_of(StrategySpec.parse(entry.spec, entry.codec).build(), tensors)


def make_entries(texts: tuple[str, ...], recipe: Recipe) -> list[Entry]:
    """Parse and check the strategies of a study. Raise UsageError if one is named twice or cannot run."""
    entries = [make_entry(text, recipe) for text in texts]
    check_not_repeated(entries)
    return entries


def check_not_repeated(entries: Sequence[Entry]) -> None:
    """Raise UsageError if two entries have the same label."""
    repeated = first_repeated([entry.label for entry in entries])
    if repeated is not None:
        raise UsageError(f"strategy {repeated!r} is named twice; remove one")
