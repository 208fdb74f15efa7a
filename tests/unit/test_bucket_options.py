"""Sizes of buckets: the first is small, and larger than the others only on request."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from helpers import build
from paceline.codecs import TensorSpec
from paceline.errors import UsageError

TENSORS = [TensorSpec(20_000, 4)] * 6  # 80 kB each


@pytest.mark.parametrize("name", ["overlap", "sharded"])
@pytest.mark.parametrize(
    ("options", "first_bytes", "bucket_bytes"),
    [
        ("", 1e6, 4e6),
        (":bucket_mb=8", 1e6, 8e6),
        (":bucket_mb=0.05", 5e4, 5e4),
        (":bucket_mb=0.05:first_bucket_mb=2", 2e6, 5e4),
        (":first_bucket_mb=0.1", 1e5, 4e6),
    ],
)
def test_sizes(name: str, options: str, first_bytes: float, bucket_bytes: float) -> None:
    assert astuple(build(name + options).limits) == pytest.approx((first_bytes, bucket_bytes))


def test_small_buckets_are_many_messages() -> None:
    assert len(build("overlap").traffic(TENSORS, 0, 2, 0)) == 1
    assert len(build("overlap:bucket_mb=0.05").traffic(TENSORS, 0, 2, 0)) == 6
    assert len(build("overlap:bucket_mb=0.05:first_bucket_mb=1").traffic(TENSORS, 0, 2, 0)) == 1


@pytest.mark.parametrize("option", ["bucket_mb", "first_bucket_mb"])
def test_sizes_of_zero_are_refused(option: str) -> None:
    with pytest.raises(UsageError, match=f"option {option} of strategy overlap must be above 0"):
        build(f"overlap:{option}=0")
