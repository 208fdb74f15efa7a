"""All time limits follow from one timeout."""

from __future__ import annotations

import pytest

from paceline.limits import Limits


@pytest.mark.parametrize("timeout_s", [1.0, 2.0, 5.0, 8.0, 20.0, 60.0, 3600.0])
def test_a_failed_worker_is_named_within_the_timeout(timeout_s: float) -> None:
    limits = Limits(timeout_s)
    assert limits.operation_s + limits.cause_s < timeout_s
    assert limits.operation_s >= timeout_s / 2
    assert limits.silent_s < limits.operation_s  # a stopped worker is known when its peers give up
    assert 3 * limits.host_s <= max(timeout_s, 3)


def test_every_limit_is_listed_with_its_source() -> None:
    lines = [str(limit) for limit in Limits(60).table()]
    assert "limits: operation 54 s (timeout - report): one wait for a peer, server or the rendezvous" in lines
    names = [limit.name for limit in Limits(60).table()]
    assert len(set(names)) == len(names)
    own = {name.removesuffix("_s") for name, value in vars(Limits).items() if isinstance(value, property)}
    assert own <= set(names)
