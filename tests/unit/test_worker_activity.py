"""The page in which a worker shows what it is doing."""

from __future__ import annotations

import os
import subprocess
import sys

from paceline.worker_activity import NUM_WORDS, Activity, new_page


def test_the_last_operation_of_a_step_is_described() -> None:
    activity = Activity()
    activity.begin_task()
    activity.enter("rendezvous")
    assert str(activity.read()) == "before the first step, in rendezvous"
    for step in (40, 41):
        activity.begin_step(step)
        activity.enter("backward")
        for _ in range(10 if step == 40 else 3):
            activity.begin_operation("all_reduce")
    assert str(activity.read()) == "step 41, after all_reduce 3 of 10 (backward)"
    activity.begin_wait()
    assert activity.read().is_waiting
    assert str(activity.read()) == "step 41, in all_reduce 3 of 10 (backward)"
    activity.end_wait()
    assert not activity.read().is_waiting
    assert activity.read().total == 13


def test_a_wait_lasts_until_the_last_thread_ends_it() -> None:
    activity = Activity()
    activity.begin_wait()
    activity.begin_wait()
    activity.end_wait()
    assert activity.read().is_waiting


def test_a_page_outlives_the_process_that_wrote_it() -> None:
    activity, descriptor = new_page()
    code = (
        "import os, signal, sys; from paceline.worker_activity import ACTIVITY; ACTIVITY.share(int(sys.argv[1]));"
        "ACTIVITY.begin_task(); ACTIVITY.begin_step(7); ACTIVITY.enter('forward'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(descriptor)], pass_fds=[descriptor], timeout=60, check=False)
    os.close(descriptor)
    assert done.returncode == -9
    assert str(activity.read()) == "step 7, in forward"


def test_a_copy_from_another_host_counts_as_a_heartbeat() -> None:
    there, here = Activity(), Activity()
    there.begin_task()
    there.begin_step(3)
    there.set_unreachable(["10.0.0.2", "10.0.0.3"])
    here.load(there.copy())
    assert here.read().step == 3
    assert here.read().unreachable == ("10.0.0.2", "10.0.0.3")
    assert here.read().silent_s < 60


def test_any_numbers_from_another_host_can_be_shown() -> None:
    activity = Activity()
    for number in (-1, 1 << 62, -(1 << 63)):
        activity.load(number.to_bytes(8, sys.byteorder, signed=True) * NUM_WORDS)
        assert "?" in str(activity.read())
