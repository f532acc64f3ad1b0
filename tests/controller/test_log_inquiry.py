"""Asking a broker for its logs: an answer that does not decode affects only the partition that causes it."""

from __future__ import annotations

import pytest

from minibroker.controller.core.controller_state import ReplicaLog
from minibroker.controller.log_inquiry import ask_logs
from minibroker.protocol.ids import BrokerEpoch, TopicPartition
from minibroker.protocol.wire.messages import (
    TEXT_MAX,
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    ReplicaLogInfo,
    ReplicaLogInfoTopic,
)
from minibroker.runtime.server.server import IncomingRequest, RpcServer
from minibroker.simulation.world.world import SimulatedWorld
from tests import authenticated

EPOCH = BrokerEpoch(7)
SPOILED = TopicPartition("t", 2)
ALL = [TopicPartition("t", number) for number in range(5)]


class Answering:
    """A broker that gives answers about one partition that do not decode."""

    def __init__(self, spoiled: TopicPartition | None, spoiled_times: int) -> None:
        self.spoiled, self.times = spoiled, spoiled_times
        self.asked: list[int] = []

    def handle(self, incoming: IncomingRequest) -> None:
        body = incoming.body
        assert isinstance(body, GetReplicaLogInfoRequest)
        self.asked.append(sum(len(topic.partitions) for topic in body.topics))
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
        if partition == self.spoiled and self.times:
            self.times -= 1
            damage = "x" * (TEXT_MAX + 1)
        return ReplicaLogInfo(
            partition=partition.partition, exists=True, damage=damage, log_end_offset=partition.partition
        )


@pytest.mark.parametrize("times", [1, 10_000])
def test_one_partition_does_not_spoil_the_answers_about_others(times: int, caplog: pytest.LogCaptureFixture) -> None:
    world, broker = SimulatedWorld(), Answering(SPOILED, times)

    async def ask() -> dict[TopicPartition, ReplicaLog]:
        server = RpcServer(world.runtime("broker").network, authenticated.Answering(2, broker.handle))
        await server.start("broker", 9092, "INTERNAL")
        dialer = authenticated.dialer(world.runtime("controller").network, 1)
        try:
            return await ask_logs(dialer, "controller", 2, ("broker", 9092), EPOCH, ALL)
        finally:
            await server.stop()

    logs = world.run(ask())
    assert sorted(logs) == ALL
    assert [logs[each].log_end_offset for each in ALL if each != SPOILED] == [0, 1, 3, 4]
    assert (logs[SPOILED].unavailable is None) == (times == 1)
    assert logs[SPOILED].damage is None
    assert broker.asked[0] == len(ALL)
    assert set(broker.asked[1:]) == {1}
    assert "broker:9092" in caplog.text
