import pytest

from minibroker.local_cluster.zookeeper_process import ZooKeeperProcess
from tests.runtime.coordination import CoordinationBench, RealCoordinationBench, SimulatedCoordinationBench
from tests.runtime.ports import Bench, RealBench, SimulatedBench


@pytest.fixture(params=["asyncio", "uvloop", "simulated"])
def bench(request: pytest.FixtureRequest, tmp_path: object) -> Bench:
    """Every kind of ports."""
    return SimulatedBench() if request.param == "simulated" else RealBench(request.param, str(tmp_path))


@pytest.fixture(params=["simulated", pytest.param("zookeeper", marks=pytest.mark.system)])
def coordination_bench(request: pytest.FixtureRequest) -> CoordinationBench:
    """The simulated ZooKeeper and the real one."""
    if request.param == "simulated":
        return SimulatedCoordinationBench()
    process: ZooKeeperProcess = request.getfixturevalue("zookeeper")
    return RealCoordinationBench(process.port)
