"""Orders of stops and starts of whole clusters, with disks replaced in between, and brokers that answer no request."""

import asyncio
import contextlib

from minibroker.client.descriptions import NewTopic
from minibroker.client.errors import MinibrokerError
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.znodes import topic_path
from tests.mutants.directed_run import ClusterSetup, DirectedRun, with_setup
from tests.mutants.schedules.actions import admin_client, host, must_be_acknowledged, report, separate_roles

RECORDS = 20


async def _produce_some(directed: DirectedRun) -> None:
    for number in range(RECORDS):
        await directed.produce(f"{number}")


def _replace_disk(directed: DirectedRun, broker_id: int) -> None:
    """A blank one is put in while the broker does not run."""
    storage = directed.world.machine(host(broker_id)).storage
    storage.wipe()
    storage.provision("/data")


@with_setup(ClusterSetup())
async def replaced_disk_starts_first(directed: DirectedRun) -> None:
    """All are killed; the one whose disk was replaced is back first, and registered before the others."""
    await _produce_some(directed)
    for broker_id in directed.cluster.broker_ids:
        directed.cluster.kill(broker_id)
    _replace_disk(directed, 1)
    directed.cluster.start(1)
    await asyncio.sleep(6.0)
    for broker_id in (2, 3):
        directed.cluster.start(broker_id)
    await directed.until_isr(1, 2, 3)


async def _cut_power(directed: DirectedRun, *synced: int) -> None:
    """The power fails everywhere; these machines had written their records out."""
    for broker_id in synced:
        await directed.world.spawn(host(broker_id), directed.replica(broker_id).log.flush())
    for broker_id in directed.cluster.broker_ids:
        directed.world.power_loss(host(broker_id), tear=False)


@with_setup(ClusterSetup())
async def synced_log_starts_last(directed: DirectedRun) -> None:
    """The only machine that had its records on its disk, and the last choice, is the last one to be back."""
    await _produce_some(directed)
    *others, last = directed.replica(1).state.assignment
    await _cut_power(directed, last)
    for broker_id in others:
        directed.cluster.start(broker_id)
    await asyncio.sleep(8.0)
    directed.cluster.start(last)
    await directed.until_isr(1, 2, 3)


@with_setup(ClusterSetup())
async def registration_of_a_dead_broker_remains(directed: DirectedRun) -> None:
    """Two brokers are back while the old registration of the third, which lost its records, still exists."""
    await _produce_some(directed)
    await _cut_power(directed, 1, 2)
    for broker_id in (1, 2):
        directed.cluster.start(broker_id)
        await asyncio.sleep(1.0)
    await asyncio.sleep(0.5)
    directed.cluster.start(3)
    await directed.until_isr(1, 2, 3)


BOUND_SECONDS = 20.0
"""A probe of the controller every three seconds, six seconds without an answer, another registration; with a margin."""
LONG_SESSION = {"zookeeper.session.timeout.ms": "6000"}


@with_setup(ClusterSetup(settings=LONG_SESSION))
async def leader_is_cut_off_from_the_others(directed: DirectedRun) -> None:
    """Both others are cut off from the leader; clients and ZooKeeper reach it."""
    leader, *others = await separate_roles(directed)
    await directed.produce("everywhere")
    for other in others:
        directed.world.network.partition(host(leader), host(other))
    await must_be_acknowledged(directed, "after the leader was cut off", BOUND_SECONDS)


@with_setup(ClusterSetup(settings=LONG_SESSION))
async def leader_refuses_all_and_registers_again(directed: DirectedRun) -> None:
    """Its failure is confirmed, it is unregistered and back at once; the controller's slow ZooKeeper shows no gap."""
    leader, controller, _ = await separate_roles(directed)
    await asyncio.sleep(4.0)
    await directed.produce("everywhere")
    directed.world.zookeeper.slow_hosts[host(controller)] = 0.1
    directed.world.network.reject(None, host(leader))
    await asyncio.sleep(0.5)
    await must_be_acknowledged(directed, "after the leader turned all connections away")


@with_setup(ClusterSetup(settings=LONG_SESSION))
async def leader_does_not_reach_the_controller(directed: DirectedRun) -> None:
    """The controller reaches the leader, but refuses its connections; and a follower must leave the ISR."""
    leader, controller, third = await separate_roles(directed)
    await directed.produce("everywhere")
    directed.world.network.reject(host(leader), host(controller))
    directed.world.network.partition(host(leader), host(third))
    await must_be_acknowledged(directed, "after the leader lost the controller", BOUND_SECONDS)


DOOMED = TopicPartition("doomed", 0)


@with_setup(ClusterSetup(settings={**LONG_SESSION, "default.replication.factor": "3"}))
async def controller_dies_during_a_deletion(directed: DirectedRun) -> None:
    """One replica hangs and one fails with the controller; the third has been erased, and its broker is up."""
    leader, controller, third = await separate_roles(directed)
    async with admin_client(directed) as admin:
        await admin.create_topics([NewTopic(name=DOOMED.topic, assignment={0: [third, controller, leader]})])
        for number in range(RECORDS):
            await directed.produce(f"doomed-{number}", partition=DOOMED)
        directed.world.pause(host(leader))
        with contextlib.suppress(MinibrokerError):
            await admin.delete_topics([DOOMED.topic], timeout_ms=1_000)
    await directed.until(lambda: directed.cluster.replica(third, *DOOMED) is None, "an erased replica")
    directed.cluster.kill(controller)
    await directed.until(lambda: directed.cluster.controller() == third, "another controller")
    await asyncio.sleep(1.0)
    if directed.cluster.replica(third, *DOOMED) is not None:
        report(directed, "I35", f"broker {third} has a replica of {DOOMED} again, which it had erased")
    directed.world.resume(host(leader))
    directed.cluster.start(controller)
    await directed.until(lambda: topic_path(DOOMED.topic) not in directed.world.zookeeper.tree.nodes, "no such topic")
    for offset in [each for each in directed.history.acked if each[0] == DOOMED]:
        del directed.history.acked[offset]
