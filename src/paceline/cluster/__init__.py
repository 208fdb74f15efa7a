"""Emulate a cluster on one Linux machine: nodes are network namespaces on a bridge, with limits per node.

A node's limits are the bandwidth, latency and loss of its links, its CPU share, and its memory. This package does not
import the training code. Each cluster has one process, the keeper, which holds the cluster's namespaces.
`Cluster.command` returns the command line that runs a program inside a node.
"""

from paceline.cluster.opening import Cluster, Node, keep_cluster, open_cluster

__all__ = ["Cluster", "Node", "keep_cluster", "open_cluster"]
