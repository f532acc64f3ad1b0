import pytest

from tests.runtime.doors import Bench, RealBench, SimulatedBench


@pytest.fixture(params=["asyncio", "uvloop", "simulated"])
def bench(request: pytest.FixtureRequest, tmp_path: object) -> Bench:
    """Every kind of doors."""
    return SimulatedBench() if request.param == "simulated" else RealBench(request.param, str(tmp_path))
