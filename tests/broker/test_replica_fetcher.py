"""What a follower reports in its fetches."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.replica_fetcher import FetcherConfig, ReplicaFetcher
from minibroker.broker.replication.state import Fetching, ReplicaState, ReplicationConfig, Role
from minibroker.protocol.ids import TopicPartition

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
        network=cast(Any, None), leader_id=1, address=lambda _: None, broker_epoch=lambda: 7, config=config
    )


def _follower(flushes: bool, synced_end: int) -> Any:
    state = ReplicaState(
        config=ReplicationConfig(broker_id=2, vote_with_synced_end=flushes),
        role=Role.FOLLOWER,
        leader_id=1,
        leader_epoch=0,
        phase=Fetching(),
        log_end_offset=5,
        synced_end_offset=synced_end,
    )
    return SimpleNamespace(topic_partition=PARTITION, state=state)


@pytest.mark.parametrize(("flushes", "synced_end", "is_listed"), [(True, 3, False), (True, 5, True), (False, 0, True)])
def test_a_new_connection_reports_no_end_that_must_not_count_yet(
    flushes: bool, synced_end: int, is_listed: bool
) -> None:
    fetcher = _fetcher()
    fetcher.partitions[PARTITION] = _follower(flushes, synced_end)
    fetcher._ask_anew()
    assert (PARTITION in fetcher._take_positions()) is is_listed
