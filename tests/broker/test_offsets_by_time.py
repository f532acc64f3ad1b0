"""Look-ups by time take turns: a request for thousands of them holds up no other client of the broker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.requests import offset_requests
from minibroker.broker.requests.handlers import LOOKUPS_TASKS_MAX
from minibroker.broker.requests.offset_requests import OffsetsByTime
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tests.broker.loop_turns import turns_during
from tests.broker.requests import TOPIC, ClusterClient, in_cluster


class Lookups:
    """Notes what is looked up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[tuple[str, int]] = []
        self.fence_checks = 0
        names = [TopicPartition(name, n) for name in "ab" for n in range(50)]
        partitions = {name: SimpleNamespace(topic_partition=name, is_of_topic=lambda _: True) for name in names}
        manager = SimpleNamespace(partitions=partitions, check_fence=self._check_fence)
        self.all = OffsetsByTime(cast(Any, manager))
        monkeypatch.setattr(offset_requests, "_list_offsets", self._list_offsets)

    def _check_fence(self) -> None:
        self.fence_checks += 1

    def _list_offsets(
        self, _: object, partition: Any, asked: ListOffsetsPartition, is_follower: bool
    ) -> ListOffsetsPartitionResponse:
        self.done.append(partition.topic_partition)
        return ListOffsetsPartitionResponse(partition_index=asked.partition_index, offset=7)

    async def answer(self, name: str, *timestamps: int) -> list[ListOffsetsPartitionResponse]:
        (topic,) = (await self.all.answer(by_time(name, *timestamps))).topics
        assert topic.name == name
        return topic.partitions


def by_time(name: str, *timestamps: int) -> ListOffsetsRequest:
    partitions = [ListOffsetsPartition(partition_index=n, timestamp=at) for n, at in enumerate(timestamps)]
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name=name, partitions=partitions)])


async def test_others_run_before_each_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request may ask for ten thousand, and each may decode a whole batch: a broker was silent for a minute."""
    lookups = Lookups(monkeypatch)
    answering = asyncio.ensure_future(lookups.answer("a", *[1_000] * 50))
    assert await turns_during(answering) >= 50
    assert [each.offset for each in answering.result()] == [7] * 50
    assert lookups.fence_checks == 50, "the broker may lose its leaderships meanwhile"


async def test_requests_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = Lookups(monkeypatch)
    await asyncio.gather(lookups.answer("a", *[1_000] * 20), lookups.answer("b", *[1_000] * 2))
    assert lookups.done.index(("b", 1)) <= 4


async def test_the_ends_of_a_log_take_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = Lookups(monkeypatch)
    answering = lookups.answer("a", EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, 1_000)
    task = asyncio.create_task(answering)
    await asyncio.sleep(0)
    assert lookups.done == [("a", 0), ("a", 1)]
    assert len(await task) == 3


async def test_a_request_that_took_too_long_is_refused_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client has given up, and others wait for their turns."""
    lookups = Lookups(monkeypatch)
    monkeypatch.setattr(offset_requests, "LOOKUPS_SECONDS_MAX", -1.0)
    answers = await lookups.answer("a", EARLIEST_TIMESTAMP, 1_000)
    assert [each.error_code for each in answers] == [ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT]
    assert lookups.done == [("a", 0)]


async def test_what_is_refused_because_it_took_too_long_takes_no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred requests of ten thousand each took turns for minutes after their clients had given up."""
    lookups = Lookups(monkeypatch)
    monkeypatch.setattr(offset_requests, "LOOKUPS_SECONDS_MAX", -1.0)
    assert await turns_during(asyncio.ensure_future(lookups.answer("a", *[1_000] * 50))) <= 3


def test_so_many_requests_with_look_ups_are_under_way_and_others_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(client: ClusterClient) -> None:
        async def never(lookups: OffsetsByTime, body: ListOffsetsRequest) -> None:
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            patch.setattr(OffsetsByTime, "answer", never)
            ask = [client.ask(client.leader, by_time(TOPIC, 1_000), ListOffsetsResponse) for _ in range(200)]
            waiting = [asyncio.create_task(each) for each in ask]
            await asyncio.sleep(1)
            assert len(waiting) == LOOKUPS_TASKS_MAX and not any(task.done() for task in waiting)
            refused = await (await client.connection(client.leader)).request(by_time(TOPIC, 1_000), 1_000)
            assert refused.error_code == ErrorCode.REQUEST_TIMED_OUT
            assert (await client.list_offset(LATEST_TIMESTAMP)).offset == 0
        for task in waiting:
            task.cancel()

    in_cluster(check)


def test_a_bug_in_a_look_up_is_told_to_its_client_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(client: ClusterClient) -> None:
        async def broken(lookups: OffsetsByTime, body: ListOffsetsRequest) -> None:
            raise KeyError("x")

        with monkeypatch.context() as patch:
            patch.setattr(OffsetsByTime, "answer", broken)
            answer = await (await client.connection(client.leader)).request(by_time(TOPIC, 1_000), 1_000)
            assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert client.cluster.brokers[client.leader].failed_reads() == ["LIST_OFFSETS"]
        assert (await client.list_offset(1_000)).error_code == ErrorCode.NONE

    in_cluster(check)
