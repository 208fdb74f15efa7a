"""Build the network of an emulated cluster: namespaces, a bridge, and a shaped veth pair per node.

A node's interface shapes the traffic that the node sends. The node's port on the bridge shapes the traffic that the
node receives. Latency and loss are added only to sent traffic, so that the one-way latency between any two nodes is the
requested one. Bridge and links are configured by netlink requests.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from paceline.cluster.cgroups import write_kernel_file
from paceline.cluster.layout import DIRECT, FIRST_NODE_FD, USER, ClusterLayout

MTU = 9000  # jumbo frames, as in clusters: payload is 99 % of the bytes
BURST_S = 0.001  # seconds of traffic that may pass at once after a pause; small, so that short messages are shaped too
QUEUE_S = 0.05  # seconds of traffic that are buffered before packets are dropped, as in a switch
UNSHAPED_BITS_PER_S = 100e9  # rate of a node's link if only its links to particular peers are limited
LEAST_SHARE = 0.01  # fraction of a link that is guaranteed for traffic to all peers without their own rate
DELAYED_PACKETS = 100_000  # limit of delayed packets: more than any emulated link has in flight

ROOT = 0xFFFFFFFF  # the parent of an interface's outermost queueing discipline
_IPV4 = 0x0800  # ETH_P_IP
_DESTINATION_OFFSET = 16  # in bytes, of the destination address in an IPv4 header
_MOST_32_BITS = 2**32 - 1
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_NEW_USER = 0x10000000  # CLONE_NEWUSER


def new_network(entry: str = DIRECT) -> None:
    """Move this process into a new network namespace.

    If `entry` is `USER`, the process also becomes root of a new user namespace.
    """
    if entry != USER:
        _call("unshare", _NEW_NETWORK)
        return
    user, group = os.geteuid(), os.getegid()
    _call("unshare", _NEW_USER | _NEW_NETWORK)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        write_kernel_file(Path("/proc/self", name), text)


def enter_network(descriptor: int) -> None:
    """Move this process into the network namespace that a file descriptor holds."""
    _call("setns", descriptor, _NEW_NETWORK)


def hold_network(number: int) -> None:
    """Hold the current network namespace open as the file descriptor `number`."""
    descriptor = os.open("/proc/self/ns/net", os.O_RDONLY)
    os.dup2(descriptor, number, inheritable=False)
    os.close(descriptor)


def _call(name: str, *arguments: int) -> None:
    """Call a C library function that Python 3.11 does not provide. Raise OSError if it fails."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


class Request(NamedTuple):
    """A call of pyroute2's `IPRoute` for one interface; rates are in bytes per second."""

    method: str
    command: str
    device: str
    arguments: dict[str, Any]


def send(requests: Iterable[Request]) -> None:
    """Send requests to the network namespace of this process.

    Raises OSError if a request is refused; the message names the request and the reason.
    """
    from pyroute2 import IPRoute, NetlinkError

    _complete_tbf()
    with IPRoute(ext_ack=True) as route:
        for method, command, device, arguments in requests:
            is_new = (method, command) == ("link", "add")
            interfaces: dict[str, Any] = {"ifname": device} if is_new else {"index": socket.if_nametoindex(device)}
            if "master" in arguments:
                interfaces["master"] = socket.if_nametoindex(arguments["master"])
            try:
                getattr(route, method)(command, **{**arguments, **interfaces})
            except NetlinkError as error:
                kind = f"{arguments['kind']} " if "kind" in arguments else ""
                raise OSError(f"{error.args[1]} in {method} {command} {kind}on {device}") from None


def _complete_tbf() -> None:
    """Extend pyroute2's tbf requests, so that they can set rates above 34 Gbit/s and exact burst sizes."""
    from pyroute2.netlink.rtnl.tcmsg import sched_tbf

    more = (("TCA_TBF_RATE64", "uint64"), ("TCA_TBF_PRATE64", "uint64"), ("TCA_TBF_BURST", "uint32"))
    sched_tbf.options.nla_map = (*sched_tbf.options.nla_map[:4], *more)

    def options(request: dict[str, Any]) -> dict[str, Any]:
        settings = sched_tbf.get_rate_parameters(request)
        settings["rate"] = min(request["rate"], _MOST_32_BITS)
        attributes = [["TCA_TBF_PARMS", settings], ["TCA_TBF_RTAB", True], ["TCA_TBF_BURST", request["burst"]]]
        if request["rate"] > _MOST_32_BITS:
            attributes.append(["TCA_TBF_RATE64", request["rate"]])
        return {"attrs": attributes}

    sched_tbf.get_parameters = options


def bridge_requests(layout: ClusterLayout) -> list[Request]:
    """Return the requests that create the bridge and a veth pair for every node.

    They must be sent in the bridge's namespace, by a process that holds the nodes' namespaces as file descriptors.
    """
    settings = {"br_forward_delay": 0, "br_stp_state": 0, "br_mcast_snooping": 0}
    requests = [Request("link", "add", layout.bridge, {"kind": "bridge", "mtu": MTU, **settings})]
    for index in range(len(layout.nodes)):
        peer = {"ifname": layout.interface(index), "mtu": MTU, "net_ns_fd": FIRST_NODE_FD + index}
        requests += [
            Request("link", "add", _port(index), {"kind": "veth", "mtu": MTU, "peer": peer}),
            Request("link", "set", _port(index), {"master": layout.bridge, "state": "up"}),
        ]
    return [*requests, _up(layout.bridge), _up("lo")]


def node_requests(layout: ClusterLayout, index: int) -> list[Request]:
    """Return the requests that configure a node's network, to be sent in the node's namespace."""
    device = layout.interface(index)
    address = {"address": layout.address(index), "prefixlen": 24}
    return [_up("lo"), Request("addr", "add", device, address), _up(device)]


def _up(device: str) -> Request:
    return Request("link", "set", device, {"state": "up"})


def _port(index: int) -> str:
    """Return the name of a node's port on the bridge."""
    return f"port-{index}"


def sending_requests(layout: ClusterLayout, index: int) -> list[Request]:
    """Return the requests that shape a node's outgoing traffic, to be sent in the node's namespace."""
    node, device = layout.nodes[index], layout.interface(index)
    requests: list[Request] = []
    parent: int | str = ROOT
    if node.latency_s or node.loss_fraction:
        netem = {"delay": round(1e6 * (node.latency_s or 0)), "loss": 100 * (node.loss_fraction or 0)}
        requests.append(_queue(device, ROOT, "1:", kind="netem", limit=DELAYED_PACKETS, **netem))
        parent = "1:1"
    if node.peers_bits_per_s:
        return requests + _classes_by_peer(layout, index, parent)
    if node.bits_per_s:
        requests.append(_tbf(device, parent, node.bits_per_s))
    return requests


def receiving_requests(layout: ClusterLayout, index: int) -> list[Request]:
    """Return the requests that shape a node's incoming traffic, to be sent in the bridge's namespace."""
    bits_per_s = layout.nodes[index].bits_per_s
    return [_tbf(_port(index), ROOT, bits_per_s)] if bits_per_s else []


def _queue(device: str, parent: int | str, handle: str, **arguments: Any) -> Request:
    return Request("tc", "add", device, {"parent": parent, "handle": handle, **arguments})


def _tbf(device: str, parent: int | str, bits_per_s: float) -> Request:
    burst = _burst_bytes(bits_per_s)
    limit = burst + int(bits_per_s * QUEUE_S / 8)
    return _queue(device, parent, "2:", kind="tbf", rate=_bytes_per_s(bits_per_s), burst=burst, limit=limit)


def _classes_by_peer(layout: ClusterLayout, index: int, parent: int | str) -> list[Request]:
    """Return the requests that limit a node's link and, within it, the traffic to each peer that has its own rate.

    The whole link is a traffic class. It has a child class for each such peer, and one for all other traffic.
    """
    node, device = layout.nodes[index], layout.interface(index)
    whole = node.bits_per_s or UNSHAPED_BITS_PER_S
    ceilings = {peer: min(rate, whole) for peer, rate in sorted(node.peers_bits_per_s.items())}
    # The guaranteed rates must not add up to more than the link, or the classes would exceed it together.
    scale = min(1.0, (1 - LEAST_SHARE) * whole / sum(ceilings.values()))
    rest = whole - scale * sum(ceilings.values())
    requests = [
        _queue(device, parent, "2:", kind="htb", default=2),
        _class(device, "2:", "2:1", whole, whole),
        _class(device, "2:1", "2:2", rest, whole),
    ]
    for peer, ceiling in ceilings.items():
        handle = f"2:{16 + peer:x}"
        key = f"{int(ipaddress.IPv4Address(layout.address(peer))):#x}/0xffffffff+{_DESTINATION_OFFSET}"
        match = {"kind": "u32", "parent": "2:", "protocol": _IPV4, "prio": 1, "target": handle, "keys": [key]}
        requests += [
            _class(device, "2:1", handle, scale * ceiling, ceiling),
            Request("tc", "add-filter", device, match),
        ]
    return requests


def _class(device: str, parent: str, handle: str, bits_per_s: float, ceiling: float) -> Request:
    rates = {"rate": _bytes_per_s(bits_per_s), "ceil": _bytes_per_s(ceiling), "quantum": 2 * MTU}
    bursts = {"burst": _burst_bytes(bits_per_s), "cburst": _burst_bytes(ceiling)}
    return Request("tc", "add-class", device, {"kind": "htb", "parent": parent, "handle": handle, **rates, **bursts})


def _burst_bytes(bits_per_s: float) -> int:
    """Return the burst size of a shaper in bytes: at least one frame, since otherwise no frame could pass."""
    return max(int(bits_per_s * BURST_S / 8), MTU + 100)


def _bytes_per_s(bits_per_s: float) -> int:
    return max(round(bits_per_s) // 8, 1)
