"""Requests do not harm each other: queries that hit a bug, and task limits that are reached."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.membership.metadata_image import MetadataChange, MetadataImage
from minibroker.broker.requests.handlers import CLIENTS_TASKS_MAX, RequestHandlers
from minibroker.broker.requests.producer_ids import ProducerIds
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire import messages as m
from minibroker.simulation.world.loop import Unhandled
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


UNENCODABLE = "\ud800"
"""A string that no encoding of Unicode has a place for."""


def test_a_query_whose_answer_cannot_be_encoded_affects_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it ended the process."""

    def answer(*_: Any) -> m.Response:
        return m.DescribeClusterResponse(cluster_id=UNENCODABLE)

    async def check(client: ClusterClient) -> None:
        monkeypatch.setattr(MetadataImage, "answer_describe_cluster", answer)
        reply = await client.ask(1, m.DescribeClusterRequest(), m.Response)
        assert reply.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert (await client.ask(1, m.MetadataRequest(), m.MetadataResponse)).topics[0].name == TOPIC
        assert client.cluster.brokers[1].failed_reads() == ["DESCRIBE_CLUSTER"]

    in_cluster(check)


def test_an_answer_to_a_change_that_cannot_be_encoded_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The change may be half done, so this bug is not hidden: the process ends, and its log tells why."""

    async def answer(*_: Any) -> m.Response:
        return m.Response(error_message=UNENCODABLE)

    monkeypatch.setattr(ProducerIds, "answer", answer)

    async def check(client: ClusterClient) -> None:
        (await client.connection(1)).send(m.InitProducerIdRequest(), lambda _: None)
        await asyncio.sleep(1)

    with pytest.raises(Unhandled, match="UnicodeEncodeError"):  # what it does to a real process: broker/__main__
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


@pytest.mark.parametrize(
    ("change", "followed_by"),
    [
        (MetadataChange(), []),
        (MetadataChange(controller_changed=True), ["controller"]),
        (MetadataChange(brokers_changed=True), ["controller", "eligible: all"]),
        (MetadataChange(partitions_changed=("one",)), ["eligible: one"]),  # type: ignore[arg-type]
        (MetadataChange(brokers_changed=True, partitions_changed=("one",)), ["controller", "eligible: all"]),  # type: ignore[arg-type]
        (MetadataChange(configs_changed=("t",)), ["settings: t"]),
    ],
)
def test_what_the_controller_tells_reaches_all_that_depends_on_it(
    change: MetadataChange, followed_by: list[str]
) -> None:
    """Proposals go to the new controller, replicas that may join now do, and topics get their settings."""
    did: list[str] = []
    manager = SimpleNamespace(
        alter_partition=SimpleNamespace(controller_changed=lambda: did.append("controller")),
        partitions={"all": None},
        brokers_changed=lambda named: did.append(f"eligible: {', '.join(named)}"),
        reconfigure=lambda topics: did.append(f"settings: {', '.join(topics)}"),
    )
    RequestHandlers._after(cast(Any, SimpleNamespace(_manager=manager)), change)
    assert did == followed_by


@pytest.mark.parametrize("name", ["_leader_and_isr", "_update_metadata", "_stop_replica"])
@pytest.mark.parametrize("is_refused", [False, True])
def test_each_request_of_a_controller_that_is_admitted_has_its_consequences(name: str, is_refused: bool) -> None:
    """A new controller is first heard of by any of them: until then proposals go to the old one."""
    change = MetadataChange(
        error_code=ErrorCode.STALE_CONTROLLER_EPOCH if is_refused else ErrorCode.NONE, controller_changed=True
    )
    told: list[MetadataChange] = []

    def changed(*_: object) -> MetadataChange:
        return change

    orders = SimpleNamespace(leader_and_isr=changed, stop_replica=changed)
    manager = SimpleNamespace(orders=orders, alter_partition=SimpleNamespace(unreachable_ms=lambda: 0))
    manager.offline_partitions = lambda: [TopicPartition("a", 3)]
    handlers = SimpleNamespace(
        _image=SimpleNamespace(apply_leader_and_isr=changed, apply_update=changed, admit=changed),
        _registration=SimpleNamespace(broker_epoch=7),
        _manager=manager,
        _after=told.append,
    )
    body = SimpleNamespace(controller_id=1, controller_epoch=2, broker_epoch=7)
    answer = getattr(RequestHandlers, name)(handlers, cast(Any, None), body)
    assert told == ([] if is_refused else [change])
    if name == "_update_metadata" and not is_refused:
        assert answer.offline_partitions == [m.TopicPartitions(topic_name="a", partitions=[3])], "it knows of none"


def test_each_answered_request_is_counted() -> None:
    async def check(client: ClusterClient) -> None:
        counter = client.cluster.brokers[1].counters.requests[m.ApiKey.METADATA]
        before = counter.count
        for _ in range(3):
            await client.ask(1, m.MetadataRequest(), m.MetadataResponse)
        assert counter.count == before + 3

    in_cluster(check)
