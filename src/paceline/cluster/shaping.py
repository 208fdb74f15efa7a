"""Links in the words of `ip` and `tc`: a bridge, a pair of interfaces per node, and what shapes both directions.

A node's interface shapes what the node sends, its port on the bridge what the node receives. Latency and loss are added
once on the way, where a node sends, so that one way from any node to any other takes the latency that was asked for.
"""

from __future__ import annotations

from paceline.cluster.layout import FIRST_NODE_FD, ClusterLayout, NodeLayout

MTU = 9000  # jumbo frames, as clusters use them: payload is 99 % of what travels
BURST_S = 0.001  # what may pass at once after a pause, so that short messages take their time too
QUEUE_S = 0.05  # as much as a switch would buffer before it drops
UNSHAPED = 100e9  # the rate of a link that only some peers are slower on
LEAST_SHARE = 0.01  # of a link, for traffic to peers without a rate of their own
DELAYED_PACKETS = 100_000  # on their way at once: more than any link here holds


def switch_lines(plan: ClusterLayout, keeper: int) -> list[str]:
    """For `ip`, in the namespace of the bridge."""
    lines = [f"link add {plan.bridge} mtu {MTU} type bridge forward_delay 0 stp_state 0 mcast_snooping 0"]
    for index in range(len(plan.nodes)):
        there = f"name {plan.interface(index)} mtu {MTU} netns /proc/{keeper}/fd/{FIRST_NODE_FD + index}"
        lines += [
            f"link add {port(index)} mtu {MTU} type veth peer {there}",
            f"link set {port(index)} master {plan.bridge} up",
        ]
    return [*lines, f"link set {plan.bridge} up", "link set lo up"]


def node_lines(plan: ClusterLayout, index: int) -> list[str]:
    """For `ip`, inside a node."""
    device = plan.interface(index)
    return ["link set lo up", f"addr add {plan.address(index)}/24 dev {device}", f"link set {device} up"]


def port(index: int) -> str:
    """The node's end on the bridge."""
    return f"port-{index}"


def sending_lines(plan: ClusterLayout, index: int) -> list[str]:
    """For `tc`, inside a node: what shapes all that it sends."""
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
    """For `tc`, in the namespace of the bridge: what shapes all that a node receives."""
    rate = plan.nodes[index].bits_per_s
    return [f"qdisc add dev {port(index)} root handle 2: {_tbf(rate)}"] if rate else []


def _netem_words(node: NodeLayout) -> str:
    delay = f" delay {round(1e6 * node.latency_s)}us" if node.latency_s else ""
    loss = f" loss {100 * node.loss_fraction:.6g}%" if node.loss_fraction else ""
    return delay + loss


def _tbf(rate: float) -> str:
    return f"tbf rate {_bits(rate)} burst {_burst_bytes(rate)} limit {_burst_bytes(rate) + int(rate * QUEUE_S / 8)}"


def _by_peer(plan: ClusterLayout, index: int, parent: str) -> list[str]:
    """The whole link as one class, with a class below it for every peer that has a rate of its own."""
    node, device = plan.nodes[index], plan.interface(index)
    whole = node.bits_per_s or UNSHAPED
    most = {peer: min(rate, whole) for peer, rate in sorted(node.peers_bits_per_s.items())}
    # What classes are promised must not be more than there is, or together they would exceed the link.
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
    """Room for one frame at least, or nothing would ever pass."""
    return max(int(rate * BURST_S / 8), MTU + 100)


def _bits(rate: float) -> str:
    return f"{max(round(rate), 8)}bit"
