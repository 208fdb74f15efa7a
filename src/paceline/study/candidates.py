"""Candidates of `paceline tune`: combinations of strategy, bucket size, synchronisation period and codec to try.

A codec encodes gradients before they are sent.
"""

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
LEAST_MB = 0.05  # the smallest default bucket size; smaller buckets would hold one tensor each
MB = 1_000_000
NO_CODEC = "unsaid"  # marks a strategy written without a codec


def tried_strategies() -> tuple[str, ...]:
    """Return the names of the strategies that `paceline tune` tries if the user names none."""
    return tuple(name for name, cls in strategies.classes.items() if is_tried_by_tune(cls))


@dataclass(frozen=True, kw_only=True)
class Space:
    """Search space of the tune study. An option or codec that the user wrote as part of a strategy is not varied."""

    strategies: tuple[str, ...] = field(default_factory=tried_strategies)
    buckets_mb: tuple[float, ...] = ()  # if empty, SHARES of the model's size
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
    """The strategies that the tune study tries, with their options and codecs.

    All strategies are compared with `reference`, an exact strategy. `left_out` has the combinations of strategy,
    options and codec that are not tried, each with the reason.
    """

    reference: Entry
    entries: list[Entry]  # the reference comes first
    left_out: dict[str, str]


def make_candidates(space: Space, recipe: Recipe, tensors: Sequence[TensorSpec]) -> Candidates:
    """Return the combinations of strategy, options and codec to try.

    A combination is tried if it can run here, and if its codec is fp32 or sends fewer bytes than fp32. The others are
    left out with a reason. Raises UsageError if only the reference strategy is left.
    """
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
    """Return the longest synchronisation period of the strategies, in steps.

    A fair measurement of all strategies covers whole periods.
    """
    built = [StrategySpec.parse(entry.spec, entry.codec).build() for entry in entries]
    return max(steps_to_synchronisation(strategy) for strategy in built)


def bucket_sizes(given: Sequence[float], model_mb: float) -> list[float]:
    """Return the bucket sizes to try, in MB: the `given` ones or, if there are none, fractions of the model's size.

    All sizes that hold the whole model have the same effect, so only the smallest of these is returned.
    """
    sizes = sorted(given or {float(f"{max(share * model_mb, LEAST_MB):.2g}") for share in SHARES})
    smaller = [size for size in sizes if size < model_mb]
    return smaller + [size for size in sizes if size >= model_mb][:1]


def sent_per_step(spec: StrategySpec, recipe: Recipe, tensors: Sequence[TensorSpec]) -> float:
    """Predict how many bytes per step are sent by the worker that sends most.

    The result is an average over one period, after which the strategy's traffic repeats.
    """
    strategy, comm, size = spec.build(), comms.get(recipe.comm), recipe.workers
    steps = max(strategy.traffic_period(size), 1)
    counters = [predict_traffic(strategy, tensors, rank=rank, world_size=size, num_steps=steps) for rank in range(size)]
    return max(comm.predict(counter, rank, size).sent_bytes for rank, counter in enumerate(counters)) / steps


def _reference(recipe: Recipe, tensors: Sequence[TensorSpec]) -> Entry:
    """Return the strategy with which candidates are compared.

    It is the recipe's own strategy if that is exact and synchronises workers, and all-reduce otherwise.
    """
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
    """Return the strategy as text that names its codec, even fp32, so that the recipe's codec does not apply."""
    return f"{spec}+fp32" if spec.codec == "fp32" else str(spec)


def _reason_not_faster(spec: StrategySpec, recipe: Recipe, tensors: Sequence[TensorSpec]) -> str:
    """Return why the codec of a strategy cannot make it faster, or an empty string if there is no such reason.

    The reason is that the codec would send at least as many bytes per step as fp32. This can happen, for example, with
    a codec that gathers the encoded gradients of all workers, because the bytes grow with the number of workers.
    """
    plain = replace(spec, codec="fp32")
    if spec == plain:
        return ""
    ours, theirs = (sent_per_step(one, recipe, tensors) for one in (spec, plain))
    if ours < theirs:
        return ""
    return f"{spec.codec} would send {ours / MB:.3g} MB per step, no less than fp32 ({theirs / MB:.3g} MB)"
