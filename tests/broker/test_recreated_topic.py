"""A disk that holds the log of a deleted topic, when another topic of that name is assigned to its broker."""

from minibroker.broker.configuration.topic_config import resolve_topic_config
from minibroker.broker.replication.state import Role
from minibroker.harness.simulated import SimulatedHarness
from minibroker.testing import simulated
from tests.simulation.test_damage import FIRST, SETTINGS, TOPIC, produce, replica


@simulated(brokers=1, seed=41, settings=SETTINGS)
async def test_the_log_of_the_deleted_topic_is_given_up(c: SimulatedHarness) -> None:
    """With it, the replica would answer with records that the new topic never had."""
    await c.create_topic(TOPIC)
    await produce(c, 5)
    manager, before = c.simulation.brokers[1].manager, replica(c, 1)
    topic_config = resolve_topic_config(manager.config, {})
    assert before.log.topic_id is not None
    assert manager.opened(FIRST, before.log.topic_id, topic_config) is before
    another = manager.opened(FIRST, "another topic", topic_config)
    assert manager.partitions[FIRST] is another is not before
    assert before.state.role is Role.NONE, "what waited for it is answered"
    assert (another.log.topic_id, another.log.log_end_offset) == ("another topic", 0)


@simulated(brokers=1, seed=42, settings=SETTINGS)
async def test_the_controller_learns_that_an_offline_replica_is_gone(c: SimulatedHarness) -> None:
    """Else the replica of the next topic of that name counts as reported when it goes offline: it stays leader to the
    controller, and leads nothing, for ever."""
    await c.create_topic(TOPIC)
    await produce(c, 5)
    manager, told = c.simulation.brokers[1].manager, list[bool]()
    manager.disk.wait_for_descriptor(FIRST, replica(c, 1))
    manager.disk.on_changed = lambda: told.append(FIRST in manager.partitions)
    manager.drop(FIRST, "the topic is being deleted")
    assert told == [False]
