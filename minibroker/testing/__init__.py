"""Clusters for the tests of your own services: break brokers in milliseconds, or the same test on real processes.

    from minibroker.testing import cluster

    async with cluster(brokers=3, seed=7) as c:
        await c.create_topic("orders")
        ... your service, with Producer(c.bootstrap_servers) ...
        await c.kill_leader("orders", 0)

Brokers, controller and clients are the real ones; network, disks, ZooKeeper and time are simulated, so that a seed
repeats a run exactly. The code around `cluster` must therefore run in virtual time: in a test with the fixture
`minibroker_cluster` or the mark `@pytest.mark.minibroker`, in a function decorated with `simulated`, or under `run`.
With `backend="processes"` the same calls act on processes of this machine (which needs Java for ZooKeeper), with
`backend="compose"` on containers. See docs/TESTING.md and docs/HARNESS.md.
"""

from minibroker.harness.cluster import Acknowledged as Acknowledged
from minibroker.harness.cluster import ClusterHarness as ClusterHarness
from minibroker.harness.cluster import Misuse as Misuse
from minibroker.harness.cluster import UnsupportedByBackend as UnsupportedByBackend
from minibroker.harness.leftovers import LeftoverTasks as LeftoverTasks
from minibroker.testing.opening import ClusterOptions as ClusterOptions
from minibroker.testing.opening import NeedsRealTime as NeedsRealTime
from minibroker.testing.opening import NeedsVirtualTime as NeedsVirtualTime
from minibroker.testing.opening import cluster as cluster
from minibroker.testing.opening import run as run
from minibroker.testing.opening import simulated as simulated

__all__ = [
    "Acknowledged",
    "ClusterHarness",
    "ClusterOptions",
    "LeftoverTasks",
    "Misuse",
    "NeedsRealTime",
    "NeedsVirtualTime",
    "UnsupportedByBackend",
    "cluster",
    "run",
    "simulated",
]
