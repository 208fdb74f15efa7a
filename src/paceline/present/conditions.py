"""Describe the conditions of a measurement (recipe, machine), and warn of those that distort times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paceline.errors import UsageError
from paceline.measure.inject import Injection
from paceline.present.numbers import DASH, counted, join_words, significant
from paceline.present.page_parts import Fact, Finding
from paceline.recipe import Recipe
from paceline.results import Environment, Json, Row, RunResult
from paceline.runs import name_of

BATCHNORM = {
    "local": "local: each worker's own statistics",
    "rank0": "rank0: the statistics of rank 0 for all",
    "average": "average: statistics averaged over workers",
    "sync": "sync: statistics over the global batch",
    "off": "off: no running statistics",
}
BUSY = 0.75  # load average per core, above which other processes slow the measurement
_DONE = {"slow": "slowed down", "kill": "killed", "hang": "made to hang"}


def training_facts(recipe: Recipe, rows: Sequence[Row]) -> list[Fact]:
    """Return facts about the model, the data, the optimiser and the timed steps."""
    train, optimizer, schedule = recipe.train, recipe.optimizer, recipe.schedule
    lr = f"{optimizer.lr:g}, {schedule.name}"
    if schedule.scale_lr != "none":
        lr += f", scaled by {schedule.scale_lr} rule from batch {schedule.base_batch}"
    if schedule.warmup:
        lr += f", {schedule.warmup:g} epochs of warm-up"
    extras = [f"{name} {value:g}" for name in ("momentum", "weight_decay") if (value := getattr(optimizer, name))]
    extras += ["nesterov"] if optimizer.nesterov else []
    data = [recipe.data.name]
    data += [f"first {recipe.data.train_samples:,} training samples"] if recipe.data.train_samples else []
    data += ["augmented"] if recipe.data.augment else []
    per_worker = -(-recipe.batch_size // recipe.workers)
    return [
        ("Model", recipe.model.name),
        ("Parameters", _all(f"{row.num_parameters:,}" for row in rows)),
        ("Data", ", ".join(data)),
        ("Global batch", f"{recipe.batch_size:,} samples ({per_worker:,} per worker of {recipe.workers})"),
        ("Workers", f"{_all(str(row.workers) for row in rows)}, {counted(recipe.threads, 'thread')} each"),
        ("Optimiser", ", ".join([optimizer.name, *extras]).replace("_", " ")),
        ("Learning rate", lr),
        ("BatchNorm", _all(BATCHNORM.get(row.batchnorm, row.batchnorm) for row in rows)),
        ("Precision", train.precision + (", compiled" if train.compile else "")),
        ("Device", recipe.device),
        ("Comm", _all(row.comm for row in rows)),
        ("Codec", _all(row.codec for row in rows)),
        ("Seed", str(recipe.seed)),
        ("Steps", _all(f"{row.steps:,}" for row in rows)),
        ("Warm-up steps dropped", _all(str(row.warmup_steps) for row in rows)),
        ("Timed steps", _all(f"{row.timed_steps:,}" for row in rows)),
        ("Repeats", _all(str(row.repeats) for row in rows)),
    ]


def special_facts(recipes: Sequence[Recipe]) -> list[Fact]:
    """Return facts about emulated nodes, injected faults and profiled steps, as far as any recipe uses them."""
    injected = list(dict.fromkeys(" plus ".join(recipe.measure.inject) or "none" for recipe in recipes))
    profiled = list(dict.fromkeys(recipe.measure.profile or "none" for recipe in recipes))
    nodes = list(dict.fromkeys(str(recipe.cluster) or "none" for recipe in recipes))
    named = {"Emulated nodes": nodes, "Injected": injected, "Profiled steps": profiled}
    return [(name, join_words(texts, "or")) for name, texts in named.items() if texts and texts != ["none"]]


def machine_facts(environment: Environment) -> list[Fact]:
    memory, load = environment.memory_bytes, environment.load_average
    return [
        ("Processor", environment.processor or DASH),
        ("Cores", str(environment.num_cores or DASH)),
        ("Memory", f"{memory / 2**30:.1f} GiB" if memory else DASH),
        ("GPUs", ", ".join(environment.gpus) or "none"),
        ("System", f"{environment.system or DASH}, {environment.machine or DASH}"),
        ("Python", environment.python or DASH),
        ("PyTorch", environment.torch or DASH),
        ("Paceline", environment.paceline or DASH),
        ("Load average", ", ".join(f"{value:.2f}" for value in load) if load else DASH),
        ("Command", " ".join(environment.command) or DASH),
    ]


def machine_cautions(
    recipe: Recipe, environment: Environment, rows: Sequence[RunResult], *, is_study: bool
) -> list[Finding]:
    """Return cautions about the machine: workers that share cores, and load from other processes."""
    found = []
    cores, load = environment.num_cores, environment.load_average
    most = max(row.workers for row in rows)
    cpus = recipe.cluster.cpus  # cores of each emulated node; None: all workers share the machine's cores
    needed = most * recipe.threads if cpus is None else cpus * min(most, recipe.cluster.nodes)
    if recipe.device == "cpu" and cores and needed > cores:
        found.append(
            f"{counted(most, 'worker')} with {counted(recipe.threads, 'thread')} each share "
            f"{counted(cores, 'core')}, so times include waiting for a core."
        )
    # A study stores the load before it starts. A run stores it at the end, when the run itself causes the load.
    if is_study and cores and load and load[0] > BUSY * cores:
        found.append(
            f"The machine was busy at the start (load average {significant(load[0])} on {counted(cores, 'core')}), so "
            "times may be longer than on an idle machine."
        )
    return [Finding(text, "Caution", "caution") for text in found]


def interventions(settings: Sequence[Json], rows: Sequence[RunResult]) -> list[Finding]:
    """Return cautions about injected faults, profiled steps, and runs that recorded no spans (timed pieces of steps).

    `settings` has the recipe values of each run or study.
    """
    measures = [value.get("measure") for value in settings]
    measure = [value if isinstance(value, dict) else {} for value in measures]
    given = [one.get("inject") for one in measure]
    injected = list(dict.fromkeys(str(text) for texts in given if isinstance(texts, list) for text in texts if text))
    is_everywhere = all(one.get("inject") for one in measure)
    where = "" if is_everywhere else " in some of these runs"
    found = [_injected(text, rows, where) for text in injected]
    profiled = list(dict.fromkeys(str(one["profile"]) for one in measure if one.get("profile")))
    if profiled:
        found.append(
            f"Steps {join_words(profiled)} ran under the profiler (--profile), which slows them; "
            "their times are included."
        )
    if any(one.get("spans") is False for one in measure):
        consequence = ", so stragglers cannot be detected" if injected else ""
        found.append(f"Spans were not recorded (--no-measure){consequence}.")
    return [Finding(text, "Caution", "caution") for text in found]


def is_disturbed(settings: Json) -> bool:
    """Return whether a recipe injects faults. `settings` has the values of the recipe."""
    measure = settings.get("measure")
    return isinstance(measure, dict) and bool(measure.get("inject"))


def _injected(text: str, rows: Sequence[RunResult], where: str) -> str:
    try:
        one = Injection.parse(text)
    except UsageError:  # written by a newer version of Paceline
        return f"A fault was injected: --inject {text}{where}."
    without = [name_of(row) for row in rows if row.workers <= one.rank]
    untouched = f" Not affected, because they have no worker {one.rank}: {join_words(without)}." if without else ""
    return f"Worker {one.rank} was {_DONE[one.kind]} on purpose (--inject {text}){where}.{untouched}"


def _all(values: Iterable[str]) -> str:
    """Return the common value if all values are equal, else the different values joined by "or"."""
    return join_words(list(dict.fromkeys(values)), "or")
