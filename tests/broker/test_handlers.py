"""One request's misfortune is not another's: questions that meet a bug, and tasks that fill up."""

from typing import Any

import pytest

from minibroker.broker.handlers import CLIENTS_TASKS_MAX
from minibroker.broker.metadata_image import MetadataImage
from minibroker.protocol import messages as m
from minibroker.protocol.errors import ErrorCode
from tests.broker.requests import TOPIC, Asked, in_cluster


def test_a_question_that_meets_a_bug_costs_nobody_else_anything(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*told: Any, **named: Any) -> m.Response:
        raise KeyError("a bug")

    async def check(asked: Asked) -> None:
        monkeypatch.setattr(MetadataImage, "answer_describe_cluster", fail)
        reply = await asked.ask(1, m.DescribeClusterRequest(), m.Response)
        assert reply.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert "a bug: DESCRIBE_CLUSTER from 10." in caplog.text
        assert "KeyError" in caplog.text
        assert (await asked.ask(1, m.MetadataRequest(), m.MetadataResponse)).topics[0].name == TOPIC
        assert asked.cluster.brokers[1].failed_reads() == ["DESCRIBE_CLUSTER"]

    in_cluster(check)


def test_no_number_of_clients_requests_keeps_out_a_brokers() -> None:
    async def check(asked: Asked) -> None:
        controller = asked.cluster.controller()
        assert controller is not None
        asked.cluster.world.zookeeper.cut(f"broker-{controller}")  # what needs it waits
        client = await asked.connection(controller)
        answers: list[int] = []
        for _ in range(CLIENTS_TASKS_MAX + 50):
            client.send(m.InitProducerIdRequest(), lambda reply: answers.append(getattr(reply, "error_code", -99)))
        speaker = controller % 3 + 1
        inquiry = m.ConfirmFailureRequest(broker_id=speaker, broker_epoch=asked.broker_epoch(speaker))
        reply = await (await asked.connection(controller, speaker)).request(inquiry, 10_000)
        assert not reply.error_code
        assert answers == [ErrorCode.REQUEST_TIMED_OUT] * 50, "those above the limit, at once"

    in_cluster(check)
