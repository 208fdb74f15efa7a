"""Under what conditions a result was measured: what was trained, how, and on which machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.measure.inject import Injection
from paceline.recipe import Recipe
from paceline.report.numbers import DASH, counted, listed, significant

# The choice matters to the accuracy of every model with BatchNorm, so it is spelt out.
BATCHNORM = {
    "local": "local: each worker's own statistics",
    "rank0": "rank0: the statistics of rank 0 for all",
    "average": "average: statistics averaged over workers",
    "sync": "sync: statistics over the global batch",
    "off": "off: no running statistics",
}

Fact = tuple[str, str]


def training(recipe: Recipe, results: Sequence[Mapping[str, Any]]) -> list[Fact]:
    """What was trained and how it was timed."""
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
        ("Parameters", _all(f"{result['num_parameters']:,}" for result in results)),
        ("Data", ", ".join(data)),
        ("Global batch", f"{recipe.batch_size:,} samples ({per_worker:,} per worker of {recipe.workers})"),
        ("Workers", f"{_all(str(result['workers']) for result in results)}, {counted(recipe.threads, 'thread')} each"),
        ("Optimiser", ", ".join([optimizer.name, *extras]).replace("_", " ")),
        ("Learning rate", lr),
        ("BatchNorm", _all(BATCHNORM.get(result["batchnorm"], result["batchnorm"]) for result in results)),
        ("Precision", train.precision + (", compiled" if train.compile else "")),
        ("Device", recipe.device),
        ("Comm", _all(result["comm"] for result in results)),
        ("Codec", _all(result["codec"] for result in results)),
        ("Seed", str(recipe.seed)),
        ("Steps", _all(f"{result['steps']:,}" for result in results)),
        ("Warm-up steps dropped", _all(str(result["warmup_steps"]) for result in results)),
        ("Timed steps", _all(f"{result['timed_steps']:,}" for result in results)),
        ("Repeats", _all(str(result["repeats"]) for result in results)),
    ]


def on_purpose(recipes: Sequence[Recipe]) -> list[Fact]:
    """What was done to workers besides training, and the nodes that they were put on, where something was."""
    injected = list(dict.fromkeys(" plus ".join(r.measure.inject) or "none" for r in recipes))
    profiled = list(dict.fromkeys(r.measure.profile or "none" for r in recipes))
    nodes = list(dict.fromkeys(str(r.cluster) or "none" for r in recipes))
    named = {"Emulated nodes": nodes, "Injected": injected, "Profiled steps": profiled}
    return [(name, listed(texts, "or")) for name, texts in named.items() if texts != ["none"]]


def machine(environment: Mapping[str, Any]) -> list[Fact]:
    memory, load = environment.get("memory_bytes"), environment.get("load_average")
    return [
        ("Processor", str(environment.get("processor", DASH))),
        ("Cores", str(environment.get("num_cores", DASH))),
        ("Memory", f"{memory / 2**30:.1f} GiB" if memory else DASH),
        ("GPUs", ", ".join(environment.get("gpus") or []) or "none"),
        ("System", f"{environment.get('system', DASH)}, {environment.get('machine', DASH)}"),
        ("Python", str(environment.get("python", DASH))),
        ("PyTorch", str(environment.get("torch", DASH))),
        ("Paceline", str(environment.get("paceline", DASH))),
        ("Load average", ", ".join(f"{value:.2f}" for value in load) if load else DASH),
        ("Command", " ".join(environment.get("command") or []) or DASH),
    ]


def cautions(
    recipe: Recipe, environment: Mapping[str, Any], results: Sequence[Mapping[str, Any]], *, is_study: bool
) -> list[str]:
    """What about the machine makes the figures say less than they seem to."""
    found = []
    cores, load = environment.get("num_cores"), environment.get("load_average")
    most = max(result["workers"] for result in results)
    cpus = recipe.cluster.cpus  # emulated nodes that have their cores to themselves take no turns
    needed = most * recipe.threads if cpus is None else cpus * min(most, recipe.cluster.nodes)
    if recipe.device == "cpu" and cores and needed > cores:
        shared = f"{counted(most, 'worker')} of {counted(recipe.threads, 'thread')} shared {counted(cores, 'core')}"
        found.append(f"{shared}: they had to take turns, so their times include waiting for a core.")
    # A run notes the load at its end, when it is its own; a study notes it before it starts.
    if is_study and cores and load and load[0] > 0.75 * cores:
        found.append(
            f"The machine was busy when this began (load average {significant(load[0])} on {counted(cores, 'core')}), "
            "so times may be longer than on an idle one."
        )
    return found


def interventions(recipes: Sequence[Recipe], results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was done to workers on purpose, which no strategy is to be blamed for."""
    injections = [Injection.parse(text) for text in dict.fromkeys(t for r in recipes for t in r.measure.inject if t)]
    clean = any(not any(recipe.measure.inject) for recipe in recipes)
    where = " in some of these runs" if injections and clean else ""
    found = [f"On purpose (--inject), {_done(injection)}{where}." for injection in injections]
    fewest = min(result["workers"] for result in results)
    missed = sorted({injection.rank for injection in injections if injection.rank >= fewest})
    if missed:
        without = listed([str(r["label"]) for r in results if r["workers"] <= missed[0]])
        found.append(
            f"{without} has no worker {listed([str(rank) for rank in missed], 'or')}, so that did not touch it."
        )
    profiled = list(dict.fromkeys(recipe.measure.profile for recipe in recipes if recipe.measure.profile))
    if profiled:
        found.append(
            f"Steps {listed(profiled)} ran under the profiler (--profile), which makes them slower; they are counted."
        )
    return found


def _done(injection: Injection) -> str:
    who = f"worker {injection.rank} was"
    if injection.kind != "slow":
        return f"{who} {'killed' if injection.kind == 'kill' else 'made to hang'} at step {injection.step}"
    where = f" of its {injection.phase}" if injection.phase else ""
    if injection.sleep_s:
        return f"{who} slowed by {significant(injection.sleep_s * 1e3)} ms a step in {injection.phase}"
    return f"{who} slowed to {injection.factor:g} times the time{where}"


def _all(values: Any) -> str:
    """The value, or all of them where they differ."""
    return listed(list(dict.fromkeys(values)), "or")
