"""Emulated nodes on one Linux machine: network namespaces on a bridge, shaped links, CPU shares, memory limits.

Nothing here knows of training. One process per cluster, the keeper, holds its namespaces; what runs in a node is
started with the command line that `Cluster.command` gives.
"""

from paceline.cluster.opening import Cluster, Node, keep_cluster, open_cluster

__all__ = ["Cluster", "Node", "keep_cluster", "open_cluster"]
