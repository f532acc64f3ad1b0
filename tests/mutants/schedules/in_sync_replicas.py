"""Orders of events around the in-sync set: eligibility, incarnations, lag, and the minimum."""

import asyncio
from unittest.mock import patch

from msgspec.structs import replace

from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication.events import AlterPartitionAnswered, ReplicaEvent
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    ApiKey,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from minibroker.protocol.znodes import TopicAssignment, topic_path
from minibroker.simulation.world.message_holds import requests, responses
from tests.mutants.directed_run import TOPIC, ClusterSetup, DirectedRun, with_setup
from tests.mutants.schedules.actions import (
    SOON_SECONDS,
    batch,
    broker_epoch,
    fetch_answer_with,
    host,
    members,
    must_be_acknowledged,
    read_all,
    remove_controller,
    report,
    send_to,
    separate_roles,
    until_registered_again,
    zookeeper_client,
)

LONG_LAG = {"replica.lag.time.max.ms": "10000"}


# --------------------------------------------------------------------------------------------------------- eligibility
async def _shutting_down(directed: DirectedRun, follower: int, controller: int) -> None:
    """The controller has let the follower stop, which fetches in the new epoch: it does not know yet that it may stop,
    and the order to stop its replica is still on its way."""
    network = directed.world.network
    answer = network.hold(host(controller), host(follower), responses(ApiKey.CONTROLLED_SHUTDOWN))
    network.hold(host(controller), host(follower), requests(ApiKey.STOP_REPLICA))
    directed.cluster.stop(follower)
    await answer.caught()
    await directed.produce("while it asks on")
    await asyncio.sleep(1.0)


@with_setup(ClusterSetup())
async def shutting_down_follower_fetches(directed: DirectedRun) -> None:
    """KIP-841: a follower in its controlled shutdown still fetches; it may not rejoin the ISR."""
    _, controller, follower = await separate_roles(directed)
    process = directed.world.process(host(follower))
    await _shutting_down(directed, follower, controller)
    if follower in members(directed):
        report(directed, "I34", f"broker {follower} is shutting down, and is in the ISR {members(directed)}")
    directed.world.network.heal_all()
    await directed.until(lambda: not process.alive, "the end of the shutdown")


@with_setup(ClusterSetup(settings=LONG_LAG))
async def acknowledged_after_a_shutdown(directed: DirectedRun) -> None:
    """KAFKA-15021: a broker that was just shut down was caught up a moment ago, and will never fetch again."""
    _, controller, follower = await separate_roles(directed)
    process = directed.world.process(host(follower))
    await _shutting_down(directed, follower, controller)
    directed.world.network.heal_all()
    await directed.until(lambda: not process.alive, "the end of the shutdown")
    await must_be_acknowledged(directed, "after a controlled shutdown")


@with_setup(ClusterSetup())
async def joiner_loses_power_before_the_controller_decides(directed: DirectedRun) -> None:
    """KIP-903: the joiner caught up, lost power, and is back with a short log when the controller decides."""
    leader, controller, joiner = await separate_roles(directed)
    network = directed.world.network
    for number in range(3):
        await directed.produce(f"{number}")
    network.partition(host(leader), host(joiner))
    waiting = directed.produce_soon("without it")
    await directed.until_isr(leader, controller)
    await waiting
    proposal = network.hold(host(leader), host(controller), requests(ApiKey.ALTER_PARTITION))
    network.heal(host(leader), host(joiner))
    network.heal(host(joiner), host(leader))
    await proposal.caught()
    network.partition(host(leader), host(joiner))
    old_epoch = broker_epoch(directed, joiner)
    directed.cluster.power_loss(joiner)
    directed.cluster.start(joiner)
    await until_registered_again(directed, joiner, old_epoch)
    await asyncio.sleep(0.1)
    proposal.release()
    await asyncio.sleep(1.0)
    directed.cluster.kill(leader)
    await directed.until(lambda: directed.cluster.leader(TOPIC) not in (None, leader), "another leader")


# ----------------------------------------------------------------------------------------------- the high watermark
@with_setup(ClusterSetup(topics={TOPIC: (1, 3, 2)}))
async def last_replica_standing(directed: DirectedRun) -> None:
    """KIP-966: the ISR is the leader alone, acks=1 goes on, a consumer reads, the leader loses power."""
    leader = directed.leader
    for number in range(3):
        await directed.produce(f"{number}")
    followers = directed.followers()
    for follower in followers:
        directed.cluster.kill(follower)
    await directed.until_isr(leader)
    await asyncio.sleep(2.5)  # longer than its fsync takes
    for number in range(3):
        await directed.produce(f"alone-{number}", acks=1)
    await read_all(directed)
    directed.cluster.power_loss(leader)
    for broker_id in (leader, *followers):
        directed.cluster.start(broker_id)
    await directed.until_isr(*directed.cluster.broker_ids)


@with_setup(ClusterSetup())
async def leader_receives_its_state_again(directed: DirectedRun) -> None:
    """KAFKA-10301: a new controller repeats the partition's state while a record waits for the followers."""
    leader, network = directed.leader, directed.world.network
    network.count_frames()  # from here on it is known which request a response answers
    await directed.produce("everywhere")
    await asyncio.sleep(1.0)
    async with zookeeper_client(directed) as coordination:
        network.hold(host(leader), None, responses(ApiKey.FETCH))
        await directed.produce("on the leader alone", acks=1)
        await remove_controller(coordination)
        await asyncio.sleep(0.5)
    network.heal_all()
    await directed.produce("everywhere again")


# --------------------------------------------------------------------------------------------------------------- lag
@with_setup(ClusterSetup())
async def steady_load_over_a_slow_link(directed: DirectedRun) -> None:
    """KAFKA-1546, KAFKA-4485: followers are always some records behind, and keep up all the same."""
    leader, links = directed.leader, directed.world.network.slow_links
    for follower in directed.followers():
        links[host(leader), host(follower)] = links[host(follower), host(leader)] = 0.2
    await asyncio.sleep(1.0)
    changes = directed.reference.isr_changes
    sends = []
    for number in range(1_200):
        sends.append(directed.produce_soon(f"{number}", acks=1))
        await asyncio.sleep(0.005)
    await asyncio.gather(*sends)
    if directed.reference.isr_changes != changes:
        report(directed, "I37", f"the ISR changed {directed.reference.isr_changes - changes} times in a sound cluster")


@with_setup(ClusterSetup())
async def idle_followers(directed: DirectedRun) -> None:
    """KAFKA-7152: no producer writes for a long time."""
    await directed.produce("the only one")
    changes = directed.reference.isr_changes
    await asyncio.sleep(10.0)
    if directed.reference.isr_changes != changes:
        report(directed, "I37", f"the ISR changed {directed.reference.isr_changes - changes} times in an idle cluster")


@with_setup(ClusterSetup())
async def follower_stuck_but_fetching(directed: DirectedRun) -> None:
    """KAFKA-1546: each reply with one certain record breaks its connection; a follower fetches it again and again."""
    leader, stuck = directed.leader, directed.followers()[0]
    await directed.produce("everywhere")
    directed.world.network.drop_frames(host(leader), host(stuck), fetch_answer_with(b"never arrives"))
    await directed.produce("never arrives", acks=1)
    await asyncio.sleep(4.0)
    await must_be_acknowledged(directed, "while one follower is stuck", 1.0)
    directed.world.network.heal_all()


# -------------------------------------------------------------------------------------------------------------- sets
@with_setup(ClusterSetup())
async def another_tool_changes_the_assignment(directed: DirectedRun) -> None:
    """KAFKA-9672: a broker is removed from the assignment while it is in the ISR; the next controller sees both."""
    _, _, third = await separate_roles(directed)
    await directed.produce("everywhere")
    path = topic_path(TOPIC)
    async with zookeeper_client(directed) as coordination:
        content, _ = await coordination.get(path)
        before = TopicAssignment.decode(content)
        kept = tuple(b for b in before.replicas()[0] if b != third)
        await coordination.set(path, TopicAssignment.of(before.topic_id, {0: kept}).encode())
        await remove_controller(coordination)
        await asyncio.sleep(1.0)
        await must_be_acknowledged(directed, "with a smaller assignment")
        if third in members(directed):
            report(directed, "I34", f"broker {third} is in the ISR {members(directed)}, not in {kept}")
        await coordination.set(path, content)
        await remove_controller(coordination)
        await asyncio.sleep(1.0)


@with_setup(ClusterSetup(topics={TOPIC: (1, 2, 1)}, settings=LONG_LAG))
async def broker_without_a_replica_fetches(directed: DirectedRun) -> None:
    """KAFKA-13837: a broker that is no replica (of this leader's assignment) fetches, once. As a follower it is as good
    as any: at the end, and with a log that starts where the leader's does."""
    leader = directed.leader
    stranger = next(b for b in directed.cluster.broker_ids if directed.cluster.replica(b, TOPIC) is None)
    await directed.produce("everywhere")
    state = directed.replica(leader).state
    fetch = FetchPartition(
        partition=0,
        current_leader_epoch=state.leader_epoch or 0,
        fetch_offset=state.log_end_offset,
        log_start_offset=state.log_start_offset,
    )
    request = FetchRequest(
        replica_id=stranger,
        replica_epoch=broker_epoch(directed, stranger),
        max_wait_ms=0,
        session_epoch=0,
        topics=[FetchTopic(topic=TOPIC, partitions=[fetch])],
    )
    await send_to(directed, leader, request)
    await must_be_acknowledged(directed, "after a stranger's fetch")


# ------------------------------------------------------------------------------------------------------- the minimum
@with_setup(ClusterSetup(topics={TOPIC: (1, 3, 2)}))
async def too_few_in_sync(directed: DirectedRun) -> None:
    """KAFKA-1555: acks=all is refused without an append; the minimum does not concern acks=1."""
    leader = directed.leader
    await directed.produce("everywhere")
    for follower in directed.followers():
        directed.cluster.kill(follower)
    await directed.until_isr(leader)
    end = directed.replica(leader).state.log_end_offset
    waiting = directed.produce_soon("too early")
    await asyncio.sleep(1.0)
    if directed.replica(leader).state.log_end_offset != end:
        report(directed, "I24", "acks=all was appended with fewer than min.insync.replicas in sync")
    sending = directed.produce_soon("weak", acks=1)
    done, _ = await asyncio.wait([sending], timeout=SOON_SECONDS)
    if not done:
        report(directed, "I24", "acks=1 was refused because of min.insync.replicas")
    for broker_id in directed.cluster.broker_ids:
        if broker_id != leader:
            directed.cluster.start(broker_id)
    await asyncio.gather(waiting, sending)


@with_setup(ClusterSetup(topics={TOPIC: (1, 3, 2)}))
async def shrink_between_append_and_acknowledgement(directed: DirectedRun) -> None:
    """KAFKA-1555: a record is appended, then the ISR falls below the minimum."""
    leader = directed.leader
    await directed.produce("everywhere")
    for follower in directed.followers():
        directed.cluster.kill(follower)
    data = ProducePartition(index=0, records=batch(b"in between"))
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[ProduceTopic(name=TOPIC, partition_data=[data])])
    waiting = asyncio.create_task(send_to(directed, leader, request, 40_000))
    await directed.until_isr(leader)
    done, _ = await asyncio.wait([waiting], timeout=SOON_SECONDS)
    if not done:
        report(directed, "I24", "the ISR fell below the minimum, and a waiting producer got no error")
    else:
        answer = waiting.result()
        assert isinstance(answer, ProduceResponse)
        code = answer.responses[0].partition_responses[0].error_code
        if code != ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
            report(directed, "I24", f"appended with the full ISR, answered {code} with the leader alone")
    waiting.cancel()


# ------------------------------------------------------------------------------------------------------------- answers
async def _absurd_answer(directed: DirectedRun, **absurd: int) -> None:
    """A follower stops and returns; the first answer to a proposal differs from the decision. Then the follower is cut
    off from the leader, which must be able to go on without it."""
    lies, handle = 1, Partition.handle

    def falsify(partition: Partition, event: ReplicaEvent) -> None:
        nonlocal lies
        if lies and isinstance(event, AlterPartitionAnswered) and event.error_code is ErrorCode.NONE:
            lies -= 1
            event = replace(event, **absurd)
        handle(partition, event)

    away = directed.followers()[0]
    with patch.object(Partition, "handle", falsify):
        directed.cluster.kill(away)
        await directed.until(lambda: away not in members(directed), "an ISR without it")
        directed.cluster.start(away)
        await directed.until(lambda: not lies, "the answer")
    await directed.until_isr(*directed.cluster.broker_ids)
    directed.world.network.partition(host(directed.leader), host(away))
    await asyncio.sleep(3.0)
    await must_be_acknowledged(directed, "after an absurd answer")


@with_setup(ClusterSetup())
async def answer_names_a_version_far_ahead(directed: DirectedRun) -> None:
    """No write will ever reach it."""
    await _absurd_answer(directed, partition_epoch=1 << 30)


@with_setup(ClusterSetup())
async def answer_names_another_epoch(directed: DirectedRun) -> None:
    """Without an error, as if the proposal had been another leader's."""
    await _absurd_answer(directed, leader_epoch=1 << 20)
