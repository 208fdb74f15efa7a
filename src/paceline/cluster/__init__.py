"""Emulated nodes on one Linux machine: network namespaces on a bridge, shaped links, CPU shares, memory limits.

This package does not depend on training. Each cluster has one process, the keeper, which holds the cluster's
namespaces. `Cluster.command` returns the command line that runs a program inside a node.
"""

from paceline.cluster.opening import Cluster, Node, keep_cluster, open_cluster

__all__ = ["Cluster", "Node", "keep_cluster", "open_cluster"]
