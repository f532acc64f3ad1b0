"""Orders of events that show what clients were promised."""

import asyncio

from minibroker.protocol.wire.messages import ApiKey
from minibroker.simulation.world.message_holds import requests
from tests.mutants.directed_run import TOPIC, ClusterSetup, DirectedRun, with_setup
from tests.mutants.schedules.actions import host


@with_setup(ClusterSetup())
async def first_of_two_batches_is_refused(directed: DirectedRun) -> None:
    """A new leader gets the first of two batches before its order to lead, and the second one after it."""
    cluster, network = directed.cluster, directed.world.network
    await directed.produce("known", acks=1)
    leader, followers = directed.leader, directed.followers()
    orders = {b: network.hold(None, host(b), requests(ApiKey.LEADER_AND_ISR)) for b in followers}
    cluster.kill(leader)
    await directed.until(lambda: directed.reference.states()[0].leader in followers, "an election")
    elected = directed.reference.states()[0].leader
    next(hold for broker_id, hold in orders.items() if broker_id != elected).release()
    sent = network.hold("client", host(elected), requests(ApiKey.PRODUCE))
    sending = [directed.produce_soon("one", acks=1)]
    await sent.caught()
    sending.append(directed.produce_soon("two", acks=1))
    await asyncio.sleep(0.05)  # longer than linger_ms
    sent.let_one_pass()
    await asyncio.sleep(0.01)  # refused
    orders[elected].release()
    await directed.until(lambda: cluster.leader(TOPIC) == elected, "the new leader")
    sent.release()
    await asyncio.gather(*sending)
