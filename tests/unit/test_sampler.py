"""What workers use, sampled while they do it: cores, memory, files and network."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import jobs
from helpers import on_pool
from paceline.launch.local import LocalPool
from paceline.measure import resource_usage, sampler
from paceline.measure.observer import RunFacts
from paceline.measure.resource_usage import (
    CudaGpu,
    LinuxUsageReader,
    PortableUsageReader,
    numbers_of,
    open_gpu,
    open_usage_reader,
)
from paceline.measure.sampler import ResourceObserver, Sampler

Rows = list[dict[str, Any]]

KEYS = {"kind", "time_s", "cpu_percent", "rss_bytes", "peak_rss_bytes", "disk_read_bytes", "disk_written_bytes"}
KEYS |= {"network_sent_bytes", "network_received_bytes", "gpu_percent", "gpu_memory_bytes"}
MEMORY_FOLDER = Path("/dev/shm")
on_linux = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="this system has no /proc")


def most(rows: Rows, key: str) -> float:
    return max(row[key] for row in rows if row[key] is not None)


def test_a_line_has_what_readers_expect() -> None:
    rows: Rows = []
    watching = Sampler(rows.append, hz=50, clock=lambda: 7.5)
    watching.start()
    watching.stop()
    assert len(rows) >= 2  # one at the start, one at the end, however short the time between
    for row in rows:
        assert set(row) >= KEYS
        assert row["kind"] == "sample"
        assert row["time_s"] == 7.5
        assert row["rss_bytes"] > 1_000_000
        assert row["peak_rss_bytes"] >= row["rss_bytes"] * 0.9
    assert rows[0]["cpu_percent"] is None
    assert (rows[0]["disk_written_bytes"], rows[0]["network_sent_bytes"]) in ((0, 0), (0, None), (None, None))
    assert watching.latest is rows[-1]


def test_samples_come_by_themselves_and_end_with_stop() -> None:
    arrived = threading.Event()
    rows: Rows = []

    def take(row: dict[str, Any]) -> None:
        rows.append(row)
        if len(rows) >= 5:
            arrived.set()

    watching = Sampler(take, hz=100)
    watching.start()
    assert arrived.wait(20)
    watching.stop()
    assert not any(thread.name == "sampler" for thread in threading.enumerate())
    count = len(rows)
    watching.stop()
    assert len(rows) == count
    times = [row["time_s"] for row in rows]
    assert times == sorted(times)
    assert watching.cost_s > 0


def test_a_paused_sampler_only_answers() -> None:
    rows: Rows = []
    watching = Sampler(rows.append, hz=200)
    watching.start()
    watching.pause()
    before = -1
    deadline = time.monotonic() + 20
    while len(rows) != before:  # a sample may be under way
        assert time.monotonic() < deadline
        before = len(rows)
        time.sleep(0.1)
    watching.sample()
    assert len(rows) == before + 1
    watching.resume()
    deadline = time.monotonic() + 20
    while len(rows) < before + 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    watching.stop()


def test_samples_that_cost_much_come_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "MOST_COST", 1e-9)  # after the first sample, the next one is due in days
    rows: Rows = []
    watching = Sampler(rows.append, hz=200)
    watching.start()
    deadline = time.monotonic() + 20
    while len(rows) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.1)
    watching.stop()
    assert len(rows) == 3  # at the start, one by itself, at the end


def test_a_worker_that_burns_a_core_shows_it(pool: LocalPool) -> None:
    lazy, busy = on_pool(pool, 2, jobs.sampled, what="burn")
    # Others use this machine, too: far from 100, and far from nothing.
    assert 30 < most(busy, "cpu_percent") < 160
    assert min(row["cpu_percent"] for row in lazy if row["cpu_percent"] is not None) < 30


@on_linux
@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_a_worker_that_writes_50_megabytes_shows_it(pool: LocalPool, tmp_path: Path, kind: str) -> None:
    if kind == "memory" and not os.access(MEMORY_FOLDER, os.W_OK):
        pytest.skip(f"{MEMORY_FOLDER} cannot be written")
    with TemporaryDirectory(prefix="paceline-test-", dir=tmp_path if kind == "disk" else MEMORY_FOLDER) as folder:
        lazy, busy = on_pool(pool, 2, jobs.sampled, what="write", folder=folder)
    assert 50_000_000 <= most(busy, "disk_written_bytes") < 52_000_000
    assert most(lazy, "disk_written_bytes") < 1_000_000


@on_linux
def test_what_goes_over_the_network_is_not_taken_for_files(pool: LocalPool) -> None:
    receiver, sender = on_pool(pool, 2, jobs.sampled, what="send")
    if sender[-1]["network_sent_bytes"] is None:
        pytest.skip("this kernel does not count bytes per connection")
    assert 20_000_000 <= sender[-1]["network_sent_bytes"] < 20_200_000
    assert 20_000_000 <= receiver[-1]["network_received_bytes"] < 20_200_000
    assert sender[-1]["disk_written_bytes"] < 1_000_000
    assert sender[-1]["network_received_bytes"] < 200_000


def test_the_peak_of_memory_is_that_of_the_run(pool: LocalPool) -> None:
    on_pool(pool, 2, jobs.freed, blocks=40)  # kept by the process, and not the next run's
    lazy, busy = on_pool(pool, 2, jobs.sampled, what="allocate")
    assert busy[-1]["peak_rss_bytes"] - busy[0]["rss_bytes"] > 150_000_000
    assert lazy[-1]["peak_rss_bytes"] - lazy[0]["rss_bytes"] < 50_000_000
    again, _ = on_pool(pool, 2, jobs.sampled, what="sleep")
    assert again[-1]["peak_rss_bytes"] - again[0]["rss_bytes"] < 50_000_000


@on_linux
def test_where_the_peak_cannot_be_forgotten_the_largest_seen_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_usage, "_reset_peak", lambda: False)
    reader = LinuxUsageReader()
    first = reader.read()
    assert first.peak_rss_bytes == first.rss_bytes
    reader.close()


@on_linux
def test_where_files_are_not_counted_there_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_usage, "_open_if_readable", lambda path: None)  # noqa: ARG005
    rows: Rows = []
    watching = Sampler(rows.append)
    watching.start()
    watching.stop()
    assert rows[-1]["disk_read_bytes"] is None
    assert rows[-1]["disk_written_bytes"] is None
    assert rows[-1]["rss_bytes"] > 0


def test_other_systems_are_asked_through_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_usage.sys, "platform", "darwin")
    reader = open_usage_reader()
    assert isinstance(reader, PortableUsageReader)
    usage = reader.read()
    assert usage.peak_rss_bytes >= usage.rss_bytes > 1_000_000

    class Silent:
        """As on macOS, where psutil knows no file counters."""

        def memory_info(self) -> Any:
            return reader._process.memory_info()

    other = PortableUsageReader()
    other._process = Silent()
    assert other.read().disk_read_bytes is None
    rows: Rows = []
    watching = Sampler(rows.append)
    watching.start()
    watching.stop()
    assert rows[-1]["network_sent_bytes"] is None


def test_numbers_behind_names() -> None:
    text = b"VmHWM:\t   12 kB\nVmRSS:\t 7 kB\nwchar: 5\n"
    assert numbers_of(text, (b"VmRSS", b"wchar")) == {b"VmRSS": 7, b"wchar": 5}


class FakeCuda:
    def utilization(self, device: Any) -> int:  # noqa: ARG002
        return 42

    def memory_reserved(self, device: Any) -> int:  # noqa: ARG002
        return 1 << 30


class FakeDevice:
    type = "cuda"


def test_a_gpu_is_read_where_a_worker_has_one() -> None:
    assert open_gpu(None) is None
    gpu = open_gpu(FakeDevice())
    assert isinstance(gpu, CudaGpu)
    gpu._cuda, gpu._has_pynvml = FakeCuda(), True
    assert gpu.read() == (42.0, 1 << 30)
    gpu._has_pynvml = False  # pynvml is not installed
    assert gpu.read() == (None, 1 << 30)


def test_an_observer_keeps_samples_and_the_state_at_the_last_step() -> None:
    written: Rows = []
    facts = RunFacts(
        rank=0,
        world_size=1,
        total_steps=3,
        steps_per_epoch=1,
        folder="",
        write=written.append,
        run_time=lambda moment: moment - 1000.0,
    )
    observer = ResourceObserver(hz=0.001)  # none by itself
    assert observer.report_fields()["samples"] == []
    observer.run_begins(facts)
    observer.steps_end()
    observer.run_ends()
    found = observer.report_fields()
    assert found["samples"] == written
    assert found["at_last_step"] == written[1]
    assert abs(written[-1]["time_s"] - (time.perf_counter() - 1000.0)) < 60
    assert found["sampling_s"] > 0
