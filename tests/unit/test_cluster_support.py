"""Hosts that lack something: what is said of them, and where CPU shares are looked for."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from command import run_command
from paceline.cli.cluster import load_warning, overcommit_warning
from paceline.cluster import opening
from paceline.cluster.cgroups import find_controllers
from paceline.cluster.layout import USER, ClusterLayout, Controller, NodeLayout
from paceline.cluster.support import Host, check_host
from paceline.errors import UsageError
from paceline.recipe import ClusterConfig

WHOLE = Host(
    entry=USER,
    shapers=frozenset({"tbf", "htb", "netem"}),
    controllers=(Controller("cpu", 2, "/c"), Controller("memory", 2, "/c")),
)
ASKED = {"nodes": 2, "cpus": 0.5, "bandwidth": "1gbit", "latency": "1ms", "memory": "1g", "links": ("0-1:1mbit",)}


def refused(host: Host, **asked: object) -> str:
    with pytest.raises(UsageError) as caught:
        check_host(host, ClusterConfig(nodes=2, **asked))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_host_with_everything() -> None:
    check_host(WHOLE, ClusterConfig(**ASKED))


def test_a_host_without_namespaces() -> None:
    said = refused(Host(no_network="network namespaces or links cannot be created (unshare: Operation not permitted)"))
    assert "emulated nodes are not possible here: network namespaces or links cannot be created (unshare: Op" in said
    assert "everything without emulated nodes still works, on real hosts too (--hosts)" in said


def test_a_host_without_shapers() -> None:
    host = dataclasses.replace(WHOLE, shapers=frozenset())
    said = refused(host, bandwidth="1gbit")
    assert "bandwidth cannot be set: links are shaped with the kernel's tbf, htb and netem, and none works here" in said
    assert "nodes, CPU shares and memory limits still work" in said
    check_host(host, ClusterConfig(nodes=2, cpus=0.5))


@pytest.mark.parametrize("asked", [{"latency": "1ms"}, {"loss": "0.1%"}])
def test_a_kernel_without_netem(asked: dict[str, str]) -> None:
    host = dataclasses.replace(WHOLE, shapers=frozenset({"tbf", "htb"}))
    said = refused(host, **asked)
    assert "latency and loss cannot be set: this kernel has no netem (module sch_netem)" in said
    assert "nodes, bandwidth, links, CPU shares and memory limits still work" in said
    check_host(host, ClusterConfig(nodes=2, bandwidth="1gbit", links=("0-1:1mbit",)))


def test_a_kernel_without_htb() -> None:
    said = refused(dataclasses.replace(WHOLE, shapers=frozenset({"tbf"})), links=("0-1:1mbit",))
    assert "links cannot be set: this kernel has no htb" in said


def test_a_host_without_cpu_shares() -> None:
    host = dataclasses.replace(WHOLE, controllers=(), no_controller={"cpu": "/x is not writable"})
    for asked in ({"cpus": 0.5}, {"slow": ("1:0.5",)}):
        said = refused(host, **asked)
        assert "CPU shares (cpus, slow) need a writable cgroup, but /x is not writable" in said
        assert "add --without-cpu-shares, or leave out cpus and slow: nodes, addresses and shaped links work" in said
    check_host(host, ClusterConfig(nodes=2, bandwidth="1gbit"))


def test_a_host_without_memory_limits() -> None:
    said = refused(dataclasses.replace(WHOLE, controllers=WHOLE.controllers[:1]), memory="1g")
    assert "memory limits (memory) need a writable cgroup, but this machine has none; leave out memory" in said


@pytest.mark.parametrize("command", ["up", "check"])
def test_a_command_says_it_in_one_sentence(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "examine", lambda: dataclasses.replace(WHOLE, shapers=frozenset({"tbf"})))
    said = run_command("cluster", command, "nodes=2,latency=1ms", width=300)
    assert said.code == 2
    assert said.err.startswith("paceline: latency and loss cannot be set: this kernel has no netem")
    assert len(said.err.splitlines()) == 1


def test_a_command_offers_to_go_on_without_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "examine", lambda: dataclasses.replace(WHOLE, controllers=()))
    said = run_command("cluster", "up", "nodes=2,cpus=0.5", width=300)
    assert said.code == 2
    assert "--without-cpu-shares" in said.err


def test_shares_beyond_the_machine_are_said() -> None:
    layout = ClusterLayout("lab", (NodeLayout(cpus=1.5), NodeLayout(cpus=1), NodeLayout()))
    assert "shares add up to 2.5 cores, but this machine has 2" in overcommit_warning(layout, num_cores=2)
    assert overcommit_warning(layout, num_cores=3) == ""


def test_a_busy_machine_is_said() -> None:
    assert "busy (load 3.0 on 2 cores)" in load_warning(load=3.0, num_cores=2)
    assert load_warning(load=0.3, num_cores=2) == ""


def process(folder: Path, mounts: str, cgroup: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "mountinfo").write_text(mounts)
    (folder / "cgroup").write_text(cgroup)
    return folder


def group(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_shares_of_version_1_are_below_our_own_cgroup(tmp_path: Path) -> None:
    cpu = group(tmp_path / "cpu,cpuacct/us", cpu__cfs_quota_us="-1")
    lines = [
        f"30 25 0:26 / {tmp_path}/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct",
        f"31 25 0:27 / {tmp_path}/memory rw - cgroup cgroup rw,memory",
        f"32 25 0:28 / {tmp_path}/unified rw - cgroup2 cgroup2 rw",
    ]
    group(tmp_path / "memory", memory__limit_in_bytes="1")
    group(tmp_path / "unified", cgroup__controllers="hugetlb", cgroup__subtree_control="")
    found, missing = find_controllers(
        process(tmp_path / "p", "\n".join(lines), "4:cpu,cpuacct:/us\n3:memory:/\n0::/\n")
    )
    assert found == [Controller("cpu", 1, str(cpu)), Controller("memory", 1, str(tmp_path / "memory"))]
    assert missing == {}


def version_2(tmp_path: Path, own: str) -> tuple[list[Controller], dict[str, str]]:
    mounts = f"32 25 0:28 / {tmp_path}/c rw - cgroup2 cgroup2 rw\n"
    return find_controllers(process(tmp_path / "p", mounts, f"0::{own}\n"))


def test_shares_of_version_2_are_in_the_nearest_cgroup_that_hands_them_down(tmp_path: Path) -> None:
    group(tmp_path / "c", cgroup__controllers="cpu memory", cgroup__subtree_control="cpu memory")
    near = group(
        tmp_path / "c/user",
        cgroup__controllers="cpu memory",
        cgroup__subtree_control="cpu memory",
        cgroup__type="domain",
    )
    group(
        tmp_path / "c/user/session", cgroup__controllers="cpu memory", cgroup__subtree_control="", cgroup__type="domain"
    )
    found, missing = version_2(tmp_path, "/user/session")
    assert found == [Controller("cpu", 2, str(near)), Controller("memory", 2, str(near))]
    assert missing == {}


def test_the_machines_own_cgroup_can_be_asked_to_hand_down(tmp_path: Path) -> None:
    top = group(tmp_path / "c", cgroup__controllers="cpu io", cgroup__subtree_control="")
    found, missing = version_2(tmp_path, "/")
    assert found == [Controller("cpu", 2, str(top))]
    assert missing == {"memory": f"the kernel offers no controller memory below {top}"}


def test_a_containers_cgroup_that_hands_nothing_down(tmp_path: Path) -> None:
    group(tmp_path / "c", cgroup__controllers="cpu memory", cgroup__subtree_control="", cgroup__type="domain")
    found, missing = version_2(tmp_path, "/")
    assert found == []
    assert "delegates the controller cpu" in missing["cpu"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_somebody_else(tmp_path: Path) -> None:
    folder = group(tmp_path / "c", cgroup__controllers="cpu", cgroup__subtree_control="cpu", cgroup__type="domain")
    folder.chmod(0o500)
    assert version_2(tmp_path, "/")[0] == []
    folder.chmod(0o700)


def test_a_host_without_cgroups(tmp_path: Path) -> None:
    found, missing = find_controllers(process(tmp_path / "p", "22 1 8:1 / / rw - ext4 /dev/x rw\n", "0::/\n"))
    assert found == []
    assert missing["cpu"] == "no cgroups with the controller cpu are mounted"
    assert "cgroups cannot be read" in find_controllers(tmp_path / "nowhere")[1]["cpu"]
