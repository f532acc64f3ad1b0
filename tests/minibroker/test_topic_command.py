"""`minibroker topic`: what it reports of deletions and in lists, without a cluster."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from minibroker.client.admin import BrokerReplicas, TopicDescription
from minibroker.client.descriptions import PartitionDescription
from minibroker.client.errors import BrokerError, Where, broker_error
from minibroker.commands.topic import _delete, _summary
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import ReplicaStateDescription


def waits(name: str) -> BrokerError:
    return broker_error(ErrorCode.REQUEST_TIMED_OUT, Where(topic=name), f"{name} waits for brokers [2]")


class Admin:
    """Answers each request for a deletion with the next of these results."""

    def __init__(self, *answers: dict[str, BrokerError | None]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[list[str], float]] = []

    async def delete_topics(self, names: Iterable[str], *, timeout_ms: float) -> dict[str, BrokerError | None]:
        self.asked.append((list(names), timeout_ms))
        return self.answers.pop(0)


def delete(admin: Any, *names: str, timeout_ms: float = 30_000) -> Any:
    return asyncio.run(_delete(admin, names, timeout_ms))


def test_a_deletion_that_waits_is_explained_early_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """Once it was silent for 30 s."""
    gone = broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, Where(topic="b"))
    admin = Admin({"a": None, "b": waits("b")}, {"b": gone})
    assert delete(admin, "a", "b") == {"a": None, "b": None}
    assert admin.asked == [(["a", "b"], 3_000), (["b"], 27_000)]
    assert capsys.readouterr().err == "warning: b waits for brokers [2]\n"


def test_a_deletion_that_waits_beyond_the_time_limit_keeps_its_error() -> None:
    admin = Admin({"a": waits("a")}, {"a": waits("a")})
    assert str(delete(admin, "a")["a"].broker_message) == "a waits for brokers [2]"
    assert delete(Admin({"a": waits("a")}), "a", timeout_ms=2_000)["a"].code is ErrorCode.REQUEST_TIMED_OUT


def test_the_records_and_bytes_of_a_topic_are_those_of_its_leaders() -> None:
    partition = PartitionDescription(0, 1, 0, (1, 2, 3), (1, 2, 3), (), ErrorCode.NONE)
    topic = TopicDescription("t", "id", [partition])
    facts = {"topic": "t", "partitions": 1, "replication_factor": 3}
    state = ReplicaStateDescription(
        partition=0, role="leader", high_watermark=9, log_start_offset=2, log_end_offset=12, size_bytes=500
    )
    held = {1: BrokerReplicas(1, replicas={TopicPartition("t", 0): state})}
    assert _summary(topic, held) == facts | {"records": 7, "size_bytes": 500}
    assert _summary(topic, {}) == facts | {"records": None, "size_bytes": None}, "the leader did not answer"
