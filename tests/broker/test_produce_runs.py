"""Several batches of a partition in one request (decision 0012): answered as if sent one by one, written at once."""

import asyncio
from collections.abc import Sequence

import pytest

from minibroker.broker.log.partition_log import PartitionLog
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.record_batch import BatchHeader, build_batch, iterate_headers
from minibroker.protocol.wire import messages as m
from minibroker.runtime.ports import Buffer
from tests.broker.requests import TOPIC, ClusterClient, in_cluster

PRODUCER, OTHER_PRODUCER = 7, 8


def batch(sequence: int, records: int = 2, producer: int = PRODUCER, epoch: int = 0) -> bytearray:
    values = [(None, b"%d of %d" % (sequence + index, producer), 1_000, ()) for index in range(records)]
    return build_batch(values, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def without_identity() -> bytearray:
    return batch(-1, producer=-1, epoch=-1)


def corrupt(sequence: int) -> bytearray:
    records = batch(sequence)
    records[-1] ^= 1
    return records


MIXTURES = {
    "all new": [batch(0), batch(2), batch(4)],
    "repeated at the front": [batch(0), batch(2), batch(0), batch(2), batch(4), batch(6)],
    "repeated behind new ones": [batch(0), batch(2), batch(0), batch(4)],
    "one twice in a row": [batch(0), batch(0), batch(2)],
    "a gap": [batch(0), batch(4), batch(6)],
    "a gap that closes": [batch(0), batch(4), batch(2), batch(4)],
    "a corrupt one in the middle": [batch(0), corrupt(2), batch(4)],
    "a corrupt one that is sent again": [batch(0), corrupt(2), batch(2), batch(4)],
    "one that is too large in the middle": [batch(0), batch(2, records=300), batch(302)],
    "two producers by turns": [
        batch(0),
        batch(0, producer=OTHER_PRODUCER),
        batch(2),
        batch(2, producer=OTHER_PRODUCER),
    ],
    "a newer epoch": [batch(0), batch(2), batch(0, epoch=1), batch(2, epoch=1), batch(4)],
    "a newer epoch that does not begin at 0": [batch(0), batch(2, epoch=1), batch(2)],
    "never seen, and in the middle of its sequence": [batch(2), batch(4), batch(0), batch(2)],
    "no identities": [without_identity(), corrupt(-1), without_identity()],
    "no identity between": [batch(0), without_identity(), batch(2)],
}


def kept(batches: Sequence[bytearray]) -> list[bytearray]:
    """Each once, in the order in which it came first."""
    return [each for number, each in enumerate(batches) if each not in batches[:number]]


def request(batches: Sequence[bytearray], acks: int) -> m.ProduceRequest:
    parts = [m.ProducePartition(index=0, records=bytearray(each)) for each in batches]
    return m.ProduceRequest(acks=acks, topic_data=[m.ProduceTopic(name=TOPIC, partition_data=parts)])


async def produce(client: ClusterClient, batches: Sequence[bytearray], acks: int = -1) -> list[tuple[int, int]]:
    reply = await client.ask(client.leader, request(batches, acks), m.ProduceResponse)
    return [(each.error_code, each.base_offset) for each in reply.responses[0].partition_responses]


def written(client: ClusterClient, broker_id: int) -> list[tuple[int, int, int, int]]:
    """(base offset, records, producer, sequence) of each batch in that log."""
    replica = client.cluster.replica(broker_id, TOPIC)
    assert replica is not None
    parts = replica.log.read(0, 1 << 20, replica.log.log_end_offset).parts
    headers = [header for part in parts for _, header in iterate_headers(part)]
    return [(h.base_offset, h.record_count, h.producer_id, h.base_sequence) for h in headers]


@pytest.mark.invariant("I24", "I25")
@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("mixture", MIXTURES.values(), ids=MIXTURES)
def test_batches_in_one_request_are_answered_and_written_as_if_sent_one_by_one(
    mixture: list[bytearray], acks: int
) -> None:
    seen = []
    for is_together in (False, True):

        async def check(client: ClusterClient, is_together: bool = is_together) -> None:
            if is_together:
                answers = await produce(client, mixture, acks)
            else:
                answers = [answer for each in mixture for answer in await produce(client, [each], acks)]
            seen.append((answers, written(client, client.leader)))

        in_cluster(check, {"message.max.bytes": "2048"})
    assert seen[0] == seen[1]


def test_batches_that_continue_one_another_are_appended_and_answered_together(monkeypatch: pytest.MonkeyPatch) -> None:
    appends: list[int] = []
    append = PartitionLog.append

    def counted(log: PartitionLog, batches: Sequence[tuple[BatchHeader, Buffer]]) -> None:
        appends.append(len(batches))
        append(log, batches)

    monkeypatch.setattr(PartitionLog, "append", counted)

    async def check(client: ClusterClient) -> None:
        for follower in client.followers:
            client.cluster.world.pause(f"broker-{follower}")
        waiting = asyncio.create_task(produce(client, [batch(0), batch(2), batch(4)]))
        leader = client.cluster.replica(client.leader, TOPIC)
        assert leader is not None
        await client.cluster.until(lambda: leader.log.log_end_offset == 6, what="the append")
        assert appends == [3]
        assert len(leader.state.waiters) == 1
        for follower in client.followers:
            client.cluster.world.resume(f"broker-{follower}")
        assert await waiting == [(0, 0), (0, 2), (0, 4)]

    in_cluster(check)


@pytest.mark.parametrize(("mixture", "batches", "records"), [("repeated at the front", 4, 8), ("a gap", 1, 2)])
def test_what_a_leader_appended_is_counted_and_nothing_else(mixture: str, batches: int, records: int) -> None:
    async def check(client: ClusterClient) -> None:
        await produce(client, MIXTURES[mixture])
        counters = client.cluster.brokers[client.leader].counters
        found = (counters.batches_in, counters.records_in, counters.bytes_in)
        assert found == (batches, records, sum(len(each) for each in kept(MIXTURES[mixture])[:batches]))
        await client.cluster.until(lambda: written(client, client.followers[0]) != [], what="a copy")
        follower = client.cluster.brokers[client.followers[0]].counters
        assert (follower.batches_in, follower.records_in, follower.bytes_in) == (0, 0, 0)

    in_cluster(check)


@pytest.mark.invariant("I12", "I24")
def test_a_failed_append_leaves_no_batch_and_answers_each() -> None:
    async def check(client: ClusterClient) -> None:
        assert await produce(client, [batch(0)]) == [(0, 0)]
        full = client.leader
        storage = client.cluster.world.machine(f"broker-{full}").storage
        storage.fail("append", is_full=True)
        refused = [(ErrorCode.KAFKA_STORAGE_ERROR, -1)] * 3
        answers = await produce(client, [batch(2), batch(4), batch(6)], acks=1)
        assert answers == refused
        storage.heal()
        await client.cluster.until(lambda: client.cluster.leader(TOPIC) not in (None, full), 5, what="another leader")
        assert await produce(client, [batch(2), batch(4), batch(6)]) == [(0, 2), (0, 4), (0, 6)]
        await client.cluster.until(lambda: client.cluster.in_sync_replicas(TOPIC) == (1, 2, 3), what="a full ISR again")
        assert written(client, full) == written(client, client.leader)

    in_cluster(check)


@pytest.mark.invariant("I26")
def test_each_batch_of_a_timed_out_request_fails_and_its_retry_is_a_duplicate() -> None:
    async def check(client: ClusterClient) -> None:
        for follower in client.followers:
            client.cluster.world.pause(f"broker-{follower}")
        body = request([batch(0), batch(2)], acks=-1)
        late = m.ProduceRequest(acks=-1, timeout_ms=500, topic_data=body.topic_data)
        reply = await client.ask(client.leader, late, m.ProduceResponse)
        codes = [each.error_code for each in reply.responses[0].partition_responses]
        assert codes == [ErrorCode.REQUEST_TIMED_OUT] * 2
        for follower in client.followers:
            client.cluster.world.resume(f"broker-{follower}")
        assert await produce(client, [batch(0), batch(2), batch(4)]) == [(0, 0), (0, 2), (0, 4)]

    in_cluster(check)
