"""Requests do not harm each other: queries that hit a bug, and task limits that are reached."""

from typing import Any

import pytest

from minibroker.broker.membership.metadata_image import MetadataImage
from minibroker.broker.requests.handlers import CLIENTS_TASKS_MAX
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire import messages as m
from tests.broker.requests import TOPIC, ClusterClient, in_cluster


def test_a_query_that_hits_a_bug_affects_no_other_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*told: Any, **named: Any) -> m.Response:
        raise KeyError("a bug")

    async def check(client: ClusterClient) -> None:
        monkeypatch.setattr(MetadataImage, "answer_describe_cluster", fail)
        reply = await client.ask(1, m.DescribeClusterRequest(), m.Response)
        assert reply.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert "a bug: DESCRIBE_CLUSTER from 10." in caplog.text
        assert "KeyError" in caplog.text
        assert (await client.ask(1, m.MetadataRequest(), m.MetadataResponse)).topics[0].name == TOPIC
        assert client.cluster.brokers[1].failed_reads() == ["DESCRIBE_CLUSTER"]

    in_cluster(check)


def test_client_requests_cannot_block_broker_requests() -> None:
    async def check(client: ClusterClient) -> None:
        controller = client.cluster.controller()
        assert controller is not None
        client.cluster.world.zookeeper.cut(f"broker-{controller}")  # requests that need ZooKeeper wait
        connection = await client.connection(controller)
        answers: list[int] = []
        for _ in range(CLIENTS_TASKS_MAX + 50):
            connection.send(m.InitProducerIdRequest(), lambda reply: answers.append(getattr(reply, "error_code", -99)))
        speaker = controller % 3 + 1
        inquiry = m.ConfirmFailureRequest(broker_id=speaker, broker_epoch=client.broker_epoch(speaker))
        reply = await (await client.connection(controller, speaker)).request(inquiry, 10_000)
        assert not reply.error_code
        assert answers == [ErrorCode.REQUEST_TIMED_OUT] * 50, "those above the limit, at once"

    in_cluster(check)
