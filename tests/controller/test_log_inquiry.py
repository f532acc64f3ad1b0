"""Asking a broker for its logs: an answer that does not decode affects only the partition that causes it."""

from __future__ import annotations

import pytest

from minibroker.controller.core.controller_state import ReplicaLog
from minibroker.controller.log_inquiry import UNREADABLE_MAX, ask_logs
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import BrokerEpoch, TopicPartition
from minibroker.protocol.wire.messages import (
    TEXT_MAX,
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    ReplicaLogInfo,
    ReplicaLogInfoTopic,
    Response,
)
from minibroker.runtime.server.server import IncomingRequest, RpcServer
from minibroker.simulation.world.world import SimulatedWorld
from tests import authenticated

EPOCH = BrokerEpoch(7)
SPOILED = TopicPartition("t", 2)
ALL = [TopicPartition("t", number) for number in range(5)]


class Answering:
    """A broker that gives so many answers about these partitions that do not decode. With `refuses_first` it refuses
    every request on the first connection."""

    def __init__(self, spoiled_times: dict[TopicPartition, int], *, refuses_first: bool = False) -> None:
        self.times = spoiled_times
        self.asked: list[list[TopicPartition]] = []
        self.connections: list[object] = []
        self._refuses_first = refuses_first

    def handle(self, incoming: IncomingRequest) -> None:
        body = incoming.body
        assert isinstance(body, GetReplicaLogInfoRequest)
        if incoming.connection not in self.connections:
            self.connections.append(incoming.connection)
        if self._refuses_first and len(self.connections) == 1:
            incoming.respond(Response(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
            return
        self.asked.append(
            [TopicPartition(each.topic_name, number) for each in body.topics for number in each.partitions]
        )
        topics = [
            ReplicaLogInfoTopic(
                topic_name=topic.topic_name,
                partitions=[self._info(TopicPartition(topic.topic_name, number)) for number in topic.partitions],
            )
            for topic in body.topics
        ]
        incoming.respond(GetReplicaLogInfoResponse(broker_epoch=EPOCH, topics=topics))

    def _info(self, partition: TopicPartition) -> ReplicaLogInfo:
        damage = None
        if self.times.get(partition):
            self.times[partition] -= 1
            damage = "x" * (TEXT_MAX + 1)
        return ReplicaLogInfo(
            partition=partition.partition, exists=True, damage=damage, log_end_offset=partition.partition
        )


def asked(broker: Answering) -> dict[TopicPartition, ReplicaLog]:
    """What an inquiry about all partitions ends with."""
    world = SimulatedWorld()

    async def ask() -> dict[TopicPartition, ReplicaLog]:
        server = RpcServer(world.runtime("broker").network, authenticated.Answering(2, broker.handle))
        await server.start("broker", 9092, "INTERNAL")
        dialer = authenticated.dialer(world.runtime("controller").network, 1)
        try:
            return await ask_logs(dialer, "controller", 2, ("broker", 9092), EPOCH, ALL)
        finally:
            await server.stop()

    return world.run(ask())


@pytest.mark.parametrize("times", [1, 10_000])
def test_one_partition_does_not_spoil_the_answers_about_others(times: int, caplog: pytest.LogCaptureFixture) -> None:
    broker = Answering({SPOILED: times})
    logs = asked(broker)
    assert sorted(logs) == ALL
    assert [logs[each].log_end_offset for each in ALL if each != SPOILED] == [0, 1, 3, 4]
    assert (logs[SPOILED].unavailable is None) == (times == 1)
    assert logs[SPOILED].damage is None
    assert broker.asked[0] == ALL
    assert {len(each) for each in broker.asked[1:]} == {1}
    assert "broker:9092" in caplog.text


@pytest.mark.parametrize("spoiled", [ALL[0], SPOILED, ALL[-1]])
def test_each_partition_has_the_same_number_of_attempts_of_its_own(spoiled: TopicPartition) -> None:
    """Bytes may be corrupted on their way. The answer about all of them is no attempt, nor are those about others."""
    together = 1
    for after in (0, 1):
        left = {each: together + UNREADABLE_MAX - after for each in (spoiled, ALL[1])}
        broker = Answering(left)
        logs = asked(broker)
        for each in (spoiled, ALL[1]):
            assert broker.asked[1:].count([each]) == UNREADABLE_MAX
            assert (logs[each].unavailable is None) == (after == 1)


def test_after_a_refusal_a_broker_is_asked_over_another_connection() -> None:
    """The refusal may concern the connection: it keeps the credentials that it was opened with."""
    broker = Answering({}, refuses_first=True)
    assert sorted(asked(broker)) == ALL
    assert len(broker.connections) == 2
