"""What a simulated run costs, in units that no other program on the machine changes."""

from minibroker.simulation_speed import SimulationLoad, measure

CALLBACKS_PER_RECORD_MAX = 19
"""16 were counted; each is some 10 to 40 microseconds. More means slower seeds."""

DELIVERIES_PER_RECORD_MAX = 6.5
"""A produce request, a fetch of each of the two followers, and the answers."""

CALLBACKS_PER_IDLE_SECOND_MAX = 220
"""180 were counted: heartbeats to ZooKeeper, delayed fetches, periodic tasks."""


def test_an_acknowledged_record_costs_few_callbacks() -> None:
    found = measure(SimulationLoad(), virtual_seconds=10.0)
    assert found.acknowledged == 1_000
    assert found.callbacks / found.acknowledged < CALLBACKS_PER_RECORD_MAX


def test_no_fetch_carries_the_high_watermark_alone_while_records_follow() -> None:
    """Each leader gets a record every 30 ms."""
    found = measure(SimulationLoad(), virtual_seconds=10.0)
    assert found.deliveries / found.acknowledged < DELIVERIES_PER_RECORD_MAX


def test_an_idle_cluster_costs_next_to_nothing() -> None:
    found = measure(SimulationLoad(records_per_second=0), virtual_seconds=60.0)
    assert found.callbacks / found.virtual_seconds < CALLBACKS_PER_IDLE_SECOND_MAX
