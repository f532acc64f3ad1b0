"""Clusters for the tests of your own services: break brokers in milliseconds, or the same test on real processes.

    from minibroker.testing import cluster

    async with cluster(brokers=3, seed=7) as c:
        await c.create_topic("orders")
        ... your service, with Producer(c.bootstrap_servers) ...
        await c.kill_leader("orders", 0)

The brokers, the controller and the clients are the real ones; network, disks, ZooKeeper and time are simulated, so that
a seed repeats a run exactly. The code around `cluster` therefore runs in virtual time: a test that uses the fixture
`minibroker_cluster` or carries `@pytest.mark.minibroker` does, and so does what `simulated` decorates or `run` runs.
With `real=True` the same calls reach processes on this machine (needs Java for ZooKeeper). docs/TESTING.md tells more.
"""

from minibroker.testing.opening import ClusterOptions as ClusterOptions
from minibroker.testing.opening import NeedsVirtualTime as NeedsVirtualTime
from minibroker.testing.opening import cluster as cluster
from minibroker.testing.opening import run as run
from minibroker.testing.opening import simulated as simulated
from minibroker.testing.tested_cluster import Acknowledged as Acknowledged
from minibroker.testing.tested_cluster import TestedCluster as TestedCluster

__all__ = ["Acknowledged", "ClusterOptions", "NeedsVirtualTime", "TestedCluster", "cluster", "run", "simulated"]
