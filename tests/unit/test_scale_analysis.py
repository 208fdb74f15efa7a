"""Speed-up, efficiency, gains and where they end: exact figures and sentences for made-up points."""

from __future__ import annotations

import pytest

from paceline.present.scaling_findings import batch_words, failed_words, headline, paying_words, refused_words
from paceline.results import Failure, Row, changed, convert, to_json
from paceline.results.study import ScaleResult
from paceline.study.entries import ONE_WORKER
from paceline.study.scale_analysis import best_point, mode_of, modes_of, paying, reference_of, rows_by_strategy
from scale_samples import ALONE_S, point_row, rows, scale_study, scaled

STRONG = scaled(rows("strong"))
WEAK = scaled(rows("weak"))


def point(results: list[Row], label: str, number: int) -> Row:
    return next(row for row in results if row.label == label and row.workers == number)


def until(results: list[Row]) -> dict[str, int | None]:
    return {row.label: row.pays_until for row in paying(results)}


def shaken(results: list[Row], number: int, repeats_s: list[float]) -> list[Row]:
    """The rows with other repeats of ring on so many workers."""
    return [
        changed(row, iteration_mean_s_repeats=repeats_s) if (row.label, row.workers) == ("ring", number) else row
        for row in results
    ]


class TestFigures:
    def test_strong_scaling_is_against_one_worker_with_the_same_batch(self) -> None:
        scaling = point(STRONG, "overlap", 3).scaling
        step = ALONE_S / 3 + 0.0012
        assert scaling.speedup == pytest.approx(ALONE_S / step)
        assert scaling.efficiency == pytest.approx(ALONE_S / step / 3)
        assert scaling.ideal_s == pytest.approx(ALONE_S / 3)
        assert scaling.beyond_ideal_s == pytest.approx(0.0012)
        low, high = scaling.speedup_interval95
        assert low < scaling.speedup < high
        assert scaling.efficiency_interval95 == pytest.approx([low / 3, high / 3])

    def test_weak_scaling_is_against_one_worker_with_its_own_batch(self) -> None:
        scaling = point(WEAK, "overlap", 4).scaling
        step = ALONE_S + 0.0015
        assert scaling.efficiency == pytest.approx(ALONE_S / step)
        assert scaling.speedup == pytest.approx(4 * ALONE_S / step)
        assert scaling.ideal_s == pytest.approx(ALONE_S)
        assert scaling.beyond_ideal_s == pytest.approx(0.0015)

    def test_what_is_beyond_stands_beside_what_was_measured(self) -> None:
        scaling = point(STRONG, "all-reduce", 2).scaling
        assert scaling.communication_s + scaling.waiting_s == pytest.approx(scaling.beyond_ideal_s)
        low, high = scaling.beyond_ideal_s_interval95
        assert low < 0.008 < high
        assert scaling.communication_share == pytest.approx(0.0072 / 0.028)

    def test_a_gain_is_over_the_next_smaller_number(self) -> None:
        gain = point(STRONG, "gather-scatter", 3).scaling.gain
        assert gain.over_workers == 2
        assert gain.ratio == pytest.approx((ALONE_S / 2 + 0.012) / (ALONE_S / 3 + 0.021))
        assert gain.verdict == "less"
        assert point(STRONG, "gather-scatter", 2).scaling.gain.over_workers == 1
        weak = point(WEAK, "overlap", 3).scaling.gain
        assert weak.ratio == pytest.approx(3 / 2 * (ALONE_S + 0.001) / (ALONE_S + 0.0012))
        assert weak.verdict == "more"

    def test_the_reference_is_its_own_measure(self) -> None:
        alone = reference_of(STRONG, "strong")
        assert alone is not None
        assert (alone.scaling.speedup, alone.scaling.efficiency) == (1.0, 1.0)
        assert alone.scaling.gain is None
        assert alone.scaling.beyond_ideal_s == 0

    def test_strategies_are_compared_where_they_had_equally_many_workers(self) -> None:
        for number in (2, 3, 4):
            found = {row.label: row.versus_fastest for row in STRONG if row.workers == number}
            assert found["overlap"].verdict == "fastest"
            assert found["gather-scatter"].verdict == "slower"

    def test_the_limit_is_that_of_equally_many_workers(self) -> None:
        costs = {"none": {2: 0.0, 4: 0.0}, "ring": {2: 2.0, 4: 2.0}}
        found = scaled(rows("strong", costs=costs))
        assert point(found, "ring", 2).versus_none.ratio == pytest.approx(22 / 20, rel=0.02)
        assert point(found, "ring", 4).versus_none.ratio == pytest.approx(12 / 10, rel=0.02)

    def test_modes_stay_apart(self) -> None:
        both = scaled([*rows("strong"), *rows("weak")])
        assert modes_of(both) == ["strong", "weak"]
        assert list(rows_by_strategy(both, "weak")) == ["gather-scatter", "all-reduce", "overlap"]
        assert all(mode_of(row) == "weak" for line in rows_by_strategy(both, "weak").values() for row in line)
        assert best_point(both).point == {"workers": 4, "mode": "strong"}

    def test_it_can_be_stored(self) -> None:
        study = scale_study("strong")
        assert convert(to_json(study), ScaleResult) == study


class TestWhereItStops:
    def test_the_last_number_that_gains_beyond_noise(self) -> None:
        # 40, 28, 21.3, 21.4 ms: the fourth worker changes nothing.
        assert until(STRONG) == {"gather-scatter": 2, "all-reduce": 3, "overlap": 4}

    def test_more_than_before_but_less_than_one_worker_does_not_pay(self) -> None:
        found = scaled(rows("strong", costs={"slow": {2: 80.0, 3: 60.0, 4: 50.0}}))
        assert point(found, "slow", 4).scaling.gain.verdict == "more"
        assert until(found) == {"slow": 1}
        (line,) = paying_words(found, "strong")
        assert line.startswith("slow gains no throughput over one worker: at best 0.67 times (95 % interval 0.6")

    def test_one_repeat_does_not_tell(self) -> None:
        found = scaled(rows("strong", repeats=1))
        assert set(until(found).values()) == {None}
        assert paying_words(found, "strong") == [
            "gather-scatter had the highest throughput on 2 workers (of 2, 3, 4) in this one repeat: 1.25x.",
            "all-reduce had the highest throughput on 3 workers (of 2, 3, 4) in this one repeat: 1.87x.",
            "overlap had the highest throughput on 4 workers (the most tried) in this one repeat: 3.48x.",
        ]
        slow = scaled(rows("strong", repeats=1, costs={"slow": {2: 80.0}}))
        assert paying_words(slow, "strong") == [
            "slow was not faster than one worker in this one repeat (at best 0.40)."
        ]

    def test_a_gain_within_noise_is_none(self) -> None:
        found = shaken(rows("strong", costs={"ring": {2: 2.0, 3: 2.0}}), 3, [0.015, 0.021, 0.027])
        assert until(scaled(found)) == {"ring": 2}

    def test_a_shaky_point_hides_none_of_those_after_it(self) -> None:
        found = rows("strong", costs={"ring": {2: 2.0, 3: 2.0, 4: 2.0}})
        found = scaled(shaken(found, 2, [0.015, 0.022, 0.045]))
        assert point(found, "ring", 2).scaling.gain.verdict == "no difference"
        assert until(found) == {"ring": 4}
        (line,) = paying_words(found, "strong")
        assert line.startswith("ring gains throughput up to 4 workers, the most tried: 1.28 times the throughput of 3")

    def test_more_than_one_worker_within_noise_is_called_that(self) -> None:
        found = shaken(rows("strong", costs={"ring": {2: 18.0}}), 2, [0.030, 0.038, 0.046])
        (line,) = paying_words(scaled(found), "strong")
        assert line.startswith(
            "ring: no gain over one worker at 95 % confidence; at best 1.05 times its throughput, on 2 (95 % interval"
        )

    def test_a_number_that_could_not_run_is_stepped_over(self) -> None:
        found = scaled([row for row in rows("strong") if (row.label, row.workers) != ("overlap", 3)])
        gain = point(found, "overlap", 4).scaling.gain
        assert (gain.over_workers, gain.verdict) == (2, "more")
        assert until(found)["overlap"] == 4

    def test_a_point_that_failed_later_is_compared_by_the_repeats_that_it_has(self) -> None:
        found = [row for row in rows("strong") if (row.label, row.workers) != ("overlap", 4)]
        found.append(point_row("overlap", "strong", 4, 0.0115, 0.0015, repeats=2))
        found = scaled(found)
        assert point(found, "overlap", 4).scaling.speedup_interval95 is not None
        assert point(found, "overlap", 4).versus_fastest.verdict == "fastest"
        once = [row for row in rows("strong") if (row.label, row.workers) != ("overlap", 4)]
        once.append(point_row("overlap", "strong", 4, 0.0115, 0.0015, repeats=1))
        once = scaled(once)
        assert point(once, "overlap", 4).scaling.gain.verdict == "one repeat cannot tell"
        assert until(once)["overlap"] == 3

    def test_one_worker_that_failed_later_leaves_nothing_to_tell_noise_by(self) -> None:
        found = [row for row in rows("strong") if row.label != ONE_WORKER]
        found.append(point_row(ONE_WORKER, "strong", 1, ALONE_S, 0.0, repeats=1))
        assert set(until(scaled(found)).values()) == {None}

    def test_without_the_one_worker_there_is_no_speed_up(self) -> None:
        found = scaled([row for row in rows("strong") if row.label != ONE_WORKER])
        scaling = point(found, "overlap", 4).scaling
        assert scaling.speedup is scaling.efficiency is scaling.beyond_ideal_s is None
        assert scaling.gain.verdict == "more"
        assert point(found, "overlap", 2).scaling.gain is None
        assert set(until(found).values()) == {None}
        assert paying_words(found, "strong") == []
        assert headline(found).text == "No speed-up can be given: one worker has no result."


class TestWords:
    def test_where_each_stops(self) -> None:
        first, second, third = paying_words(STRONG, "strong")
        assert first.startswith(
            "gather-scatter gains throughput up to 2 workers; 3 have 0.93 times the throughput of 2 (95"
        )
        assert first.endswith(" 0.92 to 0.95).")
        assert second.startswith("all-reduce gains throughput up to 3 workers; 4 have 1.00 times the throughput of 3")
        assert second.endswith("), which is noise.")
        assert third.startswith("overlap gains throughput up to 4 workers, the most tried: 1.26 times the throughput")

    def test_limits_are_not_judged(self) -> None:
        found = scaled(rows("strong", costs={"none": {2: 0.0}, "ring": {2: 2.0}}))
        assert [line.split()[0] for line in paying_words(found, "strong")] == ["ring"]

    def test_the_headline(self) -> None:
        words = "scaling: overlap scales best, {} times one worker on 4 workers (efficiency {} %)."
        assert headline(STRONG).text == f"Strong {words.format('3.48', 87)}"
        both = scaled([*rows("strong"), *rows("weak")])
        assert headline(both).text.endswith(f" Weak {words.format('3.86', 96)}")
        assert headline(scaled(rows("strong")[:1])).text == "Only one worker was measured."
        slow = scaled(rows("strong", costs={"slow": {2: 80.0}}))
        assert headline(slow).text == "Strong scaling: no strategy is faster than one worker."

    def test_batches_refusals_and_failures(self) -> None:
        modes = scale_study("strong", "weak").modes
        assert batch_words(modes, "strong") == "the global batch of 100 is kept"
        assert batch_words(modes, "weak") == "every worker keeps its batch of 25"
        point = {"workers": 2, "mode": "weak"}
        refused = Failure(label="x", point=point, reason="no")
        assert refused_words(refused) == "x on 2 workers (weak) cannot run: no."
        failed = Failure(label="x", point=point, repeat=3, error="worker 1 died")
        assert failed_words(failed) == "x on 2 workers (weak) failed in repeat 3: worker 1 died."
