"""Fault injection for the shared-memory comm, in processes forked from one: `python shm_faults.py FOLDER`.

Prints the outcome of every worker in every scenario as JSON. Only the parent imports torch, so forks are cheap.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from paceline.comm import CommError, shm, shm_reduction
from paceline.comm.shm import ShmComm
from paceline.comm.shm_memory import Segment
from paceline.errors import RunError

VICTIM = 2
WORLD_SIZE = 3
CPU = torch.device("cpu")


class Folder:
    """A store whose keys are files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir()

    def set(self, key: str, value: str) -> None:
        beside = self._path / f".{os.getpid()}"
        beside.write_text(value)
        beside.rename(self._path / key.replace("/", "-"))

    def get(self, key: str) -> bytes:
        path = self._path / key.replace("/", "-")
        deadline = time.monotonic() + 20
        while not path.exists():
            assert time.monotonic() < deadline, f"nobody has set {key}"
            time.sleep(0.002)
        return path.read_bytes()


def has_accident(comm: ShmComm, number: int) -> bool:
    """Send signal `number` to this process if it is the victim, once its peers wait for it; return whether it is."""
    if comm.rank != VICTIM:
        return False
    time.sleep(0.2)
    os.kill(os.getpid(), number)
    return True


def in_all_reduce(comm: ShmComm, number: int) -> None:
    tensor = torch.ones(1 << 20)
    comm.all_reduce(tensor)
    has_accident(comm, number)
    comm.all_reduce(tensor)


def in_barrier(comm: ShmComm, number: int) -> None:
    has_accident(comm, number)
    comm.barrier()


def in_recv(comm: ShmComm, number: int) -> None:
    has_accident(comm, number)
    comm.recv(torch.zeros(4), VICTIM if comm.rank == 0 else 0)  # 1 waits for 0, which waits for the victim


def in_recv_any(comm: ShmComm, number: int) -> None:
    has_accident(comm, number)
    comm.recv_any(torch.zeros(4))


def in_long_send(comm: ShmComm, number: int) -> None:
    """Interrupt the victim while it is sent a message larger than a channel."""
    if not has_accident(comm, number):
        comm.send(torch.zeros(1 << 28, dtype=torch.uint8), VICTIM)


def in_reduction(comm: ShmComm, number: int, *, has_started: bool = True) -> None:
    """Interrupt the victim in a reduction, after (`has_started`) or before it contributes."""
    reduction = comm.reduction(1 << 16, torch.float32, CPU, shared=True)
    reduction.start(0, 1 << 16, lambda: None).wait()
    if not has_started:
        has_accident(comm, number)
    work = reduction.start(0, 1 << 16, lambda: None)
    if has_started:
        has_accident(comm, number)
    work.wait()


def with_helpers(comm: ShmComm, number: int) -> None:
    assert comm._helpers is not None
    in_reduction(comm, number, has_started=False)


def force_helpers() -> None:
    shm.spare_cores = lambda num_workers: 2  # type: ignore[assignment]  # noqa: ARG005
    shm_reduction.HELPER_BYTES = 1


def look_around(comm: ShmComm, number: int) -> Any:  # noqa: ARG001
    """Return open files and mappings of shared memory after all workers connected."""
    kept = [comm.reduction(1000, torch.float32, CPU), comm.shared_vector(1000, torch.float32, CPU)]
    links = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    mapped = Path("/proc/self/maps").read_text().count("memfd:paceline")
    comm.barrier()
    kept.clear()
    comm.close()
    gc.collect()
    still_mapped = Path("/proc/self/maps").read_text().count("memfd:paceline")
    files = [link for link in links if "memfd" in link]
    return {"files": files, "num_mapped": mapped, "num_after_closing": still_mapped}


def leave_early(comm: ShmComm, number: int) -> Any:  # noqa: ARG001
    """Close worker 0, which created the memory, first; the others must still be able to use it."""
    reduction = comm.reduction(8, torch.float32, CPU, shared=True)
    reduction.own.fill_(comm.rank + 1)
    reduction.start(0, 8).wait()
    if comm.rank == 0:
        comm.close()
        return 6.0
    time.sleep(0.3)
    comm.send(torch.zeros(1), 3 - comm.rank)
    return float(reduction.result[7])


Scene = Callable[[ShmComm, int], Any]
DIE, STOP, STAY = signal.SIGKILL, signal.SIGSTOP, 0
SCENES: dict[str, tuple[Scene, int, float, Callable[[], None] | None]] = {
    "killed in all_reduce": (in_all_reduce, DIE, 20.0, None),
    "killed in a barrier": (in_barrier, DIE, 20.0, None),
    "killed in recv": (in_recv, DIE, 20.0, None),
    "killed in recv_any": (in_recv_any, DIE, 20.0, None),
    "killed in a long send": (in_long_send, DIE, 20.0, None),
    "killed in a reduction": (in_reduction, DIE, 20.0, None),
    "killed in a reduction with helper threads": (with_helpers, DIE, 20.0, force_helpers),
    "stopped in all_reduce": (in_all_reduce, STOP, 2.0, None),
    "stopped in a reduction with helper threads": (with_helpers, STOP, 2.0, force_helpers),
    "look around": (look_around, STAY, 20.0, None),
    "leave early": (leave_early, STAY, 20.0, None),
}


def worker(rank: int, name: str, folder: Path) -> dict[str, Any]:
    scene, number, timeout_s, prepare = SCENES[name]
    if prepare is not None:
        prepare()
    store = Folder(folder) if rank == 0 else object.__new__(Folder)
    store._path = folder
    comm = ShmComm(rank, WORLD_SIZE, store, timeout_s=timeout_s)
    started, cpu_started = time.monotonic(), time.process_time()
    try:
        result = scene(comm, number)
    except CommError as error:
        waited = time.monotonic() - started
        return {"error": str(error), "cpu_share": (time.process_time() - cpu_started) / waited, "waited_s": waited}
    return {"result": result}


def fork(function: Callable[[], Any], *, stays: bool = False) -> tuple[int, int]:
    """Fork a process that writes the result of `function` to a pipe; with `stays` it then waits to be killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        os.write(writer, json.dumps(function()).encode())
    except BaseException as error:
        os.write(writer, json.dumps({"raised": repr(error)}).encode())
    os.close(writer)
    if stays:
        signal.pause()
    os._exit(0)


def play(name: str, folder: Path) -> list[Any]:
    number = SCENES[name][1]
    # Workers with an outcome stay, otherwise slower workers would report them as missing too.
    stays = number != STAY
    forked = [fork(lambda rank=rank: worker(rank, name, folder), stays=stays) for rank in range(WORLD_SIZE)]
    said: list[Any] = [None] * WORLD_SIZE
    for rank, (pid, reader) in enumerate(forked):
        if number == STOP and rank == VICTIM:
            os.kill(pid, signal.SIGKILL)
        with os.fdopen(reader) as pipe:
            text = pipe.read()
        said[rank] = json.loads(text) if text else None
    for pid, _ in forked:
        if stays:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return said


def as_another_user() -> Any:
    """Return the result of opening the memory by its address as another user; None unless root."""
    if os.getuid() != 0:
        return None
    segment = Segment.create(100)
    address = segment.address

    def try_it() -> str:
        os.setuid(65534)
        try:
            Segment.attach(address)
        except RunError as error:
            return str(error)
        return "attached"

    pid, reader = fork(try_it)
    with os.fdopen(reader) as pipe:
        said = json.loads(pipe.read())
    os.waitpid(pid, 0)
    return {"said": said, "pid": os.getpid()}


def in_memory() -> set[str]:
    """Return the files in /dev/shm, without those of tests that run in parallel."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("paceline-test-")}


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    before = in_memory()
    said: dict[str, Any] = {name: play(name, folder / str(index)) for index, name in enumerate(SCENES)}
    said["another user"] = as_another_user()
    said["left in /dev/shm"] = sorted(in_memory() - before)
    print(json.dumps(said))


if __name__ == "__main__":
    main()
