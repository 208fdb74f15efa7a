"""Candidates of tune: strategies combined with bucket sizes, synchronisation periods and codecs."""

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
from paceline.strategies.base import predict_traffic
from paceline.strategies.capabilities import TunedValues, is_tried_by_tune, steps_to_synchronisation, tuned_options_of
from paceline.study.entries import ONE_WORKER, Entry, check_models, make_entry

CODECS = ("fp32", "bf16", "int8", "powersgd")
PERIODS = (4, 16)
SHARES = (1 / 16, 1 / 4, 1.0)  # default bucket sizes, as shares of the model
LEAST_MB = 0.05  # smaller buckets hold one tensor each
MB = 1_000_000
NO_CODEC = "unsaid"  # marks a strategy written without a codec


def tried_strategies() -> tuple[str, ...]:
    """Return the strategies that `tune` tries by default."""
    return tuple(name for name, cls in strategies.classes.items() if is_tried_by_tune(cls))


@dataclass(frozen=True, kw_only=True)
class Space:
    """Search space of tune; options and codecs written with a strategy are not varied."""

    strategies: tuple[str, ...] = field(default_factory=tried_strategies)
    buckets_mb: tuple[float, ...] = ()  # empty: shares of the model
    codecs: tuple[str, ...] = CODECS
    periods: tuple[int, ...] = PERIODS

    def __post_init__(self) -> None:
        if not self.strategies or not self.codecs:
            raise UsageError("nothing to tune: give at least one strategy and one codec")
        if any(not 0 < size < math.inf for size in self.buckets_mb):
            raise UsageError(f"--buckets must be above 0 MB, not {', '.join(f'{size:g}' for size in self.buckets_mb)}")
        if any(period < 1 for period in self.periods):
            raise UsageError(f"--periods must be 1 step or more, not {', '.join(map(str, self.periods))}")
        for codec in self.codecs:
            build_codec(codec)


@dataclass(frozen=True)
class Candidates:
    """Strategies to try, and those left out with the reasons. All are compared with the reference, which is exact."""

    reference: Entry
    entries: list[Entry]  # the reference comes first
    left_out: dict[str, str]


def make_candidates(space: Space, recipe: Recipe, tensors: Sequence[TensorSpec]) -> Candidates:
    """Return every distinct combination that can run here and may be faster."""
    reference = _reference(recipe, tensors)
    entries, left_out = {reference.label: reference}, dict[str, str]()
    for text in space.strategies:
        for spec in _variations(text, space, tensors):
            try:
                entry = make_entry(_text_with_codec(spec), recipe)
                check_models([entry], tensors)
            except UsageError as error:
                left_out[str(spec)] = str(error)
                continue
            reason = _reason_not_faster(spec, recipe, tensors)
            if reason:
                left_out[entry.label] = reason
            else:
                entries.setdefault(entry.label, entry)
    if len(entries) == 1:
        reason = "; ".join(dict.fromkeys(left_out.values())) or "only the reference is left"
        raise UsageError(f"tune has no candidates to compare with {reference.label}: {reason}; name other --strategies")
    return Candidates(reference, list(entries.values()), left_out)


def sync_period(entries: Sequence[Entry]) -> int:
    """Return the longest synchronisation period in steps; a fair measurement covers whole periods."""
    built = [StrategySpec.parse(entry.spec, entry.codec).build() for entry in entries]
    return max(steps_to_synchronisation(strategy) for strategy in built)


def bucket_sizes(given: Sequence[float], model_mb: float) -> list[float]:
    """Return the distinct bucket sizes in MB; of sizes that hold the whole model only the smallest."""
    sizes = sorted(given or {float(f"{max(share * model_mb, LEAST_MB):.2g}") for share in SHARES})
    smaller = [size for size in sizes if size < model_mb]
    return smaller + [size for size in sizes if size >= model_mb][:1]


def sent_per_step(spec: StrategySpec, recipe: Recipe, tensors: Sequence[TensorSpec]) -> float:
    """Return the predicted bytes per step of the worker that sends most, as a mean over a period."""
    strategy, comm, size = spec.build(), comms.get(recipe.comm), recipe.workers
    steps = max(strategy.traffic_period(size), 1)
    counters = [predict_traffic(strategy, tensors, rank=rank, world_size=size, num_steps=steps) for rank in range(size)]
    return max(comm.predict(counter, rank, size).sent_bytes for rank, counter in enumerate(counters)) / steps


def _reference(recipe: Recipe, tensors: Sequence[TensorSpec]) -> Entry:
    """Return the recipe's own strategy if it is exact, else all-reduce."""
    entry = make_entry(recipe.strategy, recipe)
    if entry.guarantee != Guarantee.EXACT.value or entry.label == ONE_WORKER:
        entry = make_entry("all-reduce+fp32", recipe)
    check_models([entry], tensors)
    return entry


def _variations(text: str, space: Space, tensors: Sequence[TensorSpec]) -> Iterator[StrategySpec]:
    if text == ONE_WORKER:
        raise UsageError("one-worker does not synchronise, so it cannot be tuned; remove it from --strategies")
    written = StrategySpec.parse(text, NO_CODEC)
    given = dict(written.options)
    model_mb = sum(spec.nbytes for spec in tensors) / MB
    values = {
        TunedValues.BUCKET_MB: [f"{size:g}" for size in bucket_sizes(space.buckets_mb, model_mb)],
        TunedValues.PERIOD_STEPS: [str(period) for period in space.periods],
    }
    tuned = tuned_options_of(strategies.get(written.name)).items()
    variants = [[(option, value) for value in values[kind]] for option, kind in tuned if option not in given]
    chosen = space.codecs if written.codec == NO_CODEC else (written.codec,)
    for extra in itertools.product(*variants):
        for codec in chosen:
            yield replace(written, options=(*written.options, *extra), codec=codec)


def _text_with_codec(spec: StrategySpec) -> str:
    """Write the codec even if it is fp32, because the recipe may set another one."""
    return f"{spec}+fp32" if spec.codec == "fp32" else str(spec)


def _reason_not_faster(spec: StrategySpec, recipe: Recipe, tensors: Sequence[TensorSpec]) -> str:
    """Return why a codec cannot be faster: gathered data grows with the workers and may exceed fp32."""
    plain = replace(spec, codec="fp32")
    if spec == plain:
        return ""
    ours, theirs = (sent_per_step(one, recipe, tensors) for one in (spec, plain))
    if ours < theirs:
        return ""
    return f"{spec.codec} would send {ours / MB:.3g} MB per step and fp32 {theirs / MB:.3g}"
