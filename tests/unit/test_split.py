"""The split of a step, on lines whose split follows by arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_up_lines import Line, blocked, both, op, span, step_line
from paceline.measure.analysis import Analysis, analyse
from paceline.measure.split import PARTS, Wait, caused_waiting
from paceline.measure.steps import read_steps


def factors(op: str, peer: int | None, rank: int) -> tuple[float, float]:  # noqa: ARG001
    return {"send": (1.0, 0.0), "recv": (0.0, 1.0), "barrier": (0.0, 0.0)}.get(op, (1.5, 1.5))


def analysed(*workers: list[Line], first: int = 0, last: int = 10**9) -> dict[str, Any]:
    return analyse(
        {rank: read_steps(lines) for rank, lines in enumerate(workers)}, first=first, last=last, factors=factors
    )


def split_of(*workers: list[Line], **steps: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = analysed(*workers, **steps)["split"]["per_worker"]
    for row in rows:
        assert sum(row[part] for part in PARTS) == pytest.approx(row["step_s"])
    return rows


def parts(row: dict[str, Any]) -> dict[str, float]:
    """The parts that are not zero, without their unit."""
    return {part.removesuffix("_s"): round(row[part], 9) for part in PARTS if abs(row[part]) > 1e-9}


def plain_step(extra: list[Line], end: float = 10.0) -> list[Line]:
    """One second of data, two of forward, three of backward, then whatever else, and an optimiser at the end."""
    spans = [span(0, "data", 0, 1), span(0, "forward", 1, 3), span(0, "backward", 3, 6)]
    return [*spans, *extra, span(0, "optimizer", end - 1, end), step_line(0, 0, end)]


def test_communication_after_backward_is_all_exposed() -> None:
    lines = plain_step(both(0, 0, 6, 8.5))
    for row in split_of(lines, lines):
        assert parts(row) == {"compute": 6.0, "communication": 2.5, "data": 1.0, "rest": 0.5}
        assert row["overlap_fraction"] == 0.0
        assert row["bandwidth_bytes_per_s"] == pytest.approx(1500 / 2.5)
        assert row["phases_s"] == {"data": 1.0, "forward": 2.0, "backward": 3.0, "optimizer": 1.0}
        assert row["caused_waiting_s"] == 0.0


def test_a_collective_under_backward_is_all_overlap() -> None:
    lines = plain_step([op(0, 0, 4, 5.5)], end=7.0)
    for row in split_of(lines, lines):
        assert parts(row) == {"compute": 4.5, "overlap": 1.5, "data": 1.0}
        assert row["overlap_fraction"] == 1.0
        assert row["phases_s"]["backward"] == 3.0


def test_two_buckets_at_once_overlap_once_and_their_end_is_exposed() -> None:
    """Both are under way from 4.5 to 5; after backward the worker stands still from 6 to 7 for the second."""
    lines = plain_step([op(0, 0, 4, 5), op(0, 1, 4.5, 7), blocked(0, 1, 6, 7)], end=8.0)
    for row in split_of(lines, lines):
        assert parts(row) == {"compute": 4.0, "overlap": 2.0, "communication": 1.0, "data": 1.0}
        assert row["overlap_fraction"] == pytest.approx(2 / 3)
        assert row["bandwidth_bytes_per_s"] == pytest.approx(2 * 1500 / 3)


def test_operations_of_the_optimizer_have_nothing_to_hide_under() -> None:
    """As with a server: gradients go at 6, weights are waited for from 6.5 to 8, and meanwhile the worker packs."""
    extra = [span(0, "optimizer", 6, 9), op(0, 0, 6, 8), blocked(0, 0, 6.5, 8)]
    lines = plain_step(extra)
    for row in split_of(lines, lines):
        assert parts(row) == {"compute": 7.5, "communication": 1.5, "data": 1.0}
        assert row["overlap_fraction"] == 0.0


def test_what_was_begun_before_hides_under_the_optimizer_and_what_goes_on_after_it_too() -> None:
    before = plain_step([op(0, 0, 5, 6.5), span(0, "optimizer", 6, 7)], end=8.0)
    assert [parts(row)["overlap"] for row in split_of(before, before)] == [1.5, 1.5]
    after = [
        span(0, "optimizer", 0, 1), op(0, 0, 0.5, 1.5), step_line(0, 0, 1),
        span(1, "forward", 1, 2), step_line(1, 1, 2),
    ]  # fmt: skip
    assert [parts(row)["overlap"] for row in split_of(after, after)] == [0.25, 0.25]


def test_blocked_inside_backward_is_no_work() -> None:
    lines = plain_step([op(0, 0, 4, 6), blocked(0, 0, 5, 6)], end=7.0)
    for row in split_of(lines, lines):
        assert parts(row) == {"compute": 4.0, "overlap": 1.0, "communication": 1.0, "data": 1.0}
        assert row["phases_s"]["backward"] == 2.0


def test_loading_data_is_data_whatever_moves_meanwhile() -> None:
    lines = [
        span(0, "forward", 0, 1), op(0, 0, 0.5, 1.5), step_line(0, 0, 1),
        span(1, "data", 1, 2), span(1, "forward", 2, 3), step_line(1, 1, 3),
    ]  # fmt: skip
    row = split_of(lines, lines)[0]
    assert parts(row) == {"compute": 0.75, "overlap": 0.25, "data": 0.5}


def test_what_still_moves_overlaps_with_the_next_step() -> None:
    lines = [
        span(0, "forward", 0, 1), step_line(0, 0, 1),
        span(1, "forward", 1, 2), op(0, 0, 0.5, 1.5), step_line(1, 1, 2),
    ]  # fmt: skip
    assert parts(split_of(lines, lines)[0]) == {"compute": 0.5, "overlap": 0.5}


def test_a_late_peer_is_waited_for() -> None:
    """Worker 1 comes to the collective two seconds after the others, and from then on it takes one."""
    early = plain_step(both(0, 0, 6, 9))
    late = plain_step([span(0, "backward", 6, 8), *both(0, 0, 8, 9)])
    rows = split_of(early, late, early)
    for row in (rows[0], rows[2]):
        assert parts(row) == {"compute": 6.0, "waiting": 2.0, "communication": 1.0, "data": 1.0}
        assert row["bandwidth_bytes_per_s"] == pytest.approx(1500 / 1)
    assert parts(rows[1]) == {"compute": 8.0, "communication": 1.0, "data": 1.0}
    assert [row["caused_waiting_s"] for row in rows] == pytest.approx([0, 4, 0])
    mean = analysed(early, late, early)["split"]["mean"]
    assert mean["waiting_s"] == pytest.approx(4 / 3)
    assert sum(mean[part] for part in PARTS) == pytest.approx(mean["step_s"])


def test_nothing_overlaps_before_the_last_one_came() -> None:
    """The early worker computes on for a second after its call; bytes move only when the other has called too."""
    early = plain_step([op(0, 0, 4, 8), blocked(0, 0, 6, 8)], end=9.0)
    late = plain_step([span(0, "backward", 6, 7), *both(0, 0, 7, 8)], end=9.0)
    rows = split_of(early, late)
    assert parts(rows[0]) == {"compute": 6.0, "waiting": 1.0, "communication": 1.0, "data": 1.0}
    assert rows[0]["overlap_fraction"] == 0.0


def test_a_worker_that_moves_numbers_itself_communicates_whoever_is_late() -> None:
    """As above, but for the first half second after its call the early worker's own thread is busy in the comm."""
    early = plain_step([op(0, 0, 4, 8), blocked(0, 0, 4, 4.5, busy=True), blocked(0, 0, 6, 8)], end=9.0)
    late = plain_step([span(0, "backward", 6, 7), *both(0, 0, 7, 8)], end=9.0)
    rows = split_of(early, late)
    assert parts(rows[0]) == {"compute": 5.5, "waiting": 1.0, "communication": 1.5, "data": 1.0}


def message(kind: str, peer: int, number: int, begin: float, end: float) -> list[Line]:
    return both(0, number, begin, end, op=kind, peer=peer)


def test_ring_messages_are_waited_for_from_their_sender() -> None:
    """Two workers: each sends at once; worker 1 is at its send one second later."""
    first = plain_step([op(0, 0, 6, 6.5, op="send", peer=1), *message("recv", 1, 0, 6, 7.5)])
    second = plain_step(
        [span(0, "backward", 6, 7), op(0, 0, 7, 7.5, op="send", peer=0), *message("recv", 0, 0, 7, 7.25)]
    )
    rows = split_of(first, second)
    assert parts(rows[0]) == {"compute": 6.0, "waiting": 1.0, "communication": 0.5, "data": 1.0, "rest": 1.5}
    assert parts(rows[1])["communication"] == pytest.approx(0.25)
    assert "waiting" not in parts(rows[1])
    # A send of 1000 bytes from 6 to 6.5 and a receive of as many from 7 to 7.5: both ways count once.
    assert rows[0]["bandwidth_bytes_per_s"] == pytest.approx(1000 / 1.0)
    assert rows[1]["bandwidth_bytes_per_s"] == pytest.approx(1000 / 0.5)
    assert [row["caused_waiting_s"] for row in rows] == pytest.approx([0, 1])


def test_a_sender_waits_for_who_takes_its_message() -> None:
    sender = plain_step(message("send", 1, 0, 6, 8))
    taker = plain_step([span(0, "backward", 6, 7), *message("recv", 0, 0, 7, 8)])
    rows = split_of(sender, taker)
    assert (parts(rows[0])["waiting"], parts(rows[0])["communication"]) == (1.0, 1.0)


def test_a_message_that_was_left_waits_for_nobody() -> None:
    sender = plain_step(message("send", 1, 0, 6, 6.5))
    taker = plain_step([span(0, "backward", 6, 7), *message("recv", 0, 0, 7, 7.5)])
    rows = split_of(sender, taker)
    assert (parts(rows[0])["communication"], rows[0]["waiting_s"]) == (0.5, 0.0)
    assert (parts(rows[1])["communication"], rows[1]["waiting_s"]) == (0.5, 0.0)


def test_a_send_that_nobody_looked_at_ends_when_its_peer_has_it() -> None:
    """Both send at 6 and have received at 6.5; that the sends are complete is seen in the next step, at 17."""

    def worker(peer: int) -> list[Line]:
        send = op(0, 0, 6, 17, op="send", peer=peer)
        return [
            *plain_step([send, *message("recv", peer, 0, 6, 6.5)]),
            span(1, "forward", 10, 20),
            step_line(1, 10, 20),
        ]

    for row in split_of(worker(1), worker(0)):
        assert parts(row) == {"compute": 8.0, "communication": 0.25, "data": 0.5, "rest": 1.25}
        assert row["overlap_fraction"] == 0.0
        assert row["bandwidth_bytes_per_s"] == pytest.approx(1000 / 0.5)


def test_a_send_overlaps_until_its_peer_has_it() -> None:
    sender = plain_step([op(0, 0, 4, 9, op="send", peer=1)], end=7.0)
    taker = plain_step([op(0, 0, 4, 5, op="recv", peer=0)], end=7.0)
    assert [parts(row)["overlap"] for row in split_of(sender, taker)] == [1.0, 1.0]


def test_messages_with_tags_and_peers_do_not_mix() -> None:
    """The k-th message of each peer and tag: only the one with tag 5 from worker 1 is late."""
    first = plain_step([*both(0, 0, 6, 6.5, op="recv", peer=1, tag=4), *both(0, 0, 6.5, 8, op="recv", peer=1, tag=5)])
    second = plain_step([*both(0, 0, 6, 6.5, op="send", peer=0, tag=4), *both(0, 0, 7.5, 8, op="send", peer=0, tag=5)])
    assert parts(split_of(first, second)[0])["waiting"] == 1.0


def test_who_is_late_because_it_waited_passes_the_blame_on() -> None:
    """Worker 2 waits for 1, which waits for 0 most of that time."""
    waits = {0: [], 1: [Wait(0, 3, 0)], 2: [Wait(1, 4, 1)]}
    assert caused_waiting(waits) == pytest.approx({0: 3 + 2, 1: 1, 2: 0})


def test_blame_does_not_go_in_circles() -> None:
    waits = {0: [Wait(0, 1, 1)], 1: [Wait(0, 1, 0)]}
    assert sum(caused_waiting(waits).values()) == pytest.approx(2)


def test_leaves_of_a_broadcast_need_its_root_alone() -> None:
    """Worker 1 does not wait for worker 2, which is there after the message had come to worker 1, nor amid it."""
    root = plain_step(both(0, 0, 6, 9, op="broadcast", peer=0))
    leaf = plain_step(both(0, 0, 6, 7, op="broadcast", peer=0))
    late = plain_step([span(0, "backward", 6, 6.5), *both(0, 0, 6.5, 9, op="broadcast", peer=0)])
    rows = split_of(root, leaf, late)
    assert parts(rows[1])["communication"] == 1.0
    assert rows[1]["waiting_s"] == 0.0
    assert parts(rows[0])["waiting"] == 0.5


def test_micro_batches_are_phases_that_come_again() -> None:
    pieces = [span(0, phase, begin, begin + 1) for phase, begin in
              (("data", 0), ("forward", 1), ("backward", 2), ("forward", 3), ("backward", 4))]  # fmt: skip
    lines = [*pieces, op(0, 0, 4.5, 6), blocked(0, 0, 5, 6), span(0, "optimizer", 6, 7), step_line(0, 0, 7)]
    for row in split_of(lines, lines):
        assert parts(row) == {"compute": 4.5, "overlap": 0.5, "communication": 1.0, "data": 1.0}
        assert row["phases_s"] == {"data": 1.0, "forward": 2.0, "backward": 2.0, "optimizer": 1.0}


def test_one_worker_has_nobody_to_wait_for() -> None:
    row = split_of(plain_step([], end=7.0))[0]
    assert parts(row) == {"compute": 6.0, "data": 1.0}
    assert (row["overlap_fraction"], row["bandwidth_bytes_per_s"]) == (None, None)


def test_who_has_no_operation_hides_no_share_of_it() -> None:
    """As under `none`: the loop gives the strategy its turn, which takes a moment; a barrier moves nothing."""
    lines = plain_step([span(0, "communication", 6, 6.25), *both(0, 0, 6.25, 6.5, op="barrier", bytes=0)], end=7.5)
    for row in [*split_of(lines, lines), analysed(lines, lines)["split"]["mean"]]:
        assert row["communication_s"] == pytest.approx(0.5)
        assert row["overlap_fraction"] is None


def test_an_evaluation_beside_the_steps_counts_nowhere() -> None:
    lines = [*plain_step([], end=7.0), span(0, "evaluation", 7, 9), *both(0, 0, 8, 9)]
    row = split_of(lines, lines)[0]
    assert parts(row) == {"compute": 6.0, "data": 1.0}
    assert row["bandwidth_bytes_per_s"] is None


def test_only_timed_steps_count() -> None:
    lines = [line for step, seconds in enumerate((7.0, 2.0, 2.0)) for line in (
        span(step, "forward", 10 * step, 10 * step + seconds), step_line(step, 10 * step, 10 * step + 10))]  # fmt: skip
    assert split_of(lines, first=1)[0]["phases_s"]["forward"] == pytest.approx(2.0)
    assert split_of(lines, last=1)[0]["phases_s"]["forward"] == pytest.approx(4.5)
    assert analysed(lines, first=7, last=8) == Analysis()


def test_a_step_that_was_kept_counts_for_those_that_were_not() -> None:
    def worker() -> list[Line]:
        long = [span(2000, "forward", 100, 103), step_line(2000, 100, 103)]  # stands for four
        return [span(0, "forward", 0, 1), step_line(0, 0, 1), *long]

    row = split_of(worker())[0]
    assert row["step_s"] == pytest.approx((1 * 1 + 4 * 3) / 5)


TIMES = st.lists(st.floats(0, 10, allow_nan=False), min_size=2, max_size=2).map(sorted)


@st.composite
def any_worker(draw: st.DrawFn) -> list[Line]:
    """Phases, operations and stand-stills anywhere, inside the step or not."""
    lines = []
    for phase in ("data", "forward", "backward", "optimizer", "evaluation"):
        lines += [span(0, phase, *draw(TIMES)) for _ in range(draw(st.integers(0, 2)))]
    for number in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["all_reduce", "send", "recv", "gather"]))
        peer = None if kind == "all_reduce" else draw(st.integers(0, 2))
        key = {"op": kind, "peer": peer}
        lines += [op(0, number, *draw(TIMES), **key), blocked(0, number, *draw(TIMES), **key)]
    begin, end = draw(TIMES)
    return [*lines, span(0, "forward", begin, begin), step_line(0, begin, end)]


@given(st.lists(any_worker(), min_size=1, max_size=3))
def test_parts_always_add_up_to_the_step(workers: list[list[Line]]) -> None:
    found = analysed(*workers)["split"]
    if found is None:
        return
    for row in [*found["per_worker"], found["mean"]]:
        assert all(row[part] > -1e-9 for part in PARTS)
        assert sum(row[part] for part in PARTS) == pytest.approx(row["step_s"], abs=1e-9)
        assert all(seconds >= 0 for seconds in row["phases_s"].values())
        assert row["overlap_fraction"] is None or 0 <= row["overlap_fraction"] <= 1 + 1e-9


WAITS = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10), st.integers(0, 3)), max_size=4)


@given(st.lists(WAITS, min_size=4, max_size=4))
def test_somebody_is_to_blame_for_all_waiting(drawn: list[list[tuple[float, float, int]]]) -> None:
    waits: dict[int, list[Wait]] = {}
    for rank, some in enumerate(drawn):
        free = 0.0
        waits[rank] = []
        for gap, seconds, late in some:  # one after the other, and never for oneself
            if late != rank:
                waits[rank].append(Wait(free + gap, free + gap + seconds, late))
                free += gap + seconds
    total = sum(wait.end_s - wait.begin_s for some in waits.values() for wait in some)
    caused = caused_waiting(waits)
    assert sum(caused.values()) == pytest.approx(total, abs=1e-6)
    assert all(seconds > -1e-6 for seconds in caused.values())
