"""Who watches a run, by what its recipe asks for. A new observer is one more line here."""

from __future__ import annotations

from paceline.measure.inject import Injection, Injector
from paceline.measure.observer import Observer
from paceline.measure.profile import Profiler
from paceline.measure.steps import StepRange
from paceline.recipe import Recipe
from paceline.train.context import Context


def make_observers(recipe: Recipe, context: Context) -> list[Observer]:
    """The observers of one worker, in the order in which they are told."""
    found: list[Observer] = []
    injections = [one for one in map(Injection.parse, recipe.measure.inject) if one.rank == context.rank]
    if injections:
        found.append(Injector(injections, [comm for comm in (context.comm, context.servers) if comm is not None]))
    if recipe.measure.profile:
        steps = StepRange.parse(recipe.measure.profile, "--profile")
        found.append(Profiler(steps, backend=context.comm.name, has_gpu=context.device.type == "cuda"))
    return found
