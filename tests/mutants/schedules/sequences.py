"""Orders of events around a broker that forgets a producer, and around two producers of one identity."""

import asyncio

from minibroker.broker.replication import producer_state
from minibroker.client.errors import MinibrokerError
from minibroker.client.producer.producer import Producer
from minibroker.protocol.files.checkpoints import SNAPSHOT_SUFFIX
from minibroker.protocol.record_batch import build_batch
from minibroker.protocol.wire.messages import (
    ApiKey,
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from minibroker.simulation.world.message_holds import requests, responses
from tests.mutants.directed_run import FIRST, TOPIC, ClusterSetup, DirectedRun, with_setup
from tests.mutants.schedules.actions import host, produce_with, read_all, report, send_to, separate_roles
from tests.undecodable import undecodable

FORGETFUL = {
    "log.segment.bytes": "4096",
    "log.retention.bytes": "4096",
    "log.retention.check.interval.ms": "200",
    "producer.id.expiration.ms": "1000",
}
PADDING = "." * 300
RECORDS = 60
ON_THE_WAY_SECONDS = 0.05
BATCHES_REMEMBERED = 40


async def _everything_so_far_goes_by_retention(directed: DirectedRun) -> None:
    """Only then a broker may have forgotten a producer."""
    end = directed.replica(directed.leader).state.log_end_offset
    for number in range(RECORDS):
        await directed.produce(f"{number}{PADDING}", acks=1)

    def is_gone() -> bool:
        return all(directed.replica(b).log.log_start_offset >= end for b in directed.cluster.broker_ids)

    await directed.until(is_gone, "retention")


async def _producers_are_forgotten(directed: DirectedRun) -> None:
    """All brokers expire idle producers now, which they do every ten minutes otherwise."""
    await asyncio.sleep(1.5)
    for broker_id in directed.cluster.broker_ids:
        log = directed.replica(broker_id).log
        log.expire_producers(log.health.clock.now_ms())


@with_setup(ClusterSetup(settings=FORGETFUL))
async def answer_lost_and_producer_forgotten(directed: DirectedRun) -> None:
    """A batch is written and read, its answer is lost, and before it is sent again retention deletes it and the brokers
    forget its producer."""
    leader, network = directed.leader, directed.world.network
    await directed.produce("first")
    answers = network.hold(host(leader), "client", responses(ApiKey.PRODUCE))
    sending = directed.produce_soon("in doubt")
    await answers.caught()
    again = network.hold("client", None, produce_with(b"in doubt"))
    answers.drop()
    await again.caught()
    await read_all(directed)
    for number in range(RECORDS):
        batch = build_batch([(None, f"{number}{PADDING}".encode(), 0, ())])
        await send_to(directed, leader, _produce(batch))
    await directed.until(lambda: directed.replica(leader).log.log_start_offset > 2, "retention")
    await _producers_are_forgotten(directed)
    again.release()
    await sending
    await directed.produce("afterwards")


@with_setup(ClusterSetup(settings=FORGETFUL))
async def answer_lost_and_producer_pushed_out(directed: DirectedRun) -> None:
    """A first batch is written and read, and its answer is lost; before it is sent again retention deletes it, and more
    producers write than a broker remembers."""
    leader, network, room = directed.leader, directed.world.network, producer_state.PRODUCERS_MAX
    answers = network.hold(host(leader), "client", responses(ApiKey.PRODUCE))
    sending = directed.produce_soon("in doubt")
    await answers.caught()
    again = network.hold("client", None, produce_with(b"in doubt"))
    answers.drop()
    await again.caught()
    await read_all(directed, 0.5)
    for number in range(RECORDS):
        batch = build_batch([(None, f"{number}{PADDING}".encode(), 0, ())])
        await send_to(directed, leader, _produce(batch))
    await directed.until(lambda: directed.replica(leader).log.log_start_offset > 1, "retention")
    try:
        producer_state.PRODUCERS_MAX = 2
        for producer_id in (900, 901, 902):
            batch = build_batch([(None, b"x", 0, ())], producer_id=producer_id, producer_epoch=0, base_sequence=0)
            await send_to(directed, leader, _produce(batch))
        again.release()
        await sending
    finally:
        producer_state.PRODUCERS_MAX = room


@with_setup(ClusterSetup(settings={**FORGETFUL, "producer.id.expiration.ms": "600000"}))
async def answer_lost_and_the_next_leader_was_reset(directed: DirectedRun) -> None:
    """Seed 914212. A batch is written and read, its answer is lost, and retention deletes it while a replica is down.
    That replica resets to the leader's log start, and leads when the batch is sent again."""
    cluster, network, leader = directed.cluster, directed.world.network, directed.leader
    away = directed.followers()[0]
    cluster.kill(away)
    await directed.until(lambda: away not in cluster.in_sync_replicas(TOPIC), "an ISR without it")
    leader = directed.leader
    answers = network.hold(host(leader), "client", responses(ApiKey.PRODUCE))
    sending = directed.produce_soon("in doubt")
    await answers.caught()
    again = network.hold("client", None, produce_with(b"in doubt"))
    answers.drop()
    await again.caught()
    await read_all(directed, 0.5)
    for number in range(RECORDS):
        batch = build_batch([(None, f"{number}{PADDING}".encode(), 0, ())])
        await send_to(directed, leader, _produce(batch))
    await directed.until(lambda: directed.replica(leader).log.log_start_offset > 1, "retention")
    cluster.start(away)
    await directed.until_isr(*cluster.broker_ids)
    for broker_id in cluster.broker_ids:
        if broker_id != away:
            cluster.kill(broker_id)
    await directed.until(lambda: cluster.leader(TOPIC) == away, "the one that was away leads")
    again.release()
    await sending


@with_setup(ClusterSetup(topics={TOPIC: (1, 3, 3)}, settings=FORGETFUL))
async def later_batch_overtakes_a_refused_one(directed: DirectedRun) -> None:
    """Two batches of a forgotten producer are on their way. The first one finds too few in-sync replicas, the second
    one enough, and then the first one comes again."""
    leader, _, third = await separate_roles(directed)
    network = directed.world.network
    await directed.produce("first")
    await _everything_so_far_goes_by_retention(directed)
    await _producers_are_forgotten(directed)
    hold = network.hold("client", host(leader), requests(ApiKey.PRODUCE))
    sends = []
    for value in ("refused", "slips in"):
        sends.append(directed.produce_soon(value))
        await asyncio.sleep(ON_THE_WAY_SECONDS)
    directed.cluster.kill(third)
    await directed.until(lambda: third not in directed.cluster.in_sync_replicas(TOPIC), "an ISR without it")
    hold.let_one_pass()
    await asyncio.sleep(ON_THE_WAY_SECONDS)
    directed.cluster.start(third)
    await directed.until_isr(*directed.cluster.broker_ids)
    hold.release()
    await asyncio.gather(*sends)


@with_setup(ClusterSetup())
async def old_timestamps_and_a_lost_answer(directed: DirectedRun) -> None:
    """Records of last year are copied: their timestamps do not show when their producer was active."""
    leader, network = directed.leader, directed.world.network
    runtime = directed.cluster.client_runtime()
    async with Producer(
        bootstrap_servers=directed.cluster.bootstrap_servers, request_timeout_ms=3_000, runtime=runtime
    ) as producer:
        answers = network.hold(host(leader), "client", responses(ApiKey.PRODUCE))
        sending = asyncio.create_task(producer.send_and_wait(TOPIC, b"all-old", partition=0, timestamp_ms=1))
        await answers.caught()
        for broker_id in directed.cluster.broker_ids:
            log = directed.replica(broker_id).log
            await directed.until(lambda log=log: log.log_end_offset == 1, "the copy")  # type: ignore[misc]
            log.expire_producers(log.health.clock.now_ms())
        answers.drop()
        found = await sending
        assert found.offset is not None
        directed.history.acked[FIRST, found.offset] = b"all-old"


# -------------------------------------------------------------------------------------------- two of one identity
def _produce(batch: bytearray) -> ProduceRequest:
    data = ProducePartition(index=FIRST.partition, records=batch)
    return ProduceRequest(topic_data=[ProduceTopic(name=TOPIC, partition_data=[data])])


async def _impostor_sends(directed: DirectedRun, count: int) -> list[ProducePartitionResponse]:
    """A client guesses the producer id (ids are consecutive), and continues that producer's sequence."""
    [(producer_id, state)] = list(directed.replica(directed.leader).log.producers)
    answers = []
    for sequence in range(1, 1 + count):
        batch = build_batch(
            [(None, b"impostor-%d" % sequence, 0, ())],
            producer_id=producer_id,
            producer_epoch=state.producer_epoch,
            base_sequence=sequence,
        )
        reply = await send_to(directed, directed.leader, _produce(batch))
        assert isinstance(reply, ProduceResponse)
        answers += reply.responses[0].partition_responses
    return answers


@with_setup(ClusterSetup())
async def another_producer_has_the_sequence(directed: DirectedRun) -> None:
    """Its batch has our sequence, and is remembered."""
    await directed.produce("first")
    [answer] = await _impostor_sends(directed, 1)
    assert not answer.error_code, answer.error_message
    await directed.produce("ours")
    await directed.produce("afterwards")


@with_setup(ClusterSetup())
async def another_producer_ran_far_ahead(directed: DirectedRun) -> None:
    """Its batch has our sequence, and is forgotten: a broker can only answer that ours is older than it remembers."""
    await directed.produce("first")
    await _impostor_sends(directed, BATCHES_REMEMBERED + 2)
    await directed.produce("ours")
    await directed.produce("afterwards")


@with_setup(ClusterSetup())
async def producer_sends_undecodable_records(directed: DirectedRun) -> None:
    """A foreign client with a bug: the CRC is right, the records are not."""
    await directed.produce("first")
    broken = undecodable(build_batch([(None, b"x", 0, ())]))
    await send_to(directed, directed.leader, _produce(broken))
    await directed.produce("afterwards")
    async with directed.workload.consumer() as consumer:
        consumer.assign([FIRST])
        found: list[bytes] = []
        try:
            while b"all-afterwards" not in found:
                found.append((await consumer.getone(timeout_ms=5_000)).value or b"")
        except MinibrokerError as error:
            report(directed, "I22", f"a consumer stops behind {found}: {error}")


@with_setup(ClusterSetup(brokers=1, topics={TOPIC: (1, 1, 1)}, settings={"log.segment.bytes": "4096"}))
async def older_snapshot_comes_back(directed: DirectedRun) -> None:
    """While a broker is stopped, the newest snapshot of its producers becomes the one before it. Then batches that were
    written are sent again."""

    async def send(sequence: int) -> ProducePartitionResponse:
        record = (None, f"{sequence}{PADDING}".encode(), 0, ())
        batch = build_batch([record], producer_id=900, producer_epoch=0, base_sequence=sequence)
        reply = await send_to(directed, directed.leader, _produce(batch))
        assert isinstance(reply, ProduceResponse)
        return reply.responses[0].partition_responses[0]

    for number in range(RECORDS):
        written = await send(number)
        assert (written.error_code, written.base_offset) == (0, number)
    leader = directed.leader
    directory = directed.replica(leader).log.directory
    directed.cluster.stop(leader)
    await directed.until(lambda: not directed.cluster.alive(), "its end")
    files = directed.world.machine(host(leader)).storage.files(directory)
    *_, older, newest = sorted(path for path, _ in files if path.endswith(SNAPSHOT_SUFFIX))
    storage = directed.world.machine(host(leader)).storage
    storage.find_file(newest).content[:] = storage.find_file(older).content
    directed.cluster.start(leader)
    await directed.until(lambda: directed.cluster.leader(TOPIC) == leader, "it leads again")
    await asyncio.sleep(1.0)
    for number in range(RECORDS - BATCHES_REMEMBERED, RECORDS):
        again = await send(number)
        if (again.error_code, again.base_offset) != (0, number):
            text = f"sequence {number} again: error {again.error_code}, offset {again.base_offset}, not {number}"
            report(directed, "I25", text)
