"""The administration client: the right broker, retries when the controller moves, deadlines."""

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from minibroker.client.admin import AdminClient, NewTopic, ProducerNameDescription
from minibroker.client.descriptions import CreatedTopic
from minibroker.client.errors import (
    BrokerError,
    CallTimedOut,
    ClientClosed,
    InvalidCall,
    InvalidConfig,
    InvalidReplicationFactor,
    TopicAlreadyExists,
    UnknownProducerName,
    UnknownTopicOrPartition,
)
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    AlterConfigsResult,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeletedProducerName,
    DeleteProducerNamesRequest,
    DeleteProducerNamesResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribedConfig,
    DescribedReplicaTopic,
    DescribeReplicaStateRequest,
    DescribeReplicaStateResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListedProducerName,
    ListProducerNamesRequest,
    ListProducerNamesResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    ReplicaStateDescription,
    Response,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import FakeCluster

T0 = TopicPartition("t", 0)


class Administration:
    """A controller, as far as the client can observe it."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.lose_answers = 0
        self.create_delay_s = 0.0
        cluster.intercept = self.answer

    def answer(self, broker: int, request: IncomingRequest) -> Response | bool | None:
        body = request.body
        if isinstance(body, CreateTopicsRequest | DeleteTopicsRequest) and broker == self.cluster.controller_id:
            answer = self.create(body) if isinstance(body, CreateTopicsRequest) else self.delete(body)
            if self.lose_answers:
                self.lose_answers -= 1
                request.close_connection("the answer is lost")
                return True
            return answer
        if isinstance(body, CreateTopicsRequest):
            results = [CreatableTopicResult(name=t.name, error_code=ErrorCode.NOT_CONTROLLER) for t in body.topics]
            return CreateTopicsResponse(topics=results)
        return None

    def create(self, body: CreateTopicsRequest) -> Response:
        results = []
        for topic in body.topics:
            code = ErrorCode.NONE
            if topic.name in self.cluster.topic_ids:
                code = ErrorCode.TOPIC_ALREADY_EXISTS
            elif topic.replication_factor > len(self.cluster.brokers):
                code = ErrorCode.INVALID_REPLICATION_FACTOR
            elif not body.validate_only:
                loop = asyncio.get_running_loop()
                loop.call_later(self.create_delay_s, self.cluster.add_topic, topic.name, max(1, topic.num_partitions))
            count = max(1, topic.num_partitions)
            results.append(CreatableTopicResult(name=topic.name, error_code=code, topic_id="x", num_partitions=count))
        return CreateTopicsResponse(topics=results)

    def delete(self, body: DeleteTopicsRequest) -> Response:
        results = []
        for name in body.topic_names:
            known = self.cluster.topic_ids.pop(name, None)
            code = ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            results.append(DeletableTopicResult(name=name, error_code=code))
        return DeleteTopicsResponse(responses=results)


def test_all_brokers_know_a_created_topic_when_the_call_returns(cluster: FakeCluster) -> None:
    Administration(cluster).create_delay_s = 0.5

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            created = await admin.create_topic("new", partitions=3, replication_factor=3)
            assert created.partitions == 3
            assert "new" in await admin.list_topics()

    cluster.run(main)


@pytest.mark.parametrize("present", [True, False], ids=["created", "deleted"])
def test_a_broker_that_never_learns_of_a_change_is_named_after_the_timeout(cluster: FakeCluster, present: bool) -> None:
    Administration(cluster)
    name, known = ("new", "does not know") if present else ("t", "still has")

    async def main(runtime: Runtime) -> float:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            cluster.brokers[2].metadata_of = cluster.brokers[2].handle_metadata_now(name)
            asked, start = cluster.asked(MetadataRequest), asyncio.get_running_loop().time()
            with pytest.raises(CallTimedOut) as raised:
                if present:
                    await admin.create_topic(name, timeout_ms=3_000)
                else:
                    await admin.delete_topic(name, timeout_ms=3_000)
            assert str(raised.value) == (
                f"it is done, but broker 2 {known} {name} after 3000 ms:"
                " `minibroker doctor` names what is wrong, and the cure"
            )
            assert cluster.asked(MetadataRequest) - asked < 3_000 / 50 + 20, "with a pause between two rounds"
            return asyncio.get_running_loop().time() - start

    assert cluster.run(main) == pytest.approx(3, abs=0.1)


def test_a_topic_with_an_error_is_described_if_its_partitions_are_known(cluster: FakeCluster) -> None:
    """As while one of them has no leader."""

    async def main(runtime: Runtime) -> None:
        known = cluster.brokers[1].handle_metadata_now("t")
        [topic] = known.topics
        troubled = replace(topic, error_code=ErrorCode.LEADER_NOT_AVAILABLE)
        going = MetadataTopic(name="going", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        for broker in cluster.brokers.values():
            broker.metadata_of = replace(known, topics=[troubled, going])
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            described = await admin.describe_topics()
            assert list(described) == ["t"], "one without partitions is being deleted"
            assert [each.leader for each in described["t"].partitions] == [cluster.partition("t").leader]

    cluster.run(main)


def test_a_refusal_is_raised(cluster: FakeCluster) -> None:
    Administration(cluster)

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            with pytest.raises(TopicAlreadyExists, match="'t'"):
                await admin.create_topic("t")
            with pytest.raises(InvalidReplicationFactor):
                await admin.create_topic("new", replication_factor=4)
            with pytest.raises(InvalidCall):
                await admin.create_topic("new", partitions=0)
            with pytest.raises(UnknownTopicOrPartition):
                await admin.delete_topic("nosuch")
            results = await admin.create_topics([NewTopic(name="t"), NewTopic(name="new")])
            assert isinstance(results["t"], TopicAlreadyExists)
            assert not isinstance(results["new"], Exception)

    cluster.run(main)


def test_validate_only_creates_nothing(cluster: FakeCluster) -> None:
    Administration(cluster)

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            await admin.create_topics([NewTopic(name="new")], validate_only=True)
            assert await admin.list_topics() == ["t"]

    cluster.run(main)


def test_a_lost_answer_to_create_or_delete_is_no_failure(cluster: FakeCluster) -> None:
    administration = Administration(cluster)

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            administration.lose_answers = 1
            created = await admin.create_topic("new", partitions=3)
            described = (await admin.describe_topics(["new"]))["new"]
            assert created == CreatedTopic("new", described.topic_id, 3, len(described.partitions[0].replicas))
            administration.lose_answers = 1
            await admin.delete_topic("new")

    cluster.run(main)
    assert cluster.asked(CreateTopicsRequest) == 2
    assert cluster.asked(DeleteTopicsRequest) == 2


def test_a_lost_answer_to_a_validation_does_not_excuse_a_topic_that_exists(cluster: FakeCluster) -> None:
    administration = Administration(cluster)

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            administration.lose_answers = 1
            results = await admin.create_topics([NewTopic(name="t")], validate_only=True)
            assert isinstance(results["t"], TopicAlreadyExists)

    cluster.run(main)
    assert cluster.asked(CreateTopicsRequest) == 2


@pytest.mark.parametrize("code", [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REPLICA_NOT_AVAILABLE])
@pytest.mark.parametrize("timeout_ms", [200, 5_000, 70_000])
def test_a_deletion_that_waits_names_the_brokers_before_the_deadline(
    cluster: FakeCluster, timeout_ms: int, code: ErrorCode
) -> None:
    """The request used to time out at the moment when the controller answered."""

    def wait(broker: int, request: IncomingRequest) -> Response | bool | None:
        body = request.body
        if not isinstance(body, DeleteTopicsRequest):
            return None
        text = "topic t is marked for deletion, which waits for broker 3"
        result = DeletableTopicResult(name="t", error_code=code, error_message=text)
        answer = DeleteTopicsResponse(responses=[result])
        asyncio.get_running_loop().call_later(body.timeout_ms / 1000, request.respond, answer)
        return True

    cluster.intercept = wait

    async def main(runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            start = loop.time()
            with pytest.raises(BrokerError) as caught:
                await admin.delete_topic("t", timeout_ms=timeout_ms)
            assert timeout_ms / 2 - 1 <= (loop.time() - start) * 1000 < timeout_ms
        assert str(caught.value).endswith("topic t is marked for deletion, which waits for broker 3")

    cluster.run(main)


def test_the_controller_is_followed_when_it_moves(cluster: FakeCluster) -> None:
    Administration(cluster)

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            cluster.controller_id = 2  # the client's metadata still names 1
            await admin.create_topic("new")

    cluster.run(main)
    assert [broker for broker, _ in cluster.requests[CreateTopicsRequest]] == [1, 2]


def test_without_a_controller_the_call_ends_at_its_deadline(cluster: FakeCluster) -> None:
    Administration(cluster)

    async def main(runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            cluster.kill(1)
            start = loop.time()
            with pytest.raises(
                CallTimedOut, match=r"did not do it within 3000 ms \(.* may still be done\); last error"
            ):
                await admin.create_topic("new", timeout_ms=3_000)
            assert loop.time() - start < 3.2

    cluster.run(main)


def test_topics_and_offsets_are_described(cluster: FakeCluster) -> None:
    cluster.add_topic("many", 2)
    cluster.partition("t").elect(3)

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            described = await admin.describe_topics(["t"])
            partition = described["t"].partitions[0]
            assert (partition.leader, partition.leader_epoch, partition.isr) == (3, 1, (1, 2, 3))
            assert await admin.list_topics() == ["many", "t"]
            assert await admin.offsets("t") == {T0: (0, 0)}
            with pytest.raises(UnknownTopicOrPartition, match="nosuch"):
                await admin.describe_topics(["nosuch"])

    cluster.run(main)


def test_replica_states_of_all_brokers_are_merged_and_silent_brokers_have_an_error(cluster: FakeCluster) -> None:
    def answer(broker: int, request: IncomingRequest) -> Response | bool | None:
        if not isinstance(request.body, DescribeReplicaStateRequest):
            return None
        if broker == 3:
            return True
        role = "leader" if broker == 1 else "follower"
        replicas = [DescribedReplicaTopic(topic="t", partitions=[ReplicaStateDescription(partition=0, role=role)])]
        return DescribeReplicaStateResponse(broker_id=broker, broker_epoch=10 + broker, topics=replicas)

    cluster.intercept = answer

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            states = await admin.describe_replica_state(["t"], timeout_ms=1_000)
            assert [states[1].replicas[T0].role, states[2].replicas[T0].role] == ["leader", "follower"]
            assert states[1].broker_epoch == 11
            assert states[3].error is not None
            assert "was not answered" in str(states[3].error)

    cluster.run(main)


def test_settings_and_the_cluster_are_described_and_changed(cluster: FakeCluster) -> None:
    asked: list[dict[str, str | None]] = []

    def answer(broker: int, request: IncomingRequest) -> Response | bool | None:
        body = request.body
        if isinstance(body, DescribeClusterRequest):
            brokers = [DescribeClusterBroker(broker_id=b, host=f"broker{b}", port=9092) for b in (3, 1)]
            return DescribeClusterResponse(cluster_id="c", controller_id=1, controller_epoch=4, brokers=brokers)
        if isinstance(body, DescribeConfigsRequest):
            config = DescribedConfig(name="retention.ms", value="5", config_source=1)
            result = DescribeConfigsResult(resource_type=2, resource_name="t", configs=[config])
            return DescribeConfigsResponse(results=[result])
        if isinstance(body, IncrementalAlterConfigsRequest):
            asked.append({config.name: config.value for config in body.resources[0].configs})
            wrong = "nonsense" in asked[-1]
            code = ErrorCode.INVALID_CONFIG if wrong else ErrorCode.NONE
            result_ = AlterConfigsResult(resource_type=2, resource_name="t", error_code=code)
            return IncrementalAlterConfigsResponse(responses=[result_])
        return None

    cluster.intercept = answer

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            described = await admin.describe_cluster()
            assert [broker.broker_id for broker in described.brokers] == [1, 3]
            assert described.controller_epoch == 4
            entry = (await admin.describe_configs(topic="t"))["retention.ms"]
            assert (entry.value, entry.source) == ("5", "dynamic-topic")
            await admin.alter_configs({"retention.ms": None}, topic="t")
            numbers: dict[str, Any] = {"retention.ms": 5, "unclean.leader.election.enable": True}
            await admin.alter_configs(numbers, topic="t")
            assert asked[-1] == {"retention.ms": "5", "unclean.leader.election.enable": "true"}
            with pytest.raises(InvalidConfig):
                await admin.alter_configs({"nonsense": "7"}, topic="t")
            with pytest.raises(InvalidCall, match="give topic= or broker_id="):
                await admin.describe_configs()

    cluster.run(main)


def test_a_broker_that_knows_nothing_yet_is_not_the_only_one_asked(cluster: FakeCluster) -> None:
    """One that has registered again, and has not heard from a controller since (seed 36000429 with loads)."""
    refused = Response(error_code=ErrorCode.BROKER_NOT_AVAILABLE, error_message="ask another broker")
    asked: list[int] = []

    def answer(broker: int, request: IncomingRequest) -> Response | None:
        if not isinstance(request.body, MetadataRequest):
            return None
        asked.append(broker)
        return refused if len(asked) in (2, 3) else None

    async def main(runtime: Runtime) -> None:
        cluster.intercept = answer
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            assert list(await admin.describe_topics(["t"])) == ["t"]

    cluster.run(main)
    assert len(asked) >= 4


def test_a_closed_admin_client_raises_client_closed(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        admin = AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime)
        with pytest.raises(ClientClosed):
            await admin.list_topics()
        await admin.start()
        await admin.close()
        await admin.close()
        with pytest.raises(ClientClosed):
            await admin.list_topics()

    cluster.run(main)


class ProducerNames:
    """Brokers with names of producers; any of them answers."""

    def __init__(self, cluster: FakeCluster, names: list[str]) -> None:
        self.names = names
        self.lose_answers = 0
        cluster.intercept = self.answer

    def answer(self, broker: int, request: IncomingRequest) -> Response | bool | None:
        body = request.body
        if isinstance(body, ListProducerNamesRequest):
            listed = [
                ListedProducerName(name=name, producer_id=7, producer_epoch=3, changed_ms=1_000) for name in self.names
            ]
            return ListProducerNamesResponse(names=[*listed, ListedProducerName(name="x", error="garbage")])
        if not isinstance(body, DeleteProducerNamesRequest):
            return None
        results = []
        for name in body.names:
            code = ErrorCode.NONE if name in self.names else ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            self.names = [each for each in self.names if each != name]
            results.append(DeletedProducerName(name=name, error_code=code, error_message="as the test wants"))
        if self.lose_answers:
            self.lose_answers -= 1
            request.close_connection("the answer is lost")
            return True
        return DeleteProducerNamesResponse(responses=results)


def test_the_names_of_producers_are_listed(cluster: FakeCluster) -> None:
    ProducerNames(cluster, ["orders"])

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            orders, broken = await admin.list_producer_names()
        assert orders == ProducerNameDescription("orders", 7, 3, 1_000)
        assert broken == ProducerNameDescription("x", None, None, None, "garbage")

    cluster.run(main)


def test_a_name_of_a_producer_is_deleted_once(cluster: FakeCluster) -> None:
    ProducerNames(cluster, ["orders", "bills"])

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            await admin.delete_producer_name("orders")
            with pytest.raises(UnknownProducerName, match="as the test wants"):
                await admin.delete_producer_name("orders")
            results = await admin.delete_producer_names(["bills", "none", "bills"])
        assert results["bills"] is None
        assert isinstance(results["none"], UnknownProducerName)
        assert list(results) == ["bills", "none"]

    cluster.run(main)


def test_a_deletion_of_a_name_whose_answer_was_lost_has_succeeded(cluster: FakeCluster) -> None:
    ProducerNames(cluster, ["orders"]).lose_answers = 1

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            await admin.delete_producer_name("orders")

    cluster.run(main)


def test_a_controller_without_zookeeper_is_named_as_the_cause(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It was silent for 30 s, and said that the controller had moved."""

    def lose_zookeeper(broker: int, request: IncomingRequest) -> Response | None:
        if isinstance(request.body, MetadataRequest):
            answer = cluster.brokers[broker].metadata(request.body)
            assert isinstance(answer, MetadataResponse)
            return msgspec.structs.replace(answer, fenced=True)
        return Response(error_code=ErrorCode.NOT_CONTROLLER) if isinstance(request.body, CreateTopicsRequest) else None

    cluster.intercept = lose_zookeeper

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            with pytest.raises(CallTimedOut) as caught:
                await admin.create_topic("new", timeout_ms=5_000)
        assert "last error: NOT_CONTROLLER: the broker at broker" in str(caught.value)
        assert "has lost ZooKeeper" in str(caught.value)

    cluster.run(main)
    (warning,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert warning.startswith("minibroker-admin: waiting up to 5 s for the controller: NOT_CONTROLLER: the broker at ")
