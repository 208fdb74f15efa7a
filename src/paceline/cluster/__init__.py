"""Emulated nodes on one Linux machine: network namespaces on a bridge, shaped links, CPU shares, memory limits.

Independent of training. One process per cluster, the keeper, holds its namespaces. `Cluster.command` returns the
command line that runs a program inside a node.
"""

from paceline.cluster.opening import Cluster, Node, keep_cluster, open_cluster

__all__ = ["Cluster", "Node", "keep_cluster", "open_cluster"]
