"""Findings of rows: exact sentences for made-up numbers, and their kinds."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from measured_samples import KINDS, measured_study
from paceline.present import comparison_findings, conditions, measurement_findings, numbers
from paceline.present.comparison_page import tiles
from paceline.present.page_parts import Finding
from paceline.present.rows import named_rows
from paceline.results import Environment, Final, Overhead, Row, Versus, changed
from paceline.study.run_results import combine
from report_samples import recipe, result, usual_study


@functools.cache
def _plain() -> Row:
    return combine([result("ring", 0.02)])


def row(
    label: str,
    milliseconds: float,
    verdict: str = "",
    ratio: float = 1.0,
    bounds: tuple[float, float] | None = None,
    **changes: Any,
) -> Row:
    versus = Versus(label="ring", ratio=ratio, interval95=bounds, verdict=verdict) if verdict else None
    iteration = changed(_plain().iteration_s, mean=milliseconds / 1e3)
    final = changed(_plain().final, test_accuracy=None)
    given = {
        "label": label,
        "iteration_s": iteration,
        "versus_fastest": versus,
        "final": final,
        "repeats": 3,
        **changes,
    }
    return changed(_plain(), **given)


RING = row("ring", 20, "fastest", iteration_mean_s_interval95=(0.019, 0.021))
GATHER = row("gather-scatter", 34, "slower", 1.695, (1.54, 1.85))
DDP = row("ddp", 21, "no difference", 1.05, (0.92, 1.2))
ALL_REDUCE = row("all-reduce", 60, "slower", 3.0, (2.9, 3.1))
ALONE = row("one-worker", 40, "slower", 2.0, (1.8, 2.2), workers=1)
QUICK_ALONE = row("one-worker", 10, "faster", 0.5, (0.4, 0.8), workers=1)


def texts(findings: list[Finding]) -> list[str]:
    return [finding.text for finding in findings]


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


class TestHeadline:
    def headline(self, *rows: Row) -> str:
        found = comparison_findings.headline(rows)
        assert found.kind == "headline"
        return found.text

    def test_one_of_several_is_fastest(self) -> None:
        expected = "Fastest exact strategy: ring, 20.0 ms per step on 4 workers (95 % interval 19.0 ms to 21.0 ms)."
        assert self.headline(ALONE, GATHER, RING, ALL_REDUCE) == expected
        assert self.headline(GATHER, RING) == expected
        assert self.headline(GATHER, RING, DDP) == expected

    def test_all_tie(self) -> None:
        assert self.headline(RING, DDP) == (
            "No difference in time per step at 95 % confidence on 4 workers: ring and ddp."
        )

    def test_one_repeat_cannot_tell(self) -> None:
        rows = [row("ring", 20, "fastest"), row("ddp", 30, "one repeat cannot tell", 1.5)]
        assert self.headline(*rows) == ("Fastest exact strategy: ring, 20.0 ms per step on 4 workers (one repeat).")

    def test_one_worker_is_faster(self) -> None:
        assert self.headline(QUICK_ALONE, GATHER, RING) == (
            "One worker is fastest (10.0 ms per step). With 4 workers, ring is the fastest exact strategy (20.0 ms), "
            "2.00 times as long (95 % interval 1.25 to 2.50)."
        )
        assert self.headline(QUICK_ALONE, RING, DDP) == (
            "One worker is fastest (10.0 ms per step). With 4 workers, ring and ddp do not differ at 95 % confidence; "
            "ring takes 20.0 ms, 2.00 times as long (95 % interval 1.25 to 2.50)."
        )
        loose = row("none", 9, "faster", 0.45, (0.4, 0.5), guarantee="NONE")
        assert self.headline(QUICK_ALONE, loose, RING).startswith(
            "One worker is faster (10.0 ms per step). With 4 workers, ring takes 20.0 ms, 2.00 times as long"
        )

    def test_one_worker_is_faster_in_one_repeat(self) -> None:
        verdict = "one repeat cannot tell"
        rows = [
            row("one-worker", 10, verdict, 0.5, workers=1),
            row("ring", 20, "fastest"),
            row("ddp", 30, verdict, 1.5),
        ]
        assert self.headline(*rows) == (
            "One worker is fastest (10.0 ms per step). With 4 workers, ring is the fastest exact strategy (20.0 ms), "
            "2.00 times as long (one repeat)."
        )

    def test_one_worker_that_may_be_as_slow(self) -> None:
        alone = row("one-worker", 19, "no difference", 0.95, (0.9, 1.1), workers=1)
        assert self.headline(alone, GATHER, RING).startswith("Fastest exact strategy: ring,")

    def test_strategies_that_are_not_exact(self) -> None:
        others = [row("x", 30, "slower", 1.5, (1.4, 1.6), guarantee="STALE")]
        assert self.headline(row("int8", 20, "fastest", guarantee="LOSSY"), *others).startswith(
            "Fastest synchronous strategy: int8,"
        )
        assert self.headline(row("async", 20, "fastest", guarantee="STALE"), *others).startswith(
            "Fastest stale strategy: async,"
        )

    def test_a_single_run(self) -> None:
        assert self.headline(row("ring", 20)) == "ring: 20.0 ms per step on 4 workers."
        assert self.headline(row("one-worker", 12_500, workers=1)) == "one-worker: 12.5 s per step on 1 worker."

    def test_results_that_cannot_be_compared(self) -> None:
        assert (
            self.headline(row("ring", 20), row("ddp", 20)) == "2 results with different workloads: no fastest strategy."
        )

    def test_different_numbers_of_workers(self) -> None:
        assert "on 2 or 4 workers" in self.headline(RING, changed(GATHER, workers=2, label="ring on 2 workers"))


class TestSpeed:
    def test_slower_ones_and_ties(self) -> None:
        slower, ties = comparison_findings.speed([ALONE, ALL_REDUCE, GATHER, RING, DDP])
        assert slower == Finding(
            "ring takes 41 % less time per step than gather-scatter (95 % interval 35 to 46 %) and 67 % less than "
            "all-reduce (66 to 68 %).",
            "Speed",
            "detail",
        )
        assert ties.text == (
            "Not distinguishable from ring at 95 % confidence: ddp (1.05 times as long, 0.92 to 1.20)."
        )
        assert ties.kind == "finding"

    def test_the_headline_says_that_all_tie(self) -> None:
        assert only(comparison_findings.speed([RING, DDP])).kind == "detail"

    def test_one_repeat(self) -> None:
        rows = [row("ring", 20, "fastest"), row("ddp", 30, "one repeat cannot tell", 1.5)]
        assert texts(comparison_findings.speed(rows)) == [
            "Compared with ring in this one repeat: ddp takes 1.50 times as long."
        ]
        caution = only(comparison_findings.one_repeat(rows, 1))
        assert caution.kind == "caution"
        assert caution.text == "One repeat cannot tell small differences from noise; --repeats 3 gives intervals."
        assert comparison_findings.one_repeat(rows, 2) == comparison_findings.one_repeat(rows[:1], 1) == []

    def test_nothing_to_compare_with(self) -> None:
        assert comparison_findings.speed([row("ring", 20)]) == []


class TestAgainstOneWorker:
    def test_faster(self) -> None:
        found = comparison_findings.against_one_worker(
            [ALONE, changed(RING, speedup=2.0), changed(GATHER, speedup=0.9)]
        )
        assert texts(found) == [
            "Speed-up over one worker with the same global batch: ring 2.00 times on 4 workers (95 % interval 1.80 to "
            "2.20), an efficiency of 50 %. Slower than one worker: gather-scatter (speed-up 0.90)."
        ]

    def test_slower_is_a_problem(self) -> None:
        finding = only(comparison_findings.against_one_worker([QUICK_ALONE, RING]))
        assert finding.kind == "problem"
        assert finding.text == (
            "One worker is faster: a step of ring on 4 workers takes 2.00 times as long as with one worker and the "
            "same global batch (95 % interval 1.25 to 2.50)."
        )

    def test_no_difference(self) -> None:
        alone = row("one-worker", 20, "no difference", 1.0, (0.9, 1.1), workers=1)
        assert texts(comparison_findings.against_one_worker([alone, RING])) == [
            "Not distinguishable from one worker at 95 % confidence: ring on 4 workers."
        ]

    def test_no_row_of_one_worker(self) -> None:
        assert texts(comparison_findings.against_one_worker([RING, DDP])) == [
            "No speed-up can be given: one worker was not measured."
        ]


class TestSynchronisationCost:
    LOOSE = row("none", 12, "faster", 0.6, (0.55, 0.65), guarantee="NONE")

    def test_what_synchronising_costs(self) -> None:
        against = Versus(label="none", limit_s=0.015, ratio=4 / 3, interval95=(1.2, 1.4))
        found = comparison_findings.synchronisation_cost([self.LOOSE, changed(RING, versus_none=against)])
        assert texts(found) == [
            "Time per step relative to workers that never synchronise (none, slowest worker 15.0 ms): ring 1.33x "
            "(1.20 to 1.40).",
            "Synchronising costs ring 5.00 ms per step, 25 % of its time.",
        ]
        assert comparison_findings.synchronisation_cost([self.LOOSE, RING]) == []

    def test_nothing_measurable(self) -> None:
        against = Versus(label="none", limit_s=0.019, ratio=1.03, interval95=(0.9, 1.1))
        found = comparison_findings.synchronisation_cost([self.LOOSE, changed(RING, versus_none=against)])
        assert found[-1].text == "Synchronising has no measurable cost for ring: not distinguishable from none."


class TestReplicas:
    def test_equal_ones(self) -> None:
        finding = only(comparison_findings.replicas([ALONE, RING, DDP]))
        assert finding.text == "Replicas are equal: every worker ended with the same parameters, bit for bit."
        assert finding.kind == "detail"

    def test_replicas_that_may_differ(self) -> None:
        loose = row("none", 15, guarantee="NONE", replica_drift=0.38, replicas_equal=False)
        local = row("local", 15, guarantee="PERIODIC", replica_drift=0.01)
        assert texts(comparison_findings.replicas([RING, loose, local])) == [
            "Replicas are equal: every worker of ring ended with the same parameters, bit for bit. "
            "Replicas differed during training and were averaged at the end: local (drift 0.0100). "
            "Replicas differ at the end, as the guarantee allows: none (drift 0.380, guarantee none)."
        ]

    def test_a_broken_guarantee_is_a_problem(self) -> None:
        finding = only(comparison_findings.replicas([row("ring", 20, replicas_equal=False, replica_drift=1e-5)]))
        assert finding.kind == "problem"
        assert finding.text == (
            "ring is exact, but its replicas differ at the end (drift 1.00e-05): do not trust its figures."
        )


class TestLearning:
    def scored(self, label: str, accuracy: float) -> Row:
        return row(label, 20, final=Final(train_loss=0.1, train_accuracy=None, test_loss=0.1, test_accuracy=accuracy))

    def test_accuracy_by_figure(self) -> None:
        rows = [self.scored("ring", 0.798), self.scored("ddp", 0.798), self.scored("none", 0.8205)]
        assert texts(comparison_findings.learning(rows)) == [
            "Test accuracy at the end: 82.0 % (none) and 79.8 % (ring and ddp)."
        ]
        assert texts(comparison_findings.learning(rows[:2])) == ["Test accuracy at the end: 79.8 % for all."]
        assert texts(comparison_findings.learning([*rows[:2], RING])) == [
            "Test accuracy at the end: 79.8 % for ring and ddp."
        ]

    def test_regression_has_no_accuracy(self) -> None:
        assert comparison_findings.learning([RING, DDP]) == []

    def test_a_loss_that_is_not_finite_is_a_problem(self) -> None:
        final = Final(train_loss=None, train_accuracy=None, test_loss=None, test_accuracy=None)
        assert comparison_findings.learning([row("ring", 20, final=final)]) == [
            Finding(
                "Training diverged: the loss of ring is not a finite number at the end.",
                title="Learning",
                kind="problem",
            )
        ]


RESULTS = measured_study().results


def named(label: str) -> Row:
    return next(one for one in RESULTS if one.label == label)


class TestMeasured:
    def test_a_straggler_that_one_strategy_shows(self) -> None:
        found = measurement_findings.stragglers([named("ring"), changed(named("ddp"), stragglers=[])])
        assert found[0].kind == "problem"
        assert texts(found) == [
            "Straggler: worker 2 needs 1.90 ms per step longer than the others in backward, 31 % of their working time "
            "(95 % interval 28 to 34 %) under ring, not under ddp.",
            "Time that a worker waits for others is not counted.",
        ]

    def test_strategies_that_differ_give_a_range(self) -> None:
        [one] = named("ddp").stragglers or []
        other = changed(named("ddp"), stragglers=[changed(one, excess_percent=25.0, excess_s=0.0015)])
        text = measurement_findings.stragglers([named("ring"), other])[0].text
        assert "1.50 to 1.90 ms per step longer than the others in backward, 25 to 31 % of their working time" in text
        assert text.endswith("under ring and ddp.")

    def test_beside_runs_that_are_too_short_to_tell(self) -> None:
        short = changed(named("ddp"), stragglers=None)
        found = texts(measurement_findings.stragglers([named("ring"), short]))
        assert "under ring." in found[0]
        assert found[-1] == f"Straggler detection needs 50 timed steps; ddp has {short.timed_steps}."
        assert measurement_findings.stragglers([changed(short, split=None)]) == []

    def test_an_even_run_has_none(self) -> None:
        even = measured_study(has_slow=False).results
        assert texts(measurement_findings.stragglers(even)) == [
            "No straggler: no worker needs over 10 % longer than the others, waiting not counted."
        ]

    def test_time_of_a_step(self) -> None:
        assert texts(measurement_findings.time_of_a_step([named("ring")])) == [
            "A step of ring (18.2 ms): 61 % computing, 29 % communication that is not hidden, 7 % waiting for "
            "others, 2 % loading data and 1 % other.",
            "Communication hidden under computing: ring under 5 %.",
        ]
        assert "overlap 93 %" in measurement_findings.time_of_a_step(RESULTS)[-1].text

    def test_many_names_are_counted(self) -> None:
        many = [changed(named("ring"), label=f"s{number}", stragglers=[]) for number in range(12)]
        assert measurement_findings.time_of_a_step(many)[-1].text.endswith("s2, s3, s4 and 7 others under 5 %.")

    def test_targets(self) -> None:
        rows = [named(name) for name in ("ring", "overlap", "none")]
        reached, missed = measurement_findings.target(rows)
        assert reached.text == (
            "First to reach the target accuracy of 90.0 %: overlap, after 8 steps (epoch 2), 123 ms of training, "
            "12.4 MB sent by all workers. Also reached by ring (153 ms)."
        )
        assert missed == Finding(
            "Target accuracy of 90.0 % not reached: none (best 87.1 %).", "Target accuracy", "problem"
        )
        assert texts(measurement_findings.target([named("none")])) == [
            "Target accuracy of 90.0 % not reached: best 87.1 %."
        ]

    def test_the_kernels_count(self) -> None:
        text = only(measurement_findings.traffic(RESULTS)).text
        assert text.startswith("Bytes sent: the kernel's count, with protocol headers, is at most 2.10 % above")

    def test_profiling_overhead(self) -> None:
        assert texts(measurement_findings.overhead([named("ring")])) == [
            "Recording spans makes a step of ring longer by an amount too small to measure here (95 % interval -0.2 to "
            "+1.9 %)."
        ]
        saved = Overhead(cost_percent=-1.8, interval95_percent=(-4.0, -0.5), repeats=5)
        assert texts(measurement_findings.overhead([changed(named("ring"), measuring=saved)])) == [
            "Recording spans makes a step of ring 1.8 % shorter (95 % interval -4.0 to -0.5 %)."
        ]

    def test_old_runs_have_nothing_to_say(self) -> None:
        old = usual_study().results
        subjects = (
            measurement_findings.time_of_a_step,
            measurement_findings.stragglers,
            measurement_findings.target,
            measurement_findings.traffic,
            measurement_findings.overhead,
        )
        assert [subject(old) for subject in subjects] == [[]] * len(subjects)

    def test_two_strategies(self) -> None:
        kinds = {name: KINDS[name] for name in ("ring", "gather-scatter")}
        rows = measured_study(kinds=kinds).results
        assert comparison_findings.headline(rows).text.startswith("Fastest exact strategy: ring, ")
        assert comparison_findings.speed(rows)[0].text.startswith(
            "ring takes 32 % less time per step than gather-scatter"
        )

    def test_tiles(self) -> None:
        found = {tile.name: tile.value for tile in tiles(named_rows([(one, {}) for one in RESULTS]))}
        assert found["Time per step"] == "14.6 ms"
        assert found["Communication hidden"] == "93 %"
        old = tiles(named_rows([(one, {}) for one in usual_study().results]))
        assert "Communication hidden" not in {tile.name for tile in old}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, numbers.DASH),
        (0, "0"),
        (9.999, "10.0"),
        (21.44, "21.4"),
        (1234.5, "1,230"),
        (0.0107, "0.0107"),
        (6.7e-5, "6.70e-05"),
    ],
)
def test_significant(value: float | None, text: str) -> None:
    assert numbers.significant(value) == text


def test_milliseconds_that_round_to_nothing_have_no_sign() -> None:
    assert numbers.milliseconds(-0.000001) == "0.00"
    assert numbers.milliseconds(0.0153) == "15.30"
    assert numbers.short_milliseconds(0.1234) == "123"
    assert numbers.milliseconds(None) == numbers.DASH


class TestConditions:
    def test_a_busy_machine(self) -> None:
        rows = [row("ring", 20)]
        busy = Environment(num_cores=2, load_average=[3.0, 1, 1])
        found = conditions.machine_cautions(recipe(), busy, rows, is_study=True)
        assert {finding.kind for finding in found} == {"caution"}
        assert texts(found) == [
            "4 workers with 1 thread each share 2 cores, so times include waiting for a core.",
            "The machine was busy at the start (load average 3.00 on 2 cores), so times may be longer than on an "
            "idle machine.",
        ]
        idle = Environment(num_cores=8, load_average=[3.0, 1, 1])
        assert conditions.machine_cautions(recipe(), idle, rows, is_study=True) == []

    def test_facts_name_the_choice_of_batchnorm(self) -> None:
        found = dict(conditions.training_facts(recipe(**{"train.epochs": 1}), [combine([result("ring", 0.01)])]))
        assert found["BatchNorm"] == "local: each worker's own statistics"
        assert found["Warm-up steps dropped"] == "1"
        assert found["Timed steps"] == "11"

    def test_workers_slowed_on_purpose(self) -> None:
        slowed = recipe(**{"measure.inject": ("slow:rank=1,ms=20,phase=backward", "slow:rank=0,factor=2")})
        rows = [result("ring", 0.01), result("one-worker", 0.01)]
        assert texts(conditions.interventions([slowed.to_dict()], rows)) == [
            "Worker 1 was slowed down on purpose (--inject slow:rank=1,ms=20,phase=backward). Not affected, because "
            "they have no worker 1: one-worker.",
            "Worker 0 was slowed down on purpose (--inject slow:rank=0,factor=2).",
        ]

    def test_only_some_runs(self) -> None:
        killed = recipe(**{"measure.inject": ("kill:rank=2,step=5",)})
        found = conditions.interventions([killed.to_dict(), recipe().to_dict()], [result("ring", 0.01)])
        assert texts(found) == ["Worker 2 was killed on purpose (--inject kill:rank=2,step=5) in some of these runs."]
        assert conditions.special_facts([killed, recipe()]) == [("Injected", "kill:rank=2,step=5 or none")]

    def test_emulated_nodes(self) -> None:
        nodes = recipe(**{"cluster.nodes": 4, "cluster.cpus": 0.5, "cluster.bandwidth": "1gbit"})
        assert conditions.special_facts([nodes]) == [("Emulated nodes", "nodes=4,cpus=0.5,bandwidth=1gbit")]
        # Each has its half of a core to itself.
        rows = [row("ring", 20)]
        assert conditions.machine_cautions(nodes, Environment(num_cores=2), rows, is_study=True) == []
        assert len(conditions.machine_cautions(nodes, Environment(num_cores=1), rows, is_study=True)) == 1

    def test_a_plain_run_has_no_caution(self) -> None:
        assert conditions.interventions([recipe().to_dict()], [result("ring", 0.01)]) == []
        assert conditions.special_facts([recipe()]) == []
        newer = {"measure": {"inject": ["swap:rank=1"]}}
        assert texts(conditions.interventions([newer], [])) == ["A fault was injected: --inject swap:rank=1."]
