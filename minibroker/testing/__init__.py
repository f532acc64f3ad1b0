"""Clusters for the tests of your own services: break brokers in milliseconds, or the same test on real processes.

    from minibroker.testing import cluster

    async with cluster(brokers=3, seed=7) as c:
        await c.create_topic("orders")
        ... your service, with Producer(c.bootstrap_servers) ...
        await c.kill_leader("orders", 0)

Brokers, controller and clients are the real ones; network, disks, ZooKeeper and time are simulated, so that a seed
repeats a run exactly. The code around `cluster` must therefore run in virtual time: in a test with the fixture
`minibroker_cluster` or the mark `@pytest.mark.minibroker`, in a function decorated with `simulated`, or under `run`.
With `real=True` the same calls act on processes of this machine (needs Java for ZooKeeper). See docs/TESTING.md.
"""

from minibroker.testing.opening import ClusterOptions as ClusterOptions
from minibroker.testing.opening import NeedsVirtualTime as NeedsVirtualTime
from minibroker.testing.opening import cluster as cluster
from minibroker.testing.opening import run as run
from minibroker.testing.opening import simulated as simulated
from minibroker.testing.tested_cluster import Acknowledged as Acknowledged
from minibroker.testing.tested_cluster import TestedCluster as TestedCluster

__all__ = ["Acknowledged", "ClusterOptions", "NeedsVirtualTime", "TestedCluster", "cluster", "run", "simulated"]
