"""Who watches a run, by what its recipe asks for. A new observer is one more line here."""

from __future__ import annotations

from paceline.measure.inject import Injection, Injector
from paceline.measure.live import Live
from paceline.measure.observer import Observer, Row
from paceline.measure.profile import Profiler
from paceline.measure.recorder import Recorder
from paceline.measure.sampler import ResourceObserver
from paceline.measure.steps import StepRange
from paceline.recipe import Recipe
from paceline.train.context import Context


def make_observers(recipe: Recipe, context: Context, recorder: Recorder | None = None) -> list[Observer]:
    """The observers of one worker beside its recorder, in the order in which they are told, after that one."""
    members: list[Observer] = []
    injections = [one for one in map(Injection.parse, recipe.measure.inject) if one.rank == context.rank]
    if injections:
        members.append(Injector(injections, [comm for comm in (context.comm, context.servers) if comm is not None]))
    if recipe.measure.profile:
        steps = StepRange.parse(recipe.measure.profile, "--profile")
        members.append(Profiler(steps, backend=context.comm.name, has_gpu=context.device.type == "cuda"))
    if recipe.measure.sample_hz > 0:
        members.append(ResourceObserver(hz=recipe.measure.sample_hz, device=context.device))
    members.append(_make_live(recipe, context, recorder, members))
    return members


def _make_live(recipe: Recipe, context: Context, recorder: Recorder | None, others: list[Observer]) -> Live:
    resources = next((member for member in others if isinstance(member, ResourceObserver)), None)

    def more() -> Row:
        return {"sent_bytes": context.comm.wire().sent_bytes, "resources": resources.latest if resources else None}

    def waited() -> tuple[float, float]:
        return (recorder.blocked_s, recorder.heard_s) if recorder is not None else (0.0, 0.0)

    return Live(context.emit, log_every=recipe.train.log_every, waited=waited, more=more)
