"""Commands of `ip` and `tc` that build the links: a bridge, a veth pair per node, and shaping in both directions.

A node's interface shapes its outgoing traffic, its port on the bridge the incoming. Latency and loss are added only to
outgoing traffic, so that the one-way latency between any two nodes is the requested one.
"""

from __future__ import annotations

from paceline.cluster.layout import FIRST_NODE_FD, ClusterLayout, NodeLayout

MTU = 9000  # jumbo frames, as in clusters: payload is 99 % of the bytes
BURST_S = 0.001  # traffic that may pass at once after a pause; small, so that short messages are shaped too
QUEUE_S = 0.05  # traffic that is buffered before packets are dropped, as in a switch
UNSHAPED = 100e9  # rate of a link without a limit of its own but with slower peers
LEAST_SHARE = 0.01  # of a link, for traffic to peers without a rate of their own
DELAYED_PACKETS = 100_000  # in flight at once: more than any emulated link holds


def switch_lines(plan: ClusterLayout, keeper: int) -> list[str]:
    """Return the `ip` commands for the namespace of the bridge."""
    lines = [f"link add {plan.bridge} mtu {MTU} type bridge forward_delay 0 stp_state 0 mcast_snooping 0"]
    for index in range(len(plan.nodes)):
        there = f"name {plan.interface(index)} mtu {MTU} netns /proc/{keeper}/fd/{FIRST_NODE_FD + index}"
        lines += [
            f"link add {port(index)} mtu {MTU} type veth peer {there}",
            f"link set {port(index)} master {plan.bridge} up",
        ]
    return [*lines, f"link set {plan.bridge} up", "link set lo up"]


def node_lines(plan: ClusterLayout, index: int) -> list[str]:
    """Return the `ip` commands for the namespace of a node."""
    device = plan.interface(index)
    return ["link set lo up", f"addr add {plan.address(index)}/24 dev {device}", f"link set {device} up"]


def port(index: int) -> str:
    """Return the name of the node's interface on the bridge."""
    return f"port-{index}"


def sending_lines(plan: ClusterLayout, index: int) -> list[str]:
    """Return the `tc` commands inside a node that shape its outgoing traffic."""
    node, device = plan.nodes[index], plan.interface(index)
    lines, parent = [], "root"
    if node.latency_s or node.loss_fraction:
        lines.append(f"qdisc add dev {device} root handle 1: netem limit {DELAYED_PACKETS}{_netem_words(node)}")
        parent = "parent 1:1"
    if node.peers_bits_per_s:
        return lines + _by_peer(plan, index, parent)
    if node.bits_per_s:
        lines.append(f"qdisc add dev {device} {parent} handle 2: {_tbf(node.bits_per_s)}")
    return lines


def receiving_lines(plan: ClusterLayout, index: int) -> list[str]:
    """Return the `tc` commands in the namespace of the bridge that shape a node's incoming traffic."""
    rate = plan.nodes[index].bits_per_s
    return [f"qdisc add dev {port(index)} root handle 2: {_tbf(rate)}"] if rate else []


def _netem_words(node: NodeLayout) -> str:
    delay = f" delay {round(1e6 * node.latency_s)}us" if node.latency_s else ""
    loss = f" loss {100 * node.loss_fraction:.6g}%" if node.loss_fraction else ""
    return delay + loss


def _tbf(rate: float) -> str:
    return f"tbf rate {_bits(rate)} burst {_burst_bytes(rate)} limit {_burst_bytes(rate) + int(rate * QUEUE_S / 8)}"


def _by_peer(plan: ClusterLayout, index: int, parent: str) -> list[str]:
    """Return commands for a class of the whole link, with a child class for every peer with a rate of its own."""
    node, device = plan.nodes[index], plan.interface(index)
    whole = node.bits_per_s or UNSHAPED
    most = {peer: min(rate, whole) for peer, rate in sorted(node.peers_bits_per_s.items())}
    # The guaranteed rates must not add up to more than the link, or the classes would exceed it together.
    scale = min(1.0, (1 - LEAST_SHARE) * whole / sum(most.values()))
    rest = whole - scale * sum(most.values())
    add = f"class add dev {device} parent"
    lines = [
        f"qdisc add dev {device} {parent} handle 2: htb default 2",
        f"{add} 2: classid 2:1 {_htb(whole, whole)}",
        f"{add} 2:1 classid 2:2 {_htb(rest, whole)}",
    ]
    for peer, rate in most.items():
        handle = f"2:{16 + peer:x}"
        target = f"match ip dst {plan.address(peer)}/32"
        lines += [
            f"{add} 2:1 classid {handle} {_htb(scale * rate, rate)}",
            f"filter add dev {device} parent 2: protocol ip prio 1 u32 {target} flowid {handle}",
        ]
    return lines


def _htb(rate: float, most: float) -> str:
    words = f"htb rate {_bits(rate)} ceil {_bits(most)}"
    return f"{words} burst {_burst_bytes(rate)} cburst {_burst_bytes(most)} quantum {2 * MTU}"


def _burst_bytes(rate: float) -> int:
    """Return the burst size; it holds at least one frame, or nothing would pass."""
    return max(int(rate * BURST_S / 8), MTU + 100)


def _bits(rate: float) -> str:
    return f"{max(round(rate), 8)}bit"
