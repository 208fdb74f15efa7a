"""Candidates of `tune`: strategies with the bucket sizes, sync periods and codecs that each can have."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from paceline.codecs import TensorSpec, build_codec
from paceline.comm import comms
from paceline.errors import UsageError
from paceline.recipe import Recipe
from paceline.strategies import Guarantee, StrategySpec, strategies
from paceline.strategies.capabilities import Varied, is_tried_by_tune, steps_to_synchronisation, tuned_options_of
from paceline.study.entries import ONE_WORKER, Entry, check_models, make_entry
from paceline.train.predicted_traffic import predicted_traffic

CODECS = ("fp32", "bf16", "int8", "powersgd")
PERIODS = (4, 16)
SHARES = (1 / 16, 1 / 4, 1.0)  # of the model, for bucket sizes when none are given
LEAST_MB = 0.05  # a smaller bucket is a message per tensor
MB = 1_000_000
NO_CODEC = "unsaid"  # stands for a codec that was not written


def tried_strategies() -> tuple[str, ...]:
    """The strategies that `tune` tries unless the user names some."""
    return tuple(name for name, cls in strategies.classes.items() if is_tried_by_tune(cls))


@dataclass(frozen=True, kw_only=True)
class Space:
    """What may be combined; options and codecs that a strategy was written with are left as they are."""

    strategies: tuple[str, ...] = field(default_factory=tried_strategies)
    buckets_mb: tuple[float, ...] = ()  # empty: shares of the model
    codecs: tuple[str, ...] = CODECS
    periods: tuple[int, ...] = PERIODS

    def __post_init__(self) -> None:
        if not self.strategies or not self.codecs:
            raise UsageError("there is nothing to tune: name at least one strategy and one codec")
        if any(not 0 < size < math.inf for size in self.buckets_mb):
            raise UsageError(f"--buckets must be above 0 MB, not {', '.join(f'{size:g}' for size in self.buckets_mb)}")
        if any(period < 1 for period in self.periods):
            raise UsageError(f"--periods must be 1 step or more, not {', '.join(map(str, self.periods))}")
        for codec in self.codecs:
            build_codec(codec)


@dataclass(frozen=True)
class Candidates:
    """What takes part, and what does not with the reasons; the reference is the exact strategy that all are held to."""

    reference: Entry
    entries: list[Entry]  # the reference is among them, first
    left_out: dict[str, str]


def make_candidates(space: Space, recipe: Recipe, tensors: Sequence[TensorSpec]) -> Candidates:
    """Every combination that can run here and could pay; none twice."""
    reference = _reference(recipe, tensors)
    found, left_out = {reference.label: reference}, dict[str, str]()
    for text in space.strategies:
        for spec in _variations(text, space, tensors):
            try:
                entry = make_entry(_whole_text(spec), recipe)
                check_models([entry], tensors)
            except UsageError as error:
                left_out[str(spec)] = str(error)
                continue
            reason = _no_gain(spec, recipe, tensors)
            if reason:
                left_out[entry.label] = reason
            else:
                found.setdefault(entry.label, entry)
    if len(found) == 1:
        why = "; ".join(dict.fromkeys(left_out.values())) or "the reference itself is all that is left"
        raise UsageError(f"there is nothing to choose from: {why}")
    return Candidates(reference, list(found.values()), left_out)


def sync_period(entries: Sequence[Entry]) -> int:
    """The longest time between two synchronisations in steps: a fair measurement covers it whole."""
    built = [StrategySpec.parse(entry.spec, entry.codec).build() for entry in entries]
    return max(steps_to_synchronisation(strategy) for strategy in built)


def bucket_sizes(given: Sequence[float], model_mb: float) -> list[float]:
    """Sizes in MB that make a difference: of those that hold the whole model only the smallest."""
    sizes = sorted(given or {float(f"{max(share * model_mb, LEAST_MB):.2g}") for share in SHARES})
    smaller = [size for size in sizes if size < model_mb]
    return smaller + [size for size in sizes if size >= model_mb][:1]


def sent_per_step(spec: StrategySpec, recipe: Recipe, tensors: Sequence[TensorSpec]) -> float:
    """Bytes that the worker which sends most puts on the comm, predicted, as a mean over a whole period."""
    strategy, comm, size = spec.build(), comms.get(recipe.comm), recipe.workers
    steps = max(strategy.traffic_period(size), 1)
    counters = [
        predicted_traffic(strategy, tensors, rank=rank, world_size=size, num_steps=steps) for rank in range(size)
    ]
    return max(comm.predict(counter, rank, size).sent_bytes for rank, counter in enumerate(counters)) / steps


def _reference(recipe: Recipe, tensors: Sequence[TensorSpec]) -> Entry:
    """The recipe's own strategy where it is exact, else an all-reduce."""
    entry = make_entry(recipe.strategy, recipe)
    if entry.guarantee != Guarantee.EXACT.value or entry.label == ONE_WORKER:
        entry = make_entry("all-reduce+fp32", recipe)
    check_models([entry], tensors)
    return entry


def _variations(text: str, space: Space, tensors: Sequence[TensorSpec]) -> Iterator[StrategySpec]:
    if text == ONE_WORKER:
        raise UsageError("one-worker agrees with nobody: there is nothing to tune in it")
    written = StrategySpec.parse(text, NO_CODEC)
    given = dict(written.options)
    model_mb = sum(spec.nbytes for spec in tensors) / MB
    values = {
        Varied.BUCKET_MB: [f"{size:g}" for size in bucket_sizes(space.buckets_mb, model_mb)],
        Varied.PERIOD_STEPS: [str(period) for period in space.periods],
    }
    tuned = tuned_options_of(strategies.get(written.name)).items()
    ways = [[(option, value) for value in values[kind]] for option, kind in tuned if option not in given]
    chosen = space.codecs if written.codec == NO_CODEC else (written.codec,)
    for extra in itertools.product(*ways):
        for codec in chosen:
            yield replace(written, options=(*written.options, *extra), codec=codec)


def _whole_text(spec: StrategySpec) -> str:
    """With its codec in any case: a recipe may have another one where none is written."""
    return f"{spec}+fp32" if spec.codec == "fp32" else str(spec)


def _no_gain(spec: StrategySpec, recipe: Recipe, tensors: Sequence[TensorSpec]) -> str:
    """Why a codec cannot pay: what is gathered grows with the workers, until it is more than plain numbers."""
    plain = replace(spec, codec="fp32")
    if spec == plain:
        return ""
    ours, theirs = (sent_per_step(one, recipe, tensors) for one in (spec, plain))
    if ours < theirs:
        return ""
    return f"{spec.codec} would send {ours / MB:.3g} MB per step and fp32 {theirs / MB:.3g}"
