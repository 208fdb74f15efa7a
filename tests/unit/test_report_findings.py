"""The verdict's sentences about what was measured: exact words for made-up numbers."""

from __future__ import annotations

from typing import Any

from paceline.report import findings
from paceline.report.tiles import tiles
from paceline.report.words import headline, learning

from measured_samples import KINDS, measured_study
from report_samples import usual_study

RESULTS = measured_study()["results"]


def named(label: str) -> dict[str, Any]:
    return next(r for r in RESULTS if r["label"] == label)


class TestSentences:
    def test_the_headline_names_the_fastest_the_hidden_and_the_slow(self) -> None:
        assert headline(RESULTS).startswith("overlap is the fastest of 5 strategies on 4 workers: 14.6 ms")
        assert headline(RESULTS).endswith("; overlap hides 93 % of communication; worker 2 is slow in backward by 31 %")

    def test_two_strategies_in_one_sentence(self) -> None:
        kinds = {name: KINDS[name] for name in ("ring", "gather-scatter")}
        assert headline(measured_study(kinds=kinds)["results"]) == (
            "ring took 32 % less time per iteration than gather-scatter on 4 workers (95 % interval 32 to 32 %); "
            "worker 2 is slow in backward by 31 %"
        )

    def test_a_slow_worker_that_one_strategy_shows(self) -> None:
        even = {**named("ddp"), "stragglers": []}
        assert findings.clauses([named("ring"), even])[-1] == "worker 2 is slow in backward by 31 % under ring"
        point = findings.slow_workers([named("ring"), even])
        assert point is not None
        assert point.is_problem
        assert point.text == (
            "Worker 2 is slow in backward by 31 % (1.90 ms per step, 95 % interval 28 to 34 %) under ring. "
            "Not so under ddp. Own work is compared, so the others' waiting is not held against them."
        )

    def test_too_few_steps_to_tell_are_no_verdict(self) -> None:
        short = {**named("ddp"), "stragglers": None}
        alone = findings.slow_workers([short])
        assert alone is not None
        assert alone.text == "It cannot be told: that takes 50 timed steps."
        joint = findings.slow_workers([named("ring"), short])
        assert joint is not None
        assert "Not so under" not in joint.text
        assert "It cannot be told under ddp: that takes 50 timed steps." in joint.text
        even = findings.slow_workers([{**named("ring"), "stragglers": []}, short])
        assert even is not None
        assert even.text.endswith("longer than the others'. It cannot be told under ddp: that takes 50 timed steps.")
        assert findings.slow_workers([{**short, "split": None}]) is None

    def test_a_slow_worker_beside_runs_that_are_too_short_to_tell(self) -> None:
        short = {**named("ddp"), "stragglers": None}
        assert findings.clauses([named("ring"), short])[-1] == "worker 2 is slow in backward by 31 % under ring"
        point = findings.slow_workers([named("ring"), short])
        assert point is not None
        assert "28 to 34 %) under ring. It cannot be told under ddp" in point.text

    def test_accuracy_of_those_that_have_one(self) -> None:
        without = {**named("ddp"), "final": {**named("ddp")["final"], "test_accuracy": None}}
        point = learning([named("ring"), named("overlap"), without])
        assert point is not None
        assert point.text.endswith("% for ring and overlap.")

    def test_a_worker_that_is_slow_in_everything(self) -> None:
        row = {**named("ring")["stragglers"][0], "phase": "all", "rank": 0, "excess_percent": 50.4}
        assert findings.clauses([{**named("ring"), "stragglers": [row]}]) == ["worker 0 is slow in all phases by 50 %"]

    def test_strategies_that_differ_give_a_range(self) -> None:
        row = {**named("ddp")["stragglers"][0], "excess_percent": 25.0, "excess_s": 0.0015}
        point = findings.slow_workers([named("ring"), {**named("ddp"), "stragglers": [row]}])
        assert point is not None
        assert "by 25 to 31 % (1.50 to 1.90 ms per step, 95 % intervals within 28 to 34 %)" in point.text
        assert "under ring and ddp." in point.text
        clauses = findings.clauses([named("ring"), {**named("ddp"), "stragglers": [row]}])
        assert clauses[-1] == "worker 2 is slow in backward by 25 to 31 %"

    def test_nobody_is_named_on_an_even_run(self) -> None:
        even = measured_study(has_slow=False)["results"]
        assert "slow" not in headline(even)
        point = findings.slow_workers(even)
        assert point is not None
        assert not point.is_problem
        assert point.text == "None: no worker's own work took over 10 % longer than the others'."

    def test_time_of_a_step(self) -> None:
        point = findings.time_of_a_step([named("ring")])
        assert point is not None
        assert point.text == (
            "A step of ring, 18.2 ms: 61 % computing, 29 % communicating only, 7 % waiting for others, 2 % loading "
            "data and 1 % between spans. Communication hidden under computing: next to nothing with ring."
        )

    def test_targets(self) -> None:
        rows = [named(name) for name in ("ring", "overlap", "none")]
        point = findings.target(rows)
        assert point is not None
        assert point.text == (
            "90.00 % reached first by overlap, after 123 ms (8 steps, 12.4 MB sent), then by ring (153 ms). "
            "Never reached by none (best 87.10 %)."
        )
        point = findings.target([named("none")])
        assert point is not None
        assert point.text == "90.00 % was never reached by none (best 87.10 %)."

    def test_what_the_kernel_saw(self) -> None:
        point = findings.traffic(RESULTS)
        assert point is not None
        assert point.text.startswith(
            "The kernel saw no worker send over 2.10 % more or less than theory predicts; worker"
        )

    def test_what_measuring_cost(self) -> None:
        point = findings.measuring([named("ring")])
        assert point is not None
        assert point.text == (
            "Steps of ring were 1.0 % longer with measuring than without (95 % interval \N{MINUS SIGN}0.2 to +1.9 %). "
            "That cannot be told from nothing."
        )

    def test_measuring_that_seems_to_save_time(self) -> None:
        saved = {"cost_percent": -1.8, "interval95_percent": [-4.0, 0.5], "repeats": 5}
        less = {**saved, "cost_percent": -2.5}
        point = findings.measuring([{**named("ring"), "measuring": saved}, {**named("ddp"), "measuring": less}])
        assert point is not None
        assert point.text == (
            "Steps of ring were 1.8 % shorter with measuring than without (95 % interval \N{MINUS SIGN}4.0 to +0.5 %). "
            "That cannot be told from nothing. No other of 2 cost more."
        )

    def test_old_runs_have_nothing_to_say(self) -> None:
        old = usual_study()["results"]
        subjects = (findings.time_of_a_step, findings.slow_workers, findings.target, findings.traffic)
        assert all(subject(old) is None for subject in (*subjects, findings.measuring))
        assert findings.clauses(old) == []

    def test_a_sentence_is_no_table(self) -> None:
        many = [{**named("ring"), "label": f"s{number}", "stragglers": []} for number in range(12)]
        point = findings.time_of_a_step(many)
        assert point is not None
        assert point.text.endswith("next to nothing with s0, s1, s2, s3, s4 and 7 others.")

    def test_tiles(self) -> None:
        found = {tile.name: tile.value for tile in tiles(RESULTS)}
        assert found["Time per iteration"] == "14.6 ms"
        assert found["Communication hidden"] == "93 %"
        assert "Communication hidden" not in {tile.name for tile in tiles(usual_study()["results"])}
