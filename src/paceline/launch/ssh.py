"""Workers on several hosts, all started from this one over ssh."""

from __future__ import annotations

import ipaddress
import os
import secrets
import select
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import IO, Any, ClassVar

import msgspec

from paceline.errors import RunError, UsageError
from paceline.launch.base import Fit, Launcher, LaunchRequest, Place
from paceline.launch.messages import Enter, MessageChannel, MessageError, Plain, printable
from paceline.launch.pool import START_S, ProcessPool
from paceline.launch.process_host import STOP_S, ProcessHost, WorkerProcess, WorkerSlot, spread
from paceline.launch.remote_worker import MARK
from paceline.launch.version_check import difference, own_facts
from paceline.text import plain_text

CONNECT_S = 15
WAVE = 8  # connections that are opened at once; an ssh server refuses many at a time
MOST_NOISE_BYTES = 1 << 16  # that a login may print before the worker answers

Facts = dict[str, str]  # of a worker's interpreter, and the address of its host
# No password can be typed; a host that stops answering is noticed.
SSH_OPTIONS = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}", "-o", "ServerAliveInterval=15"]


class Ssh(Launcher):
    """Processes on hosts, in even blocks, each at the end of an ssh connection; this host may be one of them."""

    name: ClassVar[str] = "ssh"
    conflicts: ClassVar = {
        "torchrun": "--hosts starts workers on hosts itself; leave torchrun out, or --hosts",
        "by-hand": "--hosts starts every host from here, --nnodes is for hosts started by hand; give one of them",
    }

    @classmethod
    def detect(cls, request: LaunchRequest) -> Fit | None:
        return None if request.hosts is None else Fit("--hosts")

    def check(self) -> None:
        names = self.request.hosts
        if names is None:
            raise UsageError("--launcher ssh needs --hosts; an example: --hosts alpha,beta,user@gamma")
        for name in names:
            if not name or name.startswith("-") or any(letter.isspace() for letter in name):
                raise UsageError(f"--hosts: {name!r} is not the name of a host")
            if names.count(name) > 1:
                raise UsageError(f"--hosts names {name} twice; --workers says how many processes there are in all")
        if not names:
            raise UsageError("--hosts is empty; an example: --hosts alpha,beta,user@gamma")
        if not 0 <= self.request.master_port < 65536:
            raise UsageError(f"--master-port must be from 1 to 65535, not {self.request.master_port}")
        try:
            words = shlex.split(self.request.ssh)
        except ValueError as error:
            raise UsageError(f"--ssh {self.request.ssh!r} cannot be read: {error}") from None
        if not words:
            raise UsageError("--ssh is empty; an example: --ssh 'ssh -p 2222'")

    def open(self, num_processes: int) -> ProcessPool:
        return ProcessPool(num_processes, OverSsh(self.request, num_processes))

    def describe(self) -> Place:
        names = self.request.hosts or ()
        return Place(self.name, len(names), f"on {', '.join(names)}")


def remote_command(request: LaunchRequest, name: str, environment: dict[str, str]) -> list[str]:
    """The command line, here, that starts a worker there."""
    client = shlex.split(request.ssh)
    if os.path.basename(client[0]) == "ssh":
        client += SSH_OPTIONS
    assignments = [f"{key}={value}" for key, value in environment.items()]
    remote = ["env", *assignments, request.remote_python or sys.executable, "-m", "paceline.launch.remote_worker"]
    return [*client, name, f"exec {shlex.join(remote)}"]


class OverSsh(ProcessHost):
    """An ssh client for every worker. When it ends, or this process does, the worker ends."""

    is_forked = False

    def __init__(self, request: LaunchRequest, num_processes: int) -> None:
        assert request.hosts is not None
        self._request, self._names = request, request.hosts
        self._host_of = spread(num_processes, len(request.hosts))
        self._said: list[_Said] = []
        self.meeting = ("", request.master_port)

    def start(self, environment: dict[str, str]) -> Iterator[WorkerProcess]:
        self._said = []
        facts: list[Facts] = []
        carried = {**_carried_variables(), **environment}
        for first in range(0, len(self._host_of), WAVE):
            wave = []
            for index in range(first, min(first + WAVE, len(self._host_of))):
                process = self._connect(index, carried)
                wave.append((index, process.pipe))
                yield process
            facts += [self._greet(index, pipe) for index, pipe in wave]
        self.meeting = (self._address_of_first(facts), self._request.master_port)

    def seat(self, index: int) -> WorkerSlot:
        host = self._host_of[index]
        return WorkerSlot(str(host), index - self._host_of.index(host), "")

    def who(self, index: int) -> str:
        return f"on host {self._name(index)}"

    def hint(self, index: int, code: int) -> str:
        last = self._said[index].last()
        how = " (ssh's own: a signal ended it there, or the connection is gone)" if code == 255 else ""
        return f"{how} on host {self._name(index)}{last and f': {last}'}"

    def _name(self, index: int) -> str:
        return self._names[self._host_of[index]]

    def _connect(self, index: int, environment: dict[str, str]) -> WorkerProcess:
        name = self._name(index)
        ours, theirs = socket.socketpair()
        with theirs:
            connection: Connection[Any, Any] = Connection(ours.detach())
            command = remote_command(self._request, name, environment)
            try:
                popen = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                connection.close()
                raise UsageError(f"--ssh: {command[0]!r} cannot be started: {error.strerror}") from None
        assert popen.stderr is not None
        self._said.append(_Said(name, popen.stderr))
        return WorkerProcess(popen, Plain(connection, connection), ends_with_pipe=True)

    def _greet(self, index: int, pipe: MessageChannel) -> Facts:
        """Wait for the token, compare versions, and send the working directory."""
        token = secrets.token_hex(32)
        name, said = self._name(index), self._said[index]
        try:
            os.write(pipe.fileno(), f"{token}\n".encode())
            facts = _read_answer(pipe.fileno(), token)
        except (TimeoutError, MessageError) as error:
            raise RunError(f"host {name} {error}") from None
        except OSError:
            said.wait()
            raise RunError(
                f"no worker could be started on host {name}: {said.last() or 'it ended without a word'}"
            ) from None
        differs = difference(own_facts(), facts)
        if differs:
            raise UsageError(f"host {name} must run the same as this one, but {printable(differs)}")
        said.is_heard = True
        pipe.send(Enter(os.getcwd(), [os.path.abspath(entry) for entry in sys.path if entry]))
        return facts

    def _address_of_first(self, facts: list[Facts]) -> str:
        """The address at which other hosts reach worker 0."""
        if self._request.master_addr:
            return self._request.master_addr
        addresses = [facts[self._host_of.index(host)].get("address", "") for host in sorted(set(self._host_of))]
        first = addresses[0] or self._names[0].rpartition("@")[2]
        if len(addresses) > 1 and (_is_loopback(first) or ":" in first):
            what = "which other hosts cannot reach" if _is_loopback(first) else "which is not an IPv4 address"
            raise UsageError(
                f"host {self._names[0]} is reached at {first} from here, {what}; name it by its address in their "
                "network, or give that with --master-addr"
            )
        return first


class _Said:
    """Standard error of a client and its host: kept for errors, and shown once the worker is known."""

    def __init__(self, name: str, stream: IO[bytes]) -> None:
        self.is_heard = False
        self._name, self._stream = name, stream
        self._lines: deque[str] = deque(maxlen=20)
        self._thread = threading.Thread(target=self._read, daemon=True, name=f"paceline-host-{name}")
        self._thread.start()

    def last(self) -> str:
        return next((line for line in reversed(self._lines) if line), "")

    def wait(self) -> None:
        self._thread.join(STOP_S)

    def _read(self) -> None:
        with self._stream as stream:
            for data in stream:
                line = plain_text(data.decode(errors="replace").strip())
                self._lines.append(line)
                if self.is_heard:
                    print(f"{self._name}: {line}", file=sys.stderr, flush=True)


def _read_answer(fd: int, token: str) -> Facts:
    """The worker's facts, after whatever a login prints; OSError if the other end is gone before.

    Read byte by byte, since what follows the line belongs to the pipe.
    """
    deadline = time.monotonic() + START_S
    line = b""
    for _ in range(MOST_NOISE_BYTES):
        if not select.select([fd], [], [], max(deadline - time.monotonic(), 0))[0]:
            raise TimeoutError(f"did not answer within {START_S:g} s")
        letter = os.read(fd, 1)
        if not letter:
            raise ConnectionResetError
        if letter != b"\n":
            line += letter
            continue
        words = line.decode(errors="replace").strip()
        if words.startswith(f"{MARK} {token} "):
            try:
                return msgspec.json.decode(words.removeprefix(f"{MARK} {token} "), type=Facts)
            except (msgspec.DecodeError, RecursionError):
                raise MessageError("does not answer as a worker does; is paceline the same there?") from None
        line = b""
    raise TimeoutError("says more than a login should before its worker is heard")


def _carried_variables() -> dict[str, str]:
    """Variables of this process that decide what a worker finds, and by which interface."""
    carried = {key: os.environ[key] for key in ("GLOO_SOCKET_IFNAME",) if os.environ.get(key)}
    places = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return {**carried, **({"PYTHONPATH": os.pathsep.join(places)} if places else {})}


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
