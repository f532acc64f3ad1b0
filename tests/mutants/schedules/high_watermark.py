"""Orders of events around the high watermark and proposals that are not settled."""

import asyncio

from minibroker.broker.disk_faults.repairs import REPAIRS_MAX
from minibroker.protocol.wire.messages import ApiKey
from minibroker.simulation.world.message_holds import requests, responses
from tests.mutants.directed_run import TOPIC, ClusterSetup, DirectedRun, with_setup
from tests.mutants.schedules.actions import host, report, separate_roles

LONG_LAG = {"replica.lag.time.max.ms": "10000"}
ANSWER_SECONDS_MAX = 12.0


@with_setup(ClusterSetup(settings=LONG_LAG))
async def joiner_is_not_counted(directed: DirectedRun) -> None:
    """KIP-497: a replica has joined, the leader does not know it yet, and the replica does not get a new record."""
    leader, controller, third = await separate_roles(directed)
    network = directed.world.network
    directed.cluster.kill(third)
    await directed.until_isr(leader, controller)
    answers = network.hold(host(controller), host(leader), responses(ApiKey.ALTER_PARTITION))
    directed.cluster.start(third)
    await answers.caught()
    network.hold(host(leader), host(third), responses(ApiKey.FETCH))
    await asyncio.wait([directed.produce_soon("only two have it")], timeout=1.0)


@with_setup(ClusterSetup())
async def shrink_is_not_confirmed(directed: DirectedRun) -> None:
    """KIP-497: the leader proposes to remove a lagging replica; the proposal does not reach the controller."""
    leader, controller, third = await separate_roles(directed)
    network = directed.world.network
    proposals = network.hold(host(leader), host(controller), requests(ApiKey.ALTER_PARTITION))
    network.partition(host(leader), host(third))
    sending = directed.produce_soon("two have it")
    await proposals.caught()
    await asyncio.wait([sending], timeout=2.0)


@with_setup(ClusterSetup())
async def proposal_is_repeated(directed: DirectedRun) -> None:
    """KAFKA-14010: the answer to a proposal is lost, and the proposal has to be sent again."""
    leader, controller, third = await separate_roles(directed)
    directed.world.network.lose_replies(host(leader), host(controller), ApiKey.ALTER_PARTITION, times=2)
    directed.world.network.cut(host(leader), host(third))
    await asyncio.wait([directed.produce_soon("two have it")], timeout=4.0)
    directed.world.network.heal(host(leader), host(third))


@with_setup(ClusterSetup(brokers=4, topics={TOPIC: (1, 4, 1)}, settings=LONG_LAG))
async def proposal_outlives_its_leader_epoch(directed: DirectedRun) -> None:
    """KAFKA-12686: a proposal is in flight when the leader's next epoch begins; another replica may join in it, too."""
    leader, controller, third = await separate_roles(directed)
    fourth = next(b for b in directed.cluster.broker_ids if b not in (leader, controller, third))
    directed.cluster.kill(third)
    await directed.until(lambda: third not in directed.cluster.in_sync_replicas(TOPIC), "an ISR without the third")
    proposals = directed.world.network.hold(host(leader), host(controller), requests(ApiKey.ALTER_PARTITION))
    directed.cluster.start(third)
    await proposals.caught()
    epoch = directed.replica(leader).state.leader_epoch or 0
    directed.cluster.kill(fourth)
    await directed.until(lambda: (directed.replica(leader).state.leader_epoch or 0) > epoch, "the next leader epoch")
    await asyncio.sleep(1)


@with_setup(ClusterSetup(settings=LONG_LAG))
async def shrink_without_traffic(directed: DirectedRun) -> None:
    """KAFKA-13091: the followers that the record waited for are gone, and there is no further traffic."""
    leader = directed.leader
    one, other = directed.followers()
    for follower in (one, other):
        directed.world.network.cut(host(leader), host(follower))
    sending = directed.produce_soon("waits for the dead")
    await asyncio.sleep(0.3)
    directed.cluster.kill(one)
    directed.cluster.kill(other)
    done, _ = await asyncio.wait([sending], timeout=ANSWER_SECONDS_MAX)
    if not done:
        report(directed, "I37", f"alone in the ISR, the leader acknowledges nothing for {ANSWER_SECONDS_MAX} s")


SMALL_LOGS = {
    "log.segment.bytes": "4096",
    "log.retention.bytes": "4096",
    "log.retention.check.interval.ms": "200",
}
RECORDS = 60
PADDING = "." * 300


@with_setup(ClusterSetup(settings={**SMALL_LOGS, **LONG_LAG}))
async def retention_while_followers_are_cut_off(directed: DirectedRun) -> None:
    """KAFKA-5634: followers lag, and the leader has more records than retention allows, all uncommitted."""
    leader = directed.leader
    for follower in directed.followers():
        directed.world.network.cut(host(leader), host(follower))
    for number in range(RECORDS):
        await directed.produce(f"{number}{PADDING}", acks=1)
    await asyncio.sleep(1)


@with_setup(ClusterSetup(settings=SMALL_LOGS))
async def follower_behind_retention(directed: DirectedRun) -> None:
    """KAFKA-9491, 12996: a follower returns when its leader has deleted what it lacks."""
    follower = directed.followers()[0]
    await directed.produce("known to all")
    directed.cluster.kill(follower)
    await directed.until(lambda: follower not in directed.cluster.in_sync_replicas(TOPIC), "an ISR without it")
    for number in range(RECORDS):
        await directed.produce(f"{number}{PADDING}")
    await asyncio.sleep(1)
    directed.cluster.start(follower)
    await asyncio.sleep(2)


@with_setup(ClusterSetup(settings=SMALL_LOGS, sound_disks=True))
async def follower_behind_retention_again_and_again(directed: DirectedRun) -> None:
    """KAFKA-12996: the same in one process, more often than a log may be found damaged within an hour. It is behind, but
    nothing is wrong with its log."""
    leader, _, third = await separate_roles(directed)

    def is_behind() -> bool:
        return directed.replica(third).state.log_end_offset < directed.replica(leader).log.log_start_offset

    await directed.produce("known to all")
    for _ in range(REPAIRS_MAX + 1):
        directed.world.network.partition(host(leader), host(third))
        for number in range(RECORDS):
            await directed.produce(f"{number}{PADDING}")
        await directed.until(is_behind, "retention")
        directed.world.network.heal_all()
        await directed.until_isr(*directed.cluster.broker_ids)
