"""Each change of the cluster is logged in one line: the sender, the change and its outcome."""

import logging

import pytest

from minibroker.broker.requests.administration_events import _resources
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire import messages as m
from tests.broker.requests import TOPIC, ClusterClient, in_cluster

LOGGER = "minibroker.administration"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


async def ask(client: ClusterClient, *bodies: m.Request) -> None:
    controller = client.cluster.controller()
    assert controller is not None
    for body in bodies:
        await client.ask(controller, body, m.Response)


def test_each_cluster_change_is_logged_with_its_outcome(caplog: pytest.LogCaptureFixture) -> None:
    async def check(client: ClusterClient) -> None:
        caplog.clear()
        setting = m.AlterableConfig(name="retention.ms", value="1000")
        resource = m.AlterConfigsResource(resource_type=m.ResourceType.TOPIC, resource_name=TOPIC, configs=[setting])
        await ask(
            client,
            m.CreateTopicsRequest(topics=[m.CreatableTopic(name=name) for name in ("new\nline", "made", TOPIC)]),
            m.IncrementalAlterConfigsRequest(resources=[resource]),
            m.DeleteTopicsRequest(topic_names=["other's"]),
            m.DeleteProducerNamesRequest(names=["orders"]),
        )
        logged = lines(caplog)
        assert [line.split(" principal=")[0] for line in logged] == [
            "operation=CREATE_TOPICS resource=topic:'made' outcome=NONE",
            r"operation=CREATE_TOPICS resource=topic:'new\nline' and 1 more outcome=INVALID_TOPIC_EXCEPTION",
            "operation=INCREMENTAL_ALTER_CONFIGS resource=topic:'t' outcome=NONE",
            """operation=DELETE_TOPICS resource=topic:"other's" outcome=UNKNOWN_TOPIC_OR_PARTITION""",
            "operation=DELETE_PRODUCER_NAMES resource=producer:'orders' outcome=TRANSACTIONAL_ID_NOT_FOUND",
        ]
        assert all(" principal=User:ANONYMOUS client_id='test' address=10." in line for line in logged)

    caplog.set_level(logging.INFO, LOGGER)
    in_cluster(check)


def test_each_accepted_loss_has_its_own_outcome() -> None:
    names = ("elected", "refused")
    confirmed = [
        m.ConfirmedElection(
            topic_name=name, partition_index=3, leader=1, leader_epoch=2, log_end_offset=9, last_epoch=1
        )
        for name in names
    ]
    outcomes = [
        m.ElectionPreview(topic_name=name, partition_index=3, error_code=code)
        for name, code in zip(names, (0, ErrorCode.FENCED_LEADER_EPOCH), strict=True)
    ]
    asked = m.ElectLeadersRequest(confirmed=confirmed)
    assert list(_resources(asked, m.ElectLeadersResponse(partitions=outcomes))) == [
        ("partition:'elected'-3", 0),
        ("partition:'refused'-3", ErrorCode.FENCED_LEADER_EPOCH),
    ]
    failed = m.ElectLeadersResponse(error_code=ErrorCode.REQUEST_TIMED_OUT)
    assert [code for _, code in _resources(asked, failed)] == [ErrorCode.REQUEST_TIMED_OUT] * 2
    assert list(_resources(m.ElectLeadersRequest(), m.ElectLeadersResponse(partitions=outcomes))) == []


def test_a_controlled_shutdown_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def check(client: ClusterClient) -> None:
        caplog.clear()
        broker_id = next(b for b in (1, 2, 3) if b != client.cluster.controller())
        client.cluster.stop(broker_id)
        await client.cluster.until(lambda: bool(lines(caplog)), what="a line")
        shown = f"operation=CONTROLLED_SHUTDOWN resource=broker:{broker_id} outcome=NONE principal=Broker:{broker_id}"
        assert lines(caplog)[0].startswith(shown)

    caplog.set_level(logging.INFO, LOGGER)
    in_cluster(check)


def test_requests_that_change_nothing_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def check(client: ClusterClient) -> None:
        caplog.clear()
        request = m.CreateTopicsRequest(topics=[m.CreatableTopic(name="other")], validate_only=True)
        await ask(client, request, m.ElectLeadersRequest(), m.MetadataRequest())
        elsewhere = next(b for b in (1, 2, 3) if b != client.cluster.controller())
        await client.ask(elsewhere, m.DeleteTopicsRequest(topic_names=[TOPIC]), m.Response)
        assert lines(caplog) == []

    caplog.set_level(logging.INFO, LOGGER)
    in_cluster(check)


def test_a_request_for_many_resources_writes_few_short_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    """560 refused requests made 68 MB of log, seventeen times what was sent."""

    async def check(client: ClusterClient) -> None:
        caplog.clear()
        await ask(client, m.DeleteTopicsRequest(topic_names=["\x01" * 249, *(f"topic-{n}" for n in range(5_000))]))
        (line,) = lines(caplog)
        assert " and 5000 more outcome=" in line
        assert len(line) < 500
        topics = [m.CreatableTopic(name=f"made-{number}", num_partitions=1) for number in range(120)]
        caplog.clear()
        await ask(client, m.CreateTopicsRequest(topics=topics))
        assert len(lines(caplog)) == 101
        assert "resource=20 more outcome=NONE" in lines(caplog)[-1]

    caplog.set_level(logging.INFO, LOGGER)
    in_cluster(check)
