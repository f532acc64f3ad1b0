"""A simulated world with three fake brokers, for each test of the client."""

import pytest

from minibroker.simulation.world.world import SimulatedWorld
from tests.client.fake_cluster import FakeCluster


@pytest.fixture
def cluster() -> FakeCluster:
    """Three brokers, not started yet, and a topic `t` of one partition."""
    fake = FakeCluster(SimulatedWorld(seed=7))
    fake.add_topic("t")
    return fake
