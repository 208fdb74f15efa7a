"""A cluster in numbers, as requests to the kernel, and in the files of cgroups."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster import group_files
from paceline.cluster.cgroups import claim_groups, labelled_groups, limit_files, limit_groups, weight_files
from paceline.cluster.group_files import members, name_of_cluster, read_group_file, write_group_file
from paceline.cluster.layout import DIRECT, USER, ClusterLayout, Controller, NodeLayout
from paceline.cluster.network import (
    MTU,
    ROOT,
    Request,
    bridge_requests,
    node_requests,
    receiving_requests,
    sending_requests,
)
from paceline.cluster.opening import Cluster, make_layout
from paceline.cluster.support import Host
from paceline.errors import UsageError
from paceline.recipe import ClusterConfig, parse_cluster

EVERYTHING = Host(
    entry=DIRECT,
    shapers=frozenset({"tbf", "htb", "netem"}),
    controllers=(Controller("cpu", 1, "/groups/cpu"), Controller("memory", 1, "/groups/memory")),
    num_cores=2,
)
WORDS = "nodes=4,cpus=0.5,bandwidth=1gbit,latency=1ms,loss=0.1%,memory=2g,links=0-2:100mbit,slow=3:0.5"


def layout_of(
    words: str, *, name: str = "lab", without_cpu_shares: bool = False, host: Host = EVERYTHING
) -> ClusterLayout:
    changes = {key.removeprefix("cluster."): value for key, value in parse_cluster(words).items()}
    config = ClusterConfig(**changes)
    return make_layout(config, name=name, without_cpu_shares=without_cpu_shares, host=host, parent=1)


def test_a_layout_survives_its_line_of_text() -> None:
    layout = layout_of(WORDS)
    assert ClusterLayout.from_json(layout.to_json()) == layout
    assert "\n" not in layout.to_json()


def test_what_was_asked_for_is_kept_in_its_own_words() -> None:
    assert layout_of(WORDS).asked == WORDS


def test_numbers_of_every_node() -> None:
    nodes = layout_of(WORDS).nodes
    assert [node.cpus for node in nodes] == [0.5, 0.5, 0.5, 0.25]
    assert {node.memory_bytes for node in nodes} == {2 << 30}
    assert [node.peers_bits_per_s for node in nodes] == [{2: 1e8}, {}, {0: 1e8}, {}]


@pytest.mark.parametrize(("num_cores", "cpus"), [(2, 0.25), (64, 0.5)])
def test_a_slow_node_without_shares_has_a_part_of_a_fair_one(num_cores: int, cpus: float) -> None:
    layout = layout_of("nodes=4,slow=3:0.5", host=dataclasses.replace(EVERYTHING, num_cores=num_cores))
    assert [node.cpus for node in layout.nodes] == [None, None, None, cpus]
    assert [one.name for one in layout.controllers] == ["cpu"]


def test_without_cpu_shares() -> None:
    layout = layout_of(WORDS, without_cpu_shares=True)
    assert [node.cpus for node in layout.nodes] == [None] * 4
    assert [one.name for one in layout.controllers] == ["memory"]
    assert "cpus" not in layout.asked


@pytest.mark.parametrize("name", ["Lab", "far-away", "ninechars", "a b"])
def test_names_must_fit_an_interface(name: str) -> None:
    with pytest.raises(UsageError, match="1 to 8 lowercase letters and digits"):
        layout_of("nodes=2", name=name)
    assert len(layout_of("nodes=2", name="eight888").interface(249)) <= 15


@pytest.mark.parametrize("nodes", [0, 251])
def test_a_cluster_has_room_for_so_many_nodes(nodes: int) -> None:
    with pytest.raises(UsageError, match="1 to 250 nodes"):
        make_layout(ClusterConfig(nodes=nodes), name="", without_cpu_shares=False, host=EVERYTHING, parent=1)


def test_names_are_made_up_where_none_is_given() -> None:
    assert layout_of("nodes=2", name="").name != layout_of("nodes=2", name="").name


def test_the_rate_between_two_nodes_is_that_of_the_narrowest_place() -> None:
    layout = layout_of("nodes=3,bandwidth=1gbit,links=0-2:100mbit,links=0-1:10gbit")
    assert layout.expected_bits_per_s(0, 2) == layout.expected_bits_per_s(2, 0) == 1e8
    assert layout.expected_bits_per_s(0, 1) == layout.expected_bits_per_s(1, 2) == 1e9
    assert layout_of("nodes=3,links=0-2:100mbit").expected_bits_per_s(0, 1) is None


def test_nodes_meet_at_a_bridge() -> None:
    layout = layout_of("nodes=2")
    requests = bridge_requests(layout)
    assert requests[0][:3] == ("link", "add", "pl-lab-br")
    assert requests[0].arguments["kind"] == "bridge"
    peer = {"ifname": "pl-lab-1", "mtu": MTU, "net_ns_fd": 101}
    assert Request("link", "add", "port-1", {"kind": "veth", "mtu": MTU, "peer": peer}) in requests
    assert Request("link", "set", "port-1", {"master": "pl-lab-br", "state": "up"}) in requests
    assert node_requests(layout, 1) == [
        Request("link", "set", "lo", {"state": "up"}),
        Request("addr", "add", "pl-lab-1", {"address": layout.address(1), "prefixlen": 24}),
        Request("link", "set", "pl-lab-1", {"state": "up"}),
    ]


def test_a_link_without_a_rate_is_left_alone() -> None:
    layout = layout_of("nodes=2")
    assert sending_requests(layout, 0) == receiving_requests(layout, 0) == []


def test_both_directions_of_a_link_are_shaped() -> None:
    layout = layout_of("nodes=2,bandwidth=1gbit")
    rate = {"rate": 125_000_000, "burst": 125_000, "limit": 6_375_000}
    shaper = {"parent": ROOT, "handle": "2:", "kind": "tbf", **rate}
    assert sending_requests(layout, 1) == [Request("tc", "add", "pl-lab-1", shaper)]
    assert receiving_requests(layout, 1) == [Request("tc", "add", "port-1", shaper)]


def test_a_slow_link_has_room_for_a_frame() -> None:
    assert sending_requests(layout_of("nodes=2,bandwidth=1mbit"), 0)[0].arguments["burst"] == MTU + 100


def test_latency_and_loss_are_added_where_a_node_sends() -> None:
    layout = layout_of("nodes=2,latency=1.5ms,loss=0.1%,bandwidth=100mbit")
    delay, shape = (request.arguments for request in sending_requests(layout, 0))
    netem = {"kind": "netem", "limit": 100_000, "delay": 1500, "loss": pytest.approx(0.1)}
    assert delay == {"parent": ROOT, "handle": "1:", **netem}
    assert (shape["parent"], shape["kind"], shape["rate"]) == ("1:1", "tbf", 12_500_000)
    assert [request.arguments["kind"] for request in receiving_requests(layout, 0)] == ["tbf"]


def test_a_slow_link_is_a_class_by_destination_at_both_ends() -> None:
    layout = layout_of("nodes=3,bandwidth=1gbit,links=0-2:100mbit")
    for index, peer in ((0, 2), (2, 0)):
        requests = [request.arguments for request in sending_requests(layout, index)]
        rates = {one["handle"]: (one["rate"], one["ceil"]) for one in requests if "ceil" in one}
        assert rates[f"2:{16 + peer:x}"] == (12_500_000, 12_500_000)
        assert rates["2:2"] == (112_500_000, 125_000_000)
        (match,) = (one for one in requests if one["kind"] == "u32")
        assert match["target"] == f"2:{16 + peer:x}"
        assert match["keys"] == [
            f"0x{bytes(map(int, layout.address(peer).split('.'))).hex().lstrip('0')}/0xffffffff+16"
        ]
    assert sending_requests(layout, 1)[0].arguments["kind"] == "tbf"
    assert all(receiving_requests(layout, index)[0].arguments["kind"] == "tbf" for index in range(3))


def test_classes_are_promised_no_more_than_the_link_has() -> None:
    layout = layout_of("nodes=4,bandwidth=100mbit,links=0-1:80mbit,links=0-2:80mbit,links=0-3:1gbit")
    classes = [one.arguments for one in sending_requests(layout, 0) if one.arguments["parent"] == "2:1"]
    assert 8 * sum(one["rate"] for one in classes) == pytest.approx(1e8)
    assert [8 * one["ceil"] for one in classes] == [1e8, 8e7, 8e7, 1e8]


def test_the_command_joins_the_groups_and_then_the_network() -> None:
    line = Cluster(layout_of("nodes=2,cpus=0.5,memory=1g"), keeper=77).command(1, ["echo", "hello"])
    joins = "echo $$ > /groups/cpu/paceline-lab/node-1/cgroup.procs && echo $$ > /groups/memory/paceline-lab/node-1"
    assert line[:2] == ["/bin/sh", "-c"]
    assert line[2].startswith(joins)
    assert line[-4:] == ["--net=/proc/77/fd/101", "--", "echo", "hello"]


def test_the_command_without_groups_only_enters() -> None:
    layout = layout_of("nodes=2,cpus=0.5", host=dataclasses.replace(EVERYTHING, entry=USER))
    line = Cluster(layout, keeper=77).command(0, ["id"], with_shares=False)
    assert line[1:] == ["--user=/proc/77/ns/user", "--preserve-credentials", "--net=/proc/77/fd/100", "--", "id"]
    with pytest.raises(UsageError, match="node 2 is not one of 0 to 1"):
        Cluster(layout, keeper=77).command(2, ["id"])


@pytest.mark.parametrize(
    ("version", "node", "files"),
    [
        (1, NodeLayout(cpus=0.5), {"cpu.cfs_period_us": "20000", "cpu.cfs_quota_us": "10000"}),
        (2, NodeLayout(cpus=0.5), {"cpu.max": "10000 20000"}),
        (2, NodeLayout(cpus=0.01), {"cpu.max": "1000 100001"}),
        (2, NodeLayout(cpus=3), {"cpu.max": "60000 20000"}),
        (2, NodeLayout(), {}),
    ],
)
def test_files_of_a_cpu_share(version: int, node: NodeLayout, files: dict[str, str]) -> None:
    assert dict(limit_files(Controller("cpu", version, "/"), node)) == files


def test_every_node_counts_towards_others_as_a_process_would() -> None:
    layout = layout_of("nodes=3,cpus=1.5,slow=2:0.5")
    assert dict(weight_files(Controller("cpu", 1, "/"), layout)) == {"cpu.shares": str(1024 * (2 + 2 + 1))}
    assert dict(weight_files(Controller("cpu", 2, "/"), layout)) == {"cpu.weight": "500"}
    assert dict(weight_files(Controller("memory", 2, "/"), layout)) == {}


@pytest.mark.parametrize(("version", "name"), [(1, "memory.limit_in_bytes"), (2, "memory.max")])
def test_files_of_a_memory_limit(version: int, name: str) -> None:
    assert dict(limit_files(Controller("memory", version, "/"), NodeLayout(memory_bytes=4096))) == {name: "4096"}


def groups_of_version_2(folder: Path) -> ClusterLayout:
    (folder / "cgroup.subtree_control").write_text("cpu memory")
    both = tuple(Controller(name, 2, str(folder)) for name in ("cpu", "memory"))
    return layout_of("nodes=2,cpus=0.5,memory=1g,slow=1:0.5", host=dataclasses.replace(EVERYTHING, controllers=both))


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat ordinary folders as cgroups, and create their files when they are written."""
    monkeypatch.setattr(group_files, "is_in_cgroupfs", lambda _: True)
    own = os.open
    monkeypatch.setattr(
        os, "open", lambda path, flags, *mode: own(path, flags | (os.O_CREAT if flags & 1 else 0), *mode)
    )


@pytest.mark.usefixtures("anywhere")
def test_both_controllers_of_version_2_share_a_folder(tmp_path: Path) -> None:
    layout = groups_of_version_2(tmp_path)
    claim_groups(layout)
    limit_groups(layout)
    top = tmp_path / "paceline-lab"
    assert layout.group_folders() == [str(top)]
    assert layout.node_folders(1) == [str(top / "node-1")]
    assert (top / "cpu.weight").read_text() == "200"
    assert (top / "node-0" / "cpu.max").read_text() == "10000 20000"
    assert (top / "node-1" / "cpu.max").read_text() == "5000 20000"
    assert (top / "node-1" / "memory.max").read_text() == str(1 << 30)
    assert (top / "cgroup.subtree_control").read_text() in ("+cpu", "+memory")  # a kernel would add them up
    assert (tmp_path / "cgroup.subtree_control").read_text() == "cpu memory"


@pytest.mark.usefixtures("anywhere")
def test_a_folder_that_is_there_already_is_left_alone(tmp_path: Path) -> None:
    layout = groups_of_version_2(tmp_path)
    (tmp_path / "paceline-lab").mkdir()
    with pytest.raises(OSError, match="exists already; `paceline cluster prune`"):
        claim_groups(layout)
    assert (tmp_path / "paceline-lab").exists()


def make_groups(folder: Path, *names: str, procs: str = "") -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "cgroup.procs").write_text(procs)


@pytest.mark.usefixtures("anywhere")
def test_leftovers_are_found_by_their_exact_form(tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    make_groups(groups, "paceline-lab", "deep/below/paceline-abc", "packer-1", "deep/my-paceline-x")
    make_groups(groups, "paceline-lab/node-0", procs="12\n13\n")
    # Folders of others: a systemd unit, an odd name, processes at the top, folders that are not those of nodes.
    make_groups(groups, "paceline-nightly.service", "paceline-", "paceline-toolongname", "paceline-Lab", procs="1\n")
    make_groups(groups, "paceline-busy", procs="14\n")
    make_groups(groups, "paceline-unit", "paceline-unit/app.service", "paceline-odd", "paceline-odd/node-00")
    make_groups(groups, "paceline-deep", "paceline-deep/node-0", "paceline-deep/node-0/more")
    (groups / "paceline-link").symlink_to(groups / "paceline-lab")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        f"31 23 0:27 / {tmp_path}/groups rw,relatime - cgroup2 cgroup2 rw\n22 1 8:1 / / rw - ext4 /dev/x rw\n"
    )
    found = labelled_groups(mounts)
    assert found == {
        "lab": [tmp_path / "groups/paceline-lab"],
        "abc": [tmp_path / "groups/deep/below/paceline-abc"],
    }
    assert members(found["lab"][0]) == {12, 13}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make folders of another user")
def test_groups_of_another_user_are_not_ours(tmp_path: Path) -> None:
    make_groups(tmp_path, "paceline-lab", "paceline-lab/node-0")
    assert name_of_cluster(tmp_path / "paceline-lab") == "lab"
    os.chown(tmp_path / "paceline-lab", 65534, 65534)
    assert name_of_cluster(tmp_path / "paceline-lab") == ""


def test_files_outside_of_cgroups_are_neither_read_nor_written(tmp_path: Path) -> None:
    make_groups(tmp_path, "paceline-lab", procs="12\n")
    file = tmp_path / "paceline-lab" / "cgroup.procs"
    with pytest.raises(OSError, match=r"not in a file system of cgroups \(writing '13'\)"):
        write_group_file(file, "13")
    with pytest.raises(OSError, match="not in a file system of cgroups"):
        read_group_file(file)
    assert file.read_text() == "12\n"
    assert name_of_cluster(tmp_path / "paceline-lab") == ""


@pytest.mark.usefixtures("anywhere")
def test_links_are_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "precious", tmp_path / "cgroup.procs"
    target.write_text("precious")
    link.symlink_to(target)
    for action in (lambda: write_group_file(link, "1"), lambda: read_group_file(link)):
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            action()
    assert target.read_text() == "precious"


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "../../etc"},
        {"name": "lab;reboot"},
        {"name": ""},
        {"subnet": "10.77.0; reboot"},
        {"entry": "sudo"},
        {"controllers": (Controller("cpu", 1, "relative"),)},
        {"controllers": (Controller("cpu", 1, "/sys/fs/cgroup/../../../etc"),)},
        {"nodes": (NodeLayout(),) * 251},
    ],
)
def test_the_settings_of_a_strange_keeper_are_refused(changes: dict[str, Any]) -> None:
    layout = layout_of("nodes=2")
    with pytest.raises(ValueError, match="not the settings of a cluster"):
        dataclasses.replace(layout, **changes)
    values = {**dataclasses.asdict(layout), **{key: changes[key] for key in changes}}
    text = json.dumps(values, default=dataclasses.asdict)
    with pytest.raises(ValueError, match="not the settings of a cluster"):
        ClusterLayout.from_json(text)
