"""What changes the cluster is told in a line: by whom, what, and what became of it."""

import logging

import pytest

from minibroker.protocol import messages as m
from tests.broker.requests import TOPIC, Asked, in_cluster

LOGGER = "minibroker.administration"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


async def ask(asked: Asked, *bodies: m.Request) -> None:
    controller = asked.cluster.controller()
    assert controller is not None
    for body in bodies:
        await asked.ask(controller, body, m.Response)


def test_what_changes_the_cluster_is_told_with_its_outcome(caplog: pytest.LogCaptureFixture) -> None:
    async def check(asked: Asked) -> None:
        caplog.clear()
        setting = m.AlterableConfig(name="retention.ms", value="1000")
        resource = m.AlterConfigsResource(resource_type=m.ResourceType.TOPIC, resource_name=TOPIC, configs=[setting])
        await ask(
            asked,
            m.CreateTopicsRequest(topics=[m.CreatableTopic(name=name) for name in ("new\nline", "made", TOPIC)]),
            m.IncrementalAlterConfigsRequest(resources=[resource]),
            m.DeleteTopicsRequest(topic_names=["nobody's"]),
        )
        told = lines(caplog)
        assert [line.split(" principal=")[0] for line in told] == [
            "operation=CREATE_TOPICS resource=topic:'made' outcome=NONE",
            r"operation=CREATE_TOPICS resource=topic:'new\nline' and 1 more outcome=INVALID_TOPIC_EXCEPTION",
            "operation=INCREMENTAL_ALTER_CONFIGS resource=topic:'t' outcome=NONE",
            """operation=DELETE_TOPICS resource=topic:"nobody's" outcome=UNKNOWN_TOPIC_OR_PARTITION""",
        ]
        assert all(" principal=User:ANONYMOUS client_id='test' address=10." in line for line in told)

    caplog.set_level(logging.INFO, LOGGER)
    in_cluster(check)


def test_a_broker_that_stops_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def check(asked: Asked) -> None:
        caplog.clear()
        broker_id = next(b for b in (1, 2, 3) if b != asked.cluster.controller())
        asked.cluster.stop(broker_id)
        await asked.cluster.until(lambda: bool(lines(caplog)), what="a line")
        shown = f"operation=CONTROLLED_SHUTDOWN resource=broker:{broker_id} outcome=NONE principal=Broker:{broker_id}"
        assert lines(caplog)[0].startswith(shown)

    caplog.set_level(logging.INFO, LOGGER)
    in_cluster(check)


def test_what_changes_nothing_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    async def check(asked: Asked) -> None:
        caplog.clear()
        wish = m.CreateTopicsRequest(topics=[m.CreatableTopic(name="other")], validate_only=True)
        await ask(asked, wish, m.ElectLeadersRequest(), m.MetadataRequest())
        elsewhere = next(b for b in (1, 2, 3) if b != asked.cluster.controller())
        await asked.ask(elsewhere, m.DeleteTopicsRequest(topic_names=[TOPIC]), m.Response)
        assert lines(caplog) == []

    caplog.set_level(logging.INFO, LOGGER)
    in_cluster(check)


def test_a_request_of_very_many_takes_few_lines_and_short_ones(caplog: pytest.LogCaptureFixture) -> None:
    """560 refused requests made 68 MB of log, seventeen times what was sent."""

    async def check(asked: Asked) -> None:
        caplog.clear()
        await ask(asked, m.DeleteTopicsRequest(topic_names=["\x01" * 249, *(f"topic-{n}" for n in range(5_000))]))
        (line,) = lines(caplog)
        assert " and 5000 more outcome=" in line
        assert len(line) < 500
        wishes = [m.CreatableTopic(name=f"made-{number}", num_partitions=1) for number in range(120)]
        caplog.clear()
        await ask(asked, m.CreateTopicsRequest(topics=wishes))
        assert len(lines(caplog)) == 101
        assert "resource=20 more outcome=NONE" in lines(caplog)[-1]

    caplog.set_level(logging.INFO, LOGGER)
    in_cluster(check)
