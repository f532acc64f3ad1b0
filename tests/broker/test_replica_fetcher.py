"""The positions that a follower reports in its fetches."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.replicas.replica_fetcher import FetcherConfig, ReplicaFetcher
from minibroker.broker.replication.events import FetchAnswered
from minibroker.broker.replication.state import Fetching, ReplicaState, ReplicationConfig, Role
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.messages import FetchPartitionResponse, FetchRequest, FetchResponse, FetchTopicResponse
from minibroker.runtime.observer import UNOBSERVED

PARTITION = TopicPartition("a", 0)


def _fetcher() -> ReplicaFetcher:
    config = FetcherConfig(
        broker_id=2,
        max_wait_ms=500,
        min_bytes=1,
        partition_max_bytes=1_000,
        response_max_bytes=1_000,
        socket_timeout_ms=1_000,
    )
    return ReplicaFetcher(
        dialer=cast(Any, None),
        leader_id=1,
        address=lambda _: None,
        leader_registration=lambda _: 20,
        on_refused=lambda leader_id, registration: None,
        broker_epoch=lambda: 7,
        config=config,
        observer=UNOBSERVED,
    )


def _follower(flushes: bool, synced_end: int) -> Any:
    state = ReplicaState(
        config=ReplicationConfig(broker_id=2, counts_only_synced=flushes),
        role=Role.FOLLOWER,
        leader_id=1,
        leader_epoch=0,
        phase=Fetching(),
        log_end_offset=5,
        synced_end_offset=synced_end,
    )
    log = SimpleNamespace(recorded_start_offset=0)
    return SimpleNamespace(topic_partition=PARTITION, state=state, log=log)


@pytest.mark.parametrize(("flushes", "synced_end", "is_listed"), [(True, 3, False), (True, 5, True), (False, 0, True)])
async def test_a_new_connection_does_not_report_an_unsynced_end(
    flushes: bool, synced_end: int, is_listed: bool
) -> None:
    fetcher = _fetcher()
    fetcher.partitions[PARTITION] = _follower(flushes, synced_end)
    fetcher._list_all_again()
    assert (PARTITION in fetcher._take_positions()) is is_listed


class Wire:
    """A connection that keeps what is sent, and answers when the test says so."""

    closed = False

    def __init__(self) -> None:
        self.answers: list[Callable[[FetchResponse], None]] = []

    def send(self, body: FetchRequest, on_reply: Callable[[FetchResponse], None]) -> None:
        self.answers.append(on_reply)


async def test_a_reply_does_not_answer_what_a_later_request_asked() -> None:
    """A fetch of epoch 0 is refused as fenced while one of epoch 1 is on its way: the new epoch is not fenced."""
    received: list[FetchAnswered] = []
    follower = _follower(flushes=False, synced_end=0)
    follower.handle_fetched = lambda event, _: received.append(event)
    fetcher, wire = _fetcher(), Wire()
    fetcher._connection = cast(Any, wire)
    fetcher.partitions[PARTITION] = follower

    fetcher._list_all_again()
    fetcher._send_fetch(cast(Any, wire))
    follower.state.leader_epoch = 1
    fetcher._list_all_again()
    fetcher._send_fetch(cast(Any, wire))
    refused = FetchPartitionResponse(partition_index=0, error_code=ErrorCode.FENCED_LEADER_EPOCH)
    wire.answers[0](FetchResponse(responses=[FetchTopicResponse(topic="a", partitions=[refused])]))
    assert not received
    granted = FetchPartitionResponse(partition_index=0, high_watermark=3)
    wire.answers[1](FetchResponse(responses=[FetchTopicResponse(topic="a", partitions=[granted])]))
    assert [(event.leader_epoch, event.error_code, event.high_watermark) for event in received] == [
        (1, ErrorCode.NONE, 3)
    ]


async def test_the_next_fetch_is_sent_in_the_callback_of_the_last_reply() -> None:
    """A loop iteration in between would delay every acknowledgement."""
    follower = _follower(flushes=False, synced_end=0)
    fetcher, wire = _fetcher(), Wire()

    def append(event: FetchAnswered, _: object) -> None:
        follower.state.log_end_offset += 1
        fetcher.fetch_next(follower)

    follower.handle_fetched = append
    fetcher._connection = cast(Any, wire)
    fetcher.partitions[PARTITION] = follower
    fetcher._list_all_again()
    fetcher._send_fetch(cast(Any, wire))
    granted = FetchPartitionResponse(partition_index=0, high_watermark=3)
    wire.answers[0](FetchResponse(responses=[FetchTopicResponse(topic="a", partitions=[granted])]))
    assert len(wire.answers) == 2
