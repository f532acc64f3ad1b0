"""When a topic counts as created, and when as deleted, by a call that had to ask more than once."""

import asyncio

import pytest

from minibroker.client.admin import AdminClient, CreatedTopic, NewTopic
from minibroker.client.errors import BrokerError
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    CreateTopicsRequest,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    MetadataRequest,
    Response,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import FakeCluster, FakePartition
from tests.client.test_admin import Administration


def test_a_created_topic_has_all_its_partitions_when_the_call_returns(cluster: FakeCluster) -> None:
    """A controller elects many leaders in several steps: the call returned after the first, and `topic create` printed
    180 partitions of 1,000."""
    administration = Administration(cluster)

    def first_half(broker: int, request: IncomingRequest) -> Response | bool | None:
        if isinstance(request.body, CreateTopicsRequest):
            loop, index = asyncio.get_running_loop(), TopicPartition("new", 3)
            loop.call_later(1e-6, lambda: halves.append(cluster.partitions.pop(index)))
            loop.call_later(0.5, lambda: cluster.partitions.update({index: halves[0]}))
        return administration.answer(broker, request)

    halves: list[FakePartition] = []
    cluster.intercept = first_half

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            await admin.create_topic("new", partitions=4)
            described = await admin.describe_topics(["new"])
            assert len(described["new"].partitions) == 4

    cluster.run(main)


FirstAnswers = list[Response | str]
"""What the controller says at first, though it does what it is asked: an answer, or nothing as the connection ends."""

LATE = Response(error_code=ErrorCode.REQUEST_TIMED_OUT)
MOVED = Response(error_code=ErrorCode.NOT_CONTROLLER)


def answer_at_first(cluster: FakeCluster, answers: FirstAnswers) -> None:
    administration, left = Administration(cluster), list(answers)

    def answer(broker: int, request: IncomingRequest) -> Response | bool | None:
        if not isinstance(request.body, CreateTopicsRequest | DeleteTopicsRequest) or not left:
            return administration.answer(broker, request)
        if len(left) == len(answers):
            administration.answer(broker, request)
        found = left.pop(0)
        if isinstance(found, Response):
            return found
        request.close_connection(found)
        return True

    cluster.intercept = answer


@pytest.mark.parametrize(
    "answers",
    [[LATE], ["lost"], [LATE, MOVED], ["lost", MOVED], [LATE, LATE], ["lost", LATE, MOVED]],
    ids=["late", "lost", "late, then moved", "lost, then moved", "late twice", "lost, late, moved"],
)
@pytest.mark.parametrize("is_created", [True, False], ids=["created", "deleted"])
def test_what_an_earlier_attempt_of_the_call_has_done_is_its_success(
    cluster: FakeCluster, answers: FirstAnswers, is_created: bool
) -> None:
    """The last attempt says that the topic exists, or that there is none: by this very call."""
    answer_at_first(cluster, answers)

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            if is_created:
                assert isinstance(await admin.create_topic("new", partitions=2), CreatedTopic)
            else:
                await admin.delete_topic("t")
            assert await admin.list_topics() == (["new", "t"] if is_created else [])

    cluster.run(main)


@pytest.mark.parametrize("is_created", [True, False], ids=["created", "deleted"])
def test_a_refusal_that_proves_that_nothing_was_done_excuses_no_later_answer(
    cluster: FakeCluster, is_created: bool
) -> None:
    answer_at_first(cluster, [MOVED])

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            with pytest.raises(BrokerError):
                await (admin.create_topic("new") if is_created else admin.delete_topic("t"))

    cluster.run(main)


def test_a_topic_that_is_gone_after_its_deletion_had_begun_was_deleted(cluster: FakeCluster) -> None:
    """The deletion waited for a broker, and ended between two requests of the call."""
    waits = DeletableTopicResult(name="t", error_code=ErrorCode.REQUEST_TIMED_OUT, error_message="it waits")
    answer_at_first(cluster, [DeleteTopicsResponse(responses=[waits])])

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            await admin.delete_topic("t")

    cluster.run(main)


@pytest.mark.parametrize("others", [[], ["a"]], ids=["alone", "with others"])
def test_topics_that_a_controller_had_begun_to_delete_when_it_ended_were_deleted(
    cluster: FakeCluster, others: list[str]
) -> None:
    """It answers for each of them: one is gone, the next controller goes on with the other. That one has forgotten both
    when it is asked."""
    for name in others:
        cluster.add_topic(name)
    ended = DeletableTopicResult(name="t", error_code=ErrorCode.NOT_CONTROLLER, error_message="the next one goes on")
    gone = [DeletableTopicResult(name=name, error_code=ErrorCode.NONE) for name in others]
    answer_at_first(cluster, [DeleteTopicsResponse(responses=[*gone, ended])])

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            assert await admin.delete_topics([*others, "t"]) == dict.fromkeys([*others, "t"])

    cluster.run(main)


def test_a_topic_that_is_deleted_again_at_once_does_not_hide_what_was_created(cluster: FakeCluster) -> None:
    """The answer to the creation was lost, so the call looks at each topic."""
    administration = Administration(cluster)
    administration.lose_answers = 1

    def delete_when_described(broker: int, request: IncomingRequest) -> Response | bool | None:
        if isinstance(request.body, MetadataRequest) and [topic.name for topic in request.body.topics or ()] == ["b"]:
            cluster.topic_ids.pop("b", None)
        return administration.answer(broker, request)

    cluster.intercept = delete_when_described

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            created = await admin.create_topics([NewTopic(name="a"), NewTopic(name="b")])
            assert isinstance(created["a"], CreatedTopic)
            error = created["b"]
            assert isinstance(error, BrokerError)
            assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    cluster.run(main)
