"""One command that starts workers on hosts over ssh: hosts are emulated nodes, each with an ssh server of its own.

The command itself runs on a third node, since nobody outside can reach them. Keys are made for the test alone.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

import node_jobs
from clusters import need
from helpers import wait_until_gone
from paceline.cluster import Cluster, open_cluster

pytestmark = pytest.mark.slow

PORT = 2222
SERVER = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
SEPARATION = Path("/run/sshd")  # an empty folder that a server of root's insists on
COMMANDER = 2


@dataclass
class Site:
    """Two hosts that can be reached over ssh, and a node to do it from."""

    cluster: Cluster
    folder: Path
    servers: list[subprocess.Popen[bytes]]

    @property
    def options(self) -> list[str]:
        key = f"-i {self.folder}/key -o IdentitiesOnly=yes"
        trust = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
        names = ",".join(node.address for node in self.cluster.nodes[:2])
        return ["--hosts", names, "--ssh", f"ssh -F none -p {PORT} {key} {trust}"]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.cluster.command(COMMANDER, [sys.executable, "-m", "paceline", *arguments]),
            cwd=self.folder,
            env=node_jobs.environment_for_workers(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def workers(self) -> list[int]:
        """Worker processes below the ssh servers."""
        found = []
        for server in self.servers:
            for process in psutil.Process(server.pid).children(recursive=True):
                try:
                    if process.cmdline()[1:] == ["-m", "paceline.launch.remote_worker"]:
                        found.append(process.pid)
                except psutil.NoSuchProcess:
                    continue
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if SERVER is None or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        pytest.skip("OpenSSH's client and server (openssh-server) are not installed")
    is_ours = os.getuid() == 0 and not SEPARATION.is_dir()
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("key", "host-key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    with ExitStack() as stack:
        if is_ours:
            SEPARATION.mkdir(mode=0o755)
            stack.callback(SEPARATION.rmdir)
        cluster = stack.enter_context(open_cluster(need(nodes=3)))
        servers = [stack.enter_context(ssh_server(cluster, index, folder)) for index in range(2)]
        yield Site(cluster, folder, servers)


@contextmanager
def ssh_server(cluster: Cluster, index: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server on a node that does not see where runs are stored, as another host would not."""
    (folder / "runs").mkdir(exist_ok=True)
    settings = {
        "Port": PORT,
        "ListenAddress": cluster.nodes[index].address,
        "HostKey": folder / "host-key",
        "AuthorizedKeysFile": folder / "key.pub",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    hide = f'mount -t tmpfs none "{folder}/runs" && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", hide, "sh", str(SERVER), "-D", "-e", "-f", "/dev/null", *options]
    with (folder / f"server-{index}.log").open("wb") as log:
        server = subprocess.Popen(cluster.command(index, command), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while "Server listening" not in (folder / f"server-{index}.log").read_text():
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.skip(f"no ssh server on a node: {(folder / f'server-{index}.log').read_text().strip()}")
            time.sleep(0.05)
        yield server
    finally:
        server.terminate()
        server.wait(15)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=150)
    return process.returncode, out, err


def load(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_run_on_two_hosts_is_stored_here(site: Site) -> None:
    words = ["run", "--workers", "4", "--iterations", "4", "--strategy", "ring", "--comm", "auto", "--json", "r.json"]
    code, out, err = finish(site.start(*words, *site.options))
    assert code == 0, out + err
    found = load(site.folder / "r.json")
    assert found["recipe"]["comm"] in ("hierarchical", "torch")
    assert len({worker["parameter_digest"] for worker in found["results"][0]["per_worker"]}) == 1
    # The hosts see none of this folder: everything in it has travelled.
    (run,) = (site.folder / "runs").iterdir()
    assert sorted(path.name for path in (run / "workers").iterdir()) == [f"{rank}.jsonl" for rank in range(4)]
    for rank in range(4):
        lines = [json.loads(line) for line in (run / "workers" / f"{rank}.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines if line["kind"] == "step"] == [0, 1, 2, 3]
    assert (run / "checkpoints" / "final.safetensors").stat().st_size > 100_000
    assert load(run / "summary.json")["status"] == "done"
    assert wait_until_gone(site.workers()) == []


def test_compare_on_two_hosts(site: Site) -> None:
    words = ["compare", "--workers", "2", "--iterations", "3", "--strategies", "none,ring,ddp", "--no-report"]
    code, out, err = finish(site.start(*words, "--json", "s.json", "--out", "studies", *site.options))
    assert code == 0, out + err
    assert [result["label"] for result in load(site.folder / "s.json")["results"]] == ["none", "ring", "ddp"]


def test_studies_on_two_hosts(site: Site) -> None:
    common = ["--iterations", "3", "--no-report", "--out", "more", "--json", "s.json", *site.options]
    code, out, err = finish(site.start("scale", "--workers", "1,2", "--strategies", "ring", *common))
    assert code == 0, out + err
    assert [result["workers"] for result in load(site.folder / "s.json")["results"]] == [1, 2]
    code, out, err = finish(site.start("sweep", "--workers", "2", "--vary", "batch-size=20,40", *common))
    assert code == 0, out + err
    assert [result["point"] for result in load(site.folder / "s.json")["results"]] == [
        {"train.batch_size": 20},
        {"train.batch_size": 40},
    ]


def test_verify_on_two_hosts(site: Site) -> None:
    words = ["verify", "--strategies", "ring", "--workers", "2", "--models", "lenet5"]
    code, out, err = finish(site.start(*words, *site.options))
    assert code == 0, out + err
    assert "1 case meets its guarantee" in out


def wait_for_workers(site: Site, process: subprocess.Popen[str], number: int) -> list[int]:
    """Workers, as soon as they have made a step."""
    assert process.stdout is not None
    for line in process.stdout:
        if "of epoch 2," in line:
            break
    found = site.workers()
    assert len(found) == number, process.stderr.read() if process.poll() is not None and process.stderr else found
    return found


LONG = ["run", "--workers", "2", "--epochs", "1000", "--log-every", "1", "--out", "long"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_command(site: Site, number: signal.Signals) -> None:
    process = site.start(*LONG, *site.options)
    try:
        workers = wait_for_workers(site, process, 2)
        process.send_signal(number)
        assert wait_until_gone(workers) == []
    finally:
        process.kill()
        process.communicate()


def test_workers_end_with_their_connection(site: Site) -> None:
    process = site.start(*LONG, *site.options)
    try:
        workers = wait_for_workers(site, process, 2)
        (client, *_) = [
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if child.name() == "ssh" and site.cluster.nodes[1].address in child.cmdline()
        ]
        client.kill()
        code, _, err = finish(process)
        assert code == 1
        address = site.cluster.nodes[1].address
        assert f"worker 1 died: its process was ended by signal 9 (SIGKILL) on host {address}" in err
        assert wait_until_gone(workers) == []
    finally:
        process.kill()
        process.communicate()


def test_a_key_that_is_not_known_is_said(site: Site) -> None:
    names, _, client = site.options[1:]
    wrong = client.replace(f"{site.folder}/key", f"{site.folder}/host-key")
    code, _, err = finish(site.start("run", "--workers", "2", "--hosts", names, "--ssh", wrong))
    assert code == 1
    assert f"no worker could be started on host {site.cluster.nodes[0].address}" in err
    assert "Permission denied" in err
