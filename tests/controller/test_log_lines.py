"""What a controller logs for an operator: one line for each trouble that only its log shows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from minibroker.controller.cluster_reader import ClusterReader
from minibroker.controller.controller_election import ControllerFence
from minibroker.protocol import znodes
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import LeaderAndIsrRequest, LeaderAndIsrResponse
from minibroker.protocol.znodes import BrokerRegistration
from minibroker.runtime.ports import CoordinationError
from tests.controller.cluster import Cluster, simulated

Trouble = Callable[[Cluster], Awaitable[None]]


async def a_broker_has_another_listener(cluster: Cluster) -> None:
    await cluster.controller()
    content, _ = await cluster.observer.get(znodes.broker_path(1))
    other = msgspec.structs.replace(BrokerRegistration.decode(content), endpoints=["OUTSIDE://broker1:9092"])
    await cluster.observer.create(znodes.broker_path(7), other.encode())
    await asyncio.sleep(1)


async def a_broker_refuses_its_orders(cluster: Cluster) -> None:
    controller = await cluster.controller()
    cluster.brokers[1].answers[LeaderAndIsrRequest] = LeaderAndIsrResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    await cluster.create(controller, "lines", [[1, 2]])
    await asyncio.sleep(5)


async def zookeeper_refuses_a_read(cluster: Cluster) -> None:
    reader = ClusterReader(cluster.observer, ControllerFence(controller_epoch=1, epoch_version=1))
    answers: list[Exception] = [CoordinationError("session moved")]

    async def ask() -> None:
        if answers:
            raise answers.pop()

    await reader.patiently(ask)


async def the_controller_epoch_is_no_number(cluster: Cluster) -> None:
    await cluster.observer.create(znodes.CONTROLLER_EPOCH, b"forty")
    await cluster.candidate()
    await asyncio.sleep(0.5)


LINES: dict[Trouble, str] = {
    a_broker_has_another_listener: "broker 7 is ignored: it has no listener INTERNAL (inter.broker.listener.name)",
    a_broker_refuses_its_orders: "LeaderAndIsrRequest to broker 1 is sent again: ",
    zookeeper_refuses_a_read: "ZooKeeper refuses, asking again: session moved",
    the_controller_epoch_is_no_number: "cannot contest, trying again: ",
}


@pytest.mark.parametrize("trouble", LINES, ids=lambda trouble: trouble.__name__)
def test_a_trouble_is_one_line_in_the_log(trouble: Trouble, caplog: pytest.LogCaptureFixture) -> None:
    """It lasts, and is tried again and again."""

    @simulated
    async def story(cluster: Cluster) -> None:
        await cluster.start(1, 2)
        await trouble(cluster)

    with caplog.at_level(logging.WARNING, "minibroker.controller"):
        story()
    (line,) = (each.getMessage() for each in caplog.records if each.name == "minibroker.controller")
    assert line.startswith(LINES[trouble])


def test_a_later_trouble_of_the_same_broker_is_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """However soon it comes: an answer in between ends the first one."""

    @simulated
    async def story(cluster: Cluster) -> None:
        await cluster.start(1, 2)
        controller = await cluster.controller()
        for topic in ("lines", "other"):
            refusal = LeaderAndIsrResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
            cluster.brokers[1].answers[LeaderAndIsrRequest] = refusal
            await cluster.create(controller, topic, [[1, 2]])
            await asyncio.sleep(1)
            del cluster.brokers[1].answers[LeaderAndIsrRequest]
            await asyncio.sleep(1)

    with caplog.at_level(logging.WARNING, "minibroker.controller"):
        story()
    lines = [each.getMessage() for each in caplog.records if each.name == "minibroker.controller"]
    assert [each.partition(" ")[0] for each in lines] == ["LeaderAndIsrRequest"] * 2
