"""The answers to Fetch, ListOffsets and OffsetForLeaderEpoch, for consumers and followers."""

import asyncio

import pytest

from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.record_batch import decode_records, iterate_headers
from minibroker.protocol.wire import messages as m
from tests.broker.requests import TOPIC, ClusterClient, batch, in_cluster


@pytest.mark.invariant("I22")
def test_a_consumer_reads_below_the_high_watermark_only() -> None:
    async def check(client: ClusterClient) -> None:
        await client.produce(records=batch(b"a"))
        for follower in client.followers:
            client.cluster.world.pause(f"broker-{follower}")
        assert (await client.produce(records=batch(b"b"), acks=1)).base_offset == 1
        fetched = await client.fetch()
        assert [r.value for r in decode_records(fetched.records)] == [b"a"]
        assert fetched.high_watermark == 1
        assert not (await client.fetch(offset=1)).records

    in_cluster(check)


def test_a_waiting_fetch_is_answered_by_the_next_record() -> None:
    async def check(client: ClusterClient) -> None:
        waiting = asyncio.create_task(client.fetch(wait_ms=20_000))
        await asyncio.sleep(1)
        assert not waiting.done()
        await client.produce(records=batch(b"news"))
        async with asyncio.timeout(1):
            fetched = await waiting
        assert decode_records(fetched.records)[0].value == b"news"

    in_cluster(check)


def test_a_waiting_fetch_ends_at_its_deadline_with_nothing() -> None:
    async def check(client: ClusterClient) -> None:
        begun = asyncio.get_running_loop().time()
        fetched = await client.fetch(wait_ms=2_000)
        assert 2 <= asyncio.get_running_loop().time() - begun < 2.5
        assert (fetched.error_code, len(fetched.records)) == (0, 0)

    in_cluster(check)


def test_a_waiting_fetch_ends_when_leadership_moves() -> None:
    async def check(client: ClusterClient) -> None:
        waiting = asyncio.create_task(client.fetch(wait_ms=20_000))
        await asyncio.sleep(0.5)
        client.cluster.world.zookeeper.cut(f"broker-{client.leader}")
        async with asyncio.timeout(6):
            assert (await waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    in_cluster(check)


def test_the_first_batch_comes_whole_however_large() -> None:
    async def check(client: ClusterClient) -> None:
        await client.produce(records=batch(b"x" * 50_000))
        item = m.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
        body = m.FetchRequest(max_bytes=500, topics=[m.FetchTopic(topic=TOPIC, partitions=[item])])
        reply = await client.ask(client.leader, body, m.FetchResponse)
        assert decode_records(reply.responses[0].partitions[0].records)[0].value == b"x" * 50_000

    in_cluster(check)


def test_offsets_beyond_the_log_are_out_of_range() -> None:
    async def check(client: ClusterClient) -> None:
        assert (await client.fetch(offset=5)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    in_cluster(check)


@pytest.mark.invariant("I29")
@pytest.mark.parametrize(("epoch", "code"), [(0, ErrorCode.FENCED_LEADER_EPOCH), (9, ErrorCode.UNKNOWN_LEADER_EPOCH)])
def test_another_leader_epoch_is_fenced(epoch: int, code: ErrorCode) -> None:
    async def check(client: ClusterClient) -> None:
        client.cluster.kill(client.leader)
        await client.cluster.until(lambda: client.cluster.leader(TOPIC) is not None, what="a new leader")
        assert (await client.fetch(epoch=epoch)).error_code == code

    in_cluster(check)


def test_a_fetch_from_outside_the_assignment_is_refused() -> None:
    async def check(client: ClusterClient) -> None:
        answer = await client.fetch(replica_id=77, epoch=0)
        assert answer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        leader = client.cluster.replica(client.leader, TOPIC)
        assert leader is not None
        assert 77 not in leader.state.remotes

    in_cluster(check)


@pytest.mark.invariant("I31")
def test_a_fetch_of_an_older_incarnation_is_refused() -> None:
    async def check(client: ClusterClient) -> None:
        follower = client.followers[0]
        item = m.FetchPartition(partition=0, fetch_offset=0, current_leader_epoch=0)
        body = m.FetchRequest(
            replica_id=follower,
            replica_epoch=client.broker_epoch(follower) - 1,
            max_wait_ms=0,
            topics=[m.FetchTopic(topic=TOPIC, partitions=[item])],
        )
        reply = await client.ask(client.leader, body, m.FetchResponse)
        assert reply.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    in_cluster(check)


def test_a_fetch_for_another_topic_of_the_same_name_is_refused() -> None:
    """KIP-516: positions in a deleted topic mean nothing in a later topic of the same name."""

    async def check(client: ClusterClient) -> None:
        item = m.FetchPartition(partition=0, fetch_offset=0)
        topic_id = (await client.ask(client.leader, m.MetadataRequest(), m.MetadataResponse)).topics[0].topic_id
        for named, code in (("", 0), (topic_id, 0), ("another", ErrorCode.INCONSISTENT_TOPIC_ID)):
            topic = m.FetchTopic(topic=TOPIC, topic_id=named, partitions=[item])
            reply = await client.ask(client.leader, m.FetchRequest(max_wait_ms=0, topics=[topic]), m.FetchResponse)
            assert reply.responses[0].partitions[0].error_code == code

    in_cluster(check)


@pytest.mark.invariant("I5")
def test_a_followers_position_in_another_topic_of_the_same_name_does_not_count() -> None:
    """A slow fetch for a deleted topic raised the high watermark of the next one, whose epochs are the same: records
    were acknowledged that the follower did not hold."""

    async def check(client: ClusterClient) -> None:
        for follower in client.followers:
            client.cluster.world.pause(f"broker-{follower}")
        assert (await client.produce(records=batch(b"a"), acks=1)).base_offset == 0
        for named, high_watermark in (("another", 0), ("", 1)):
            for follower in client.followers:
                item = m.FetchPartition(partition=0, fetch_offset=1, current_leader_epoch=0)
                body = m.FetchRequest(
                    replica_id=follower,
                    replica_epoch=client.broker_epoch(follower),
                    session_epoch=0,
                    max_wait_ms=0,
                    topics=[m.FetchTopic(topic=TOPIC, topic_id=named, partitions=[item])],
                )
                reply = await client.ask(client.leader, body, m.FetchResponse)
                answers = [each.error_code for topic in reply.responses for each in topic.partitions]
                assert answers == [ErrorCode.INCONSISTENT_TOPIC_ID if named else 0]
            assert (await client.fetch()).high_watermark == high_watermark

    in_cluster(check)


def test_the_ends_of_another_topic_of_the_same_name_are_not_told() -> None:
    async def check(client: ClusterClient) -> None:
        topic_id = (await client.ask(client.leader, m.MetadataRequest(), m.MetadataResponse)).topics[0].topic_id
        for named, code in (("", 0), (topic_id, 0), ("another", ErrorCode.INCONSISTENT_TOPIC_ID)):
            for timestamp in (m.EARLIEST_TIMESTAMP, 7):
                item = m.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
                topic = m.ListOffsetsTopic(name=TOPIC, topic_id=named, partitions=[item])
                reply = await client.ask(client.leader, m.ListOffsetsRequest(topics=[topic]), m.ListOffsetsResponse)
                assert reply.topics[0].partitions[0].error_code == code

    in_cluster(check)


def test_an_unknown_session_is_refused() -> None:
    async def check(client: ClusterClient) -> None:
        follower = client.followers[0]
        epoch = client.broker_epoch(follower)
        body = m.FetchRequest(replica_id=follower, replica_epoch=epoch, session_id=4711, session_epoch=3)
        reply = await client.ask(client.leader, body, m.FetchResponse)
        assert reply.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    in_cluster(check)


@pytest.mark.invariant("I23")
def test_offsets_are_listed_by_place_and_by_time() -> None:
    async def check(client: ClusterClient) -> None:
        for second in range(1, 6):
            await client.produce(records=batch(b"v", timestamp_ms=second * 1_000))
        assert (await client.list_offset(m.EARLIEST_TIMESTAMP)).offset == 0
        assert (await client.list_offset(m.LATEST_TIMESTAMP)).offset == 5
        assert (await client.list_offset(3_000)).offset == 2
        assert (await client.list_offset(2_001)).offset == 2
        assert (await client.list_offset(9_000)).offset == -1

    in_cluster(check)


def test_latest_is_the_high_watermark_for_consumers_and_the_end_for_followers() -> None:
    async def check(client: ClusterClient) -> None:
        follower = client.followers[0]
        for broker_id in client.followers:
            client.cluster.world.pause(f"broker-{broker_id}")
        await client.produce(acks=1)
        assert (await client.list_offset(m.LATEST_TIMESTAMP)).offset == 0
        assert (await client.list_offset(m.LATEST_TIMESTAMP, replica_id=follower)).offset == 1

    in_cluster(check)


@pytest.mark.invariant("I29")
@pytest.mark.parametrize("question", ["produce", "fetch", "offset", "epoch end"])
def test_a_leader_whose_session_may_be_over_answers_nothing(question: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another broker may lead and have committed more: whatever is asked first finds the fence."""

    async def check(client: ClusterClient) -> None:
        await client.produce()
        broker = client.cluster.brokers[client.leader]
        monkeypatch.setattr(broker.manager.registration, "is_fenced", lambda: True)
        item = m.OffsetForLeaderPartition(partition=0, current_leader_epoch=0, leader_epoch=0)
        body = m.OffsetForLeaderEpochRequest(topics=[m.OffsetForLeaderTopic(topic=TOPIC, partitions=[item])])
        if question == "produce":
            code = (await client.produce()).error_code
        elif question == "fetch":
            code = (await client.fetch()).error_code
        elif question == "offset":
            code = (await client.list_offset(m.LATEST_TIMESTAMP)).error_code
        else:
            answer = await client.ask(client.leader, body, m.OffsetForLeaderEpochResponse)
            code = answer.topics[0].partitions[0].error_code
        assert code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    in_cluster(check)


def test_only_the_leader_answers_where_an_epoch_ended() -> None:
    async def check(client: ClusterClient) -> None:
        await client.produce(records=batch(b"a", b"b"))
        item = m.OffsetForLeaderPartition(partition=0, current_leader_epoch=0, leader_epoch=0)
        body = m.OffsetForLeaderEpochRequest(topics=[m.OffsetForLeaderTopic(topic=TOPIC, partitions=[item])])
        answer = (await client.ask(client.leader, body, m.OffsetForLeaderEpochResponse)).topics[0].partitions[0]
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, 0, 2)
        other = (await client.ask(client.followers[0], body, m.OffsetForLeaderEpochResponse)).topics[0].partitions[0]
        assert other.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    in_cluster(check)


def test_question_about_another_topic_of_the_same_name_is_refused() -> None:
    """Where an epoch ended in a later topic of this name says nothing of a deleted one."""

    async def check(client: ClusterClient) -> None:
        await client.produce(records=batch(b"a", b"b"))
        item = m.OffsetForLeaderPartition(partition=0, current_leader_epoch=0, leader_epoch=0)
        topic_id = (await client.ask(client.leader, m.MetadataRequest(), m.MetadataResponse)).topics[0].topic_id
        for named, code in (("", 0), (topic_id, 0), ("another", ErrorCode.INCONSISTENT_TOPIC_ID)):
            topic = m.OffsetForLeaderTopic(topic=TOPIC, topic_id=named, partitions=[item])
            body = m.OffsetForLeaderEpochRequest(topics=[topic])
            reply = await client.ask(client.leader, body, m.OffsetForLeaderEpochResponse)
            assert reply.topics[0].partitions[0].error_code == code

    in_cluster(check)


@pytest.mark.invariant("I12", "I20")
def test_replicas_hold_the_leaders_bytes_with_its_epoch_stamped() -> None:
    async def check(client: ClusterClient) -> None:
        for value in (b"a", b"b", b"c"):
            await client.produce(records=batch(value))
        await client.cluster.until(lambda: len({_bytes(client, b) for b in (1, 2, 3)}) == 1, what="equal replicas")
        headers = [header for _, header in iterate_headers(_bytes(client, 1))]
        assert [(h.base_offset, h.partition_leader_epoch) for h in headers] == [(0, 0), (1, 0), (2, 0)]

    in_cluster(check)


def _bytes(client: ClusterClient, broker_id: int) -> bytes:
    replica = client.cluster.replica(broker_id, TOPIC)
    assert replica is not None
    return b"".join(bytes(part) for part in replica.log.read(0, 1 << 20, replica.log.log_end_offset).parts)


def test_followers_learn_the_last_high_watermark_soon_after_the_last_record() -> None:
    async def check(client: ClusterClient) -> None:
        await client.produce()
        await asyncio.sleep(0.1)
        high_watermarks = [
            replica.state.high_watermark for b in (1, 2, 3) if (replica := client.cluster.replica(b, TOPIC))
        ]
        assert high_watermarks == [1, 1, 1]

    in_cluster(check)
