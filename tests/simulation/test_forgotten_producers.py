"""A client that is cut off for longer than brokers remember its producer."""

import asyncio

import pytest

from minibroker.client.errors import OutcomeUnknown
from minibroker.harness.simulated import SimulatedHarness
from minibroker.protocol.wire.messages import ApiKey
from minibroker.simulation.world.message_holds import responses
from minibroker.testing import cluster, run

SETTINGS = {"producer.id.expiration.ms": "5000"}


@pytest.mark.invariant("I25")
def test_a_first_record_that_was_written_unanswered_and_forgotten_is_not_written_twice() -> None:
    """It was once: its retry came from a producer that the leader did not know any more."""

    async def story() -> None:
        async with cluster(brokers=3, seed=1, settings=SETTINGS) as c:
            assert isinstance(c, SimulatedHarness)
            await c.create_topic("orders")
            leader, network = await c.wait_for_leader("orders"), c.world.network
            async with c.producer() as producer:
                answers = network.hold(f"broker-{leader}", "client", responses(ApiKey.PRODUCE))
                in_doubt = await producer.send("orders", b"once")
                await answers.caught()
                network.isolate("client")
                answers.drop()
                await asyncio.sleep(12)
                network.heal_all()
                with pytest.raises(OutcomeUnknown):
                    await in_doubt
                assert (await producer.send_and_wait("orders", b"then")).offset == 1
            assert (await c.audit()).success

    run(story())
