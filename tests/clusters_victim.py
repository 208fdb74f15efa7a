"""Open a cluster, start a process in every node and wait to be killed: clusters_victim.py NAME KEY=VALUE,..."""

from __future__ import annotations

import subprocess
import sys
import time

from paceline.cluster import open_cluster
from paceline.recipe import ClusterConfig, parse_cluster

if __name__ == "__main__":
    changes = {key.removeprefix("cluster."): value for key, value in parse_cluster(sys.argv[2]).items()}
    with open_cluster(ClusterConfig(**changes), name=sys.argv[1]) as cluster:
        for node in cluster.nodes:
            command = cluster.command(node.index, ["sleep", "1000"])
            subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        print("open", flush=True)
        time.sleep(1000)
