"""Launcher for --hosts: starts workers on several hosts over ssh."""

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
from paceline.launch.messages import Enter, MessageChannel, MessageError, MessagePackChannel, printable
from paceline.launch.pool import ProcessPool
from paceline.launch.process_host import ProcessHost, WorkerProcess, WorkerSlot, spread
from paceline.launch.remote_worker import MARK, difference, own_facts
from paceline.limits import CONNECT_S, START_S, STOP_S, Limits
from paceline.text import plain_text

BATCH = 8  # connections opened at the same time; ssh servers limit simultaneous logins
MAX_LINE_BYTES = 1 << 16  # longer lines of a worker's output are split
MAX_LOGIN_BYTES = 1 << 16  # limit of what a login may print before the worker replies

Facts = dict[str, str]  # versions of a worker's interpreter, and the address of its host


class Ssh(Launcher):
    """Launcher that divides the processes evenly among hosts, and starts each process through its own ssh connection.

    The hosts may include the host that runs the launcher.
    """

    name: ClassVar[str] = "ssh"
    conflicts: ClassVar = {
        "torchrun": "--hosts starts workers on hosts itself and conflicts with torchrun; use one of the two",
        "by-hand": "--hosts starts all hosts from here, --nnodes is for hosts started by hand; use one of the two",
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
                raise UsageError(
                    f"--hosts: {name!r} is not the name of a host; an example: --hosts alpha,beta,user@gamma"
                )
            if names.count(name) > 1:
                raise UsageError(f"--hosts names {name} twice; set the number of processes with --workers instead")
        if not names:
            raise UsageError("--hosts is empty; an example: --hosts alpha,beta,user@gamma")
        if not 0 <= self.request.master_port < 65536:
            raise UsageError(f"--master-port must be from 1 to 65535, not {self.request.master_port}")
        try:
            words = shlex.split(self.request.ssh)
        except ValueError as error:
            raise UsageError(f"--ssh {self.request.ssh!r} cannot be parsed: {error}; check its quotes") from None
        if not words:
            raise UsageError("--ssh is empty; an example: --ssh 'ssh -p 2222'")

    def open(self, num_processes: int) -> ProcessPool:
        return ProcessPool(num_processes, SshHosts(self.request, num_processes))

    def describe(self) -> Place:
        names = self.request.hosts or ()
        return Place(self.name, len(names), f"on {', '.join(names)}")


def ssh_options(limits: Limits) -> list[str]:
    """Return options for ssh: never ask for a password, and detect hosts that stop responding.

    After three unanswered messages, ssh ends.
    """
    options = ["BatchMode=yes", f"ConnectTimeout={CONNECT_S}", f"ServerAliveInterval={limits.host_s}"]
    return ["-T", *(word for option in options for word in ("-o", option))]


def remote_command(request: LaunchRequest, name: str, environment: dict[str, str], limits: Limits) -> list[str]:
    """Return the command to run on this host to start a worker on host `name`."""
    client = shlex.split(request.ssh)
    if os.path.basename(client[0]) == "ssh":
        client += ssh_options(limits)
    assignments = [f"{key}={value}" for key, value in environment.items()]
    remote = ["env", *assignments, request.remote_python or sys.executable, "-m", "paceline.launch.remote_worker"]
    return [*client, name, f"exec {shlex.join(remote)}"]


class SshHosts(ProcessHost):
    """Starts each worker through its own ssh client. A worker ends when its client or the launching process ends."""

    is_forked = False

    def __init__(self, request: LaunchRequest, num_processes: int) -> None:
        assert request.hosts is not None
        self._request, self._names = request, request.hosts
        self._host_of = spread(num_processes, len(request.hosts))
        self._stderr: list[_HostStderr] = []
        self.rendezvous = ("", request.master_port)

    def start(self, environment: dict[str, str]) -> Iterator[WorkerProcess]:
        self._stderr = []
        facts: list[Facts] = []
        forwarded = {**_forwarded_variables(), **environment}
        for first in range(0, len(self._host_of), BATCH):
            batch = []
            for index in range(first, min(first + BATCH, len(self._host_of))):
                process = self._connect(index, forwarded)
                batch.append((index, process.pipe))
                yield process
            facts += [self._handshake(index, pipe) for index, pipe in batch]
        self.rendezvous = (self._address_of_first(facts), self._request.master_port)

    def slot(self, index: int) -> WorkerSlot:
        host = self._host_of[index]
        return WorkerSlot(str(host), index - self._host_of.index(host), "")

    def location(self, index: int) -> str:
        return f"on host {self._name(index)}"

    def hint(self, index: int, code: int) -> str:
        last = self._stderr[index].last()
        how = " (from ssh: a signal ended the worker, or the connection was lost)" if code == 255 else ""
        return f"{how} on host {self._name(index)}{last and f': {last}'}"

    def _name(self, index: int) -> str:
        return self._names[self._host_of[index]]

    def _connect(self, index: int, environment: dict[str, str]) -> WorkerProcess:
        name = self._name(index)
        ours, theirs = socket.socketpair()
        with theirs:
            connection: Connection[Any, Any] = Connection(ours.detach())
            command = remote_command(self._request, name, environment, self.limits)
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
        self._stderr.append(_HostStderr(name, popen.stderr))
        return WorkerProcess(popen, MessagePackChannel(connection, connection), ends_with_pipe=True)

    def _handshake(self, index: int, pipe: MessageChannel) -> Facts:
        """Wait until the worker has started, check its versions, and send it the working directory and sys.path.

        A random token marks the line of the worker's output in which it reports its versions. Returns these versions
        and the address of the worker's host. Raises RunError if the worker does not start, and UsageError if its
        versions differ from those of this host.
        """
        token = secrets.token_hex(32)
        name, stderr = self._name(index), self._stderr[index]
        try:
            os.write(pipe.fileno(), f"{token}\n".encode())
            facts = _read_answer(pipe.fileno(), token)
        except (TimeoutError, MessageError) as error:
            raise RunError(f"host {name} {error}") from None
        except OSError:
            stderr.wait()
            raise RunError(
                f"no worker could be started on host {name}: {stderr.last() or 'it ended without a message'}"
            ) from None
        if differs := difference(own_facts(), facts):
            raise UsageError(f"host {name} must have the same versions as this one, but {printable(differs)}")
        stderr.is_printed = True
        pipe.send(Enter(os.getcwd(), [os.path.abspath(entry) for entry in sys.path if entry]))
        return facts

    def _address_of_first(self, facts: list[Facts]) -> str:
        """Return the address at which the other hosts connect to worker 0.

        This is --master-addr if given, else the address to which the ssh client of worker 0 connected, else the name of
        its host in --hosts. Without --master-addr, raises UsageError if there are several hosts and the address is a
        loopback or IPv6 address.
        """
        if self._request.master_addr:
            return self._request.master_addr
        addresses = [facts[self._host_of.index(host)].get("address", "") for host in sorted(set(self._host_of))]
        first = addresses[0] or self._names[0].rpartition("@")[2]
        if len(addresses) > 1 and (_is_loopback(first) or ":" in first):
            first = printable(first[:100])
            what = "which other hosts cannot reach" if _is_loopback(first) else "which is not an IPv4 address"
            raise UsageError(
                f"host {self._names[0]} reports the address {first}, {what}; set --master-addr to an address that all "
                "hosts can reach, or use it in --hosts"
            )
        return first


class _HostStderr:
    """Thread that reads the standard error of an ssh client, and keeps its last 20 lines for error messages.

    While `is_printed` is true, the thread also prints each new line.
    """

    def __init__(self, name: str, stream: IO[bytes]) -> None:
        self.is_printed = False
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
            while data := stream.readline(MAX_LINE_BYTES):
                line = plain_text(data.decode(errors="replace").strip())
                self._lines.append(line)
                if self.is_printed:
                    print(f"{self._name}: {line}", file=sys.stderr, flush=True)


def _read_answer(fd: int, token: str) -> Facts:
    """Skip what the login prints, and return the versions and address from the line with the token.

    Reads byte by byte, because messages follow the line. Raises ConnectionResetError if the connection closes before
    the line, TimeoutError if the line does not come in time or the login prints too much, and MessageError if the line
    is malformed.
    """
    deadline = time.monotonic() + START_S
    line = b""
    for _ in range(MAX_LOGIN_BYTES):
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
                raise MessageError("sent a malformed reply; check that it has the same version of paceline") from None
        line = b""
    raise TimeoutError(f"printed more than {MAX_LOGIN_BYTES >> 10} KiB at login, before its worker replied")


def _forwarded_variables() -> dict[str, str]:
    """Return the environment variables to set for workers on other hosts: GLOO_SOCKET_IFNAME and PYTHONPATH, if set."""
    forwarded = {key: os.environ[key] for key in ("GLOO_SOCKET_IFNAME",) if os.environ.get(key)}
    places = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return {**forwarded, **({"PYTHONPATH": os.pathsep.join(places)} if places else {})}


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
