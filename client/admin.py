"""The public administration client: topics, settings, the cluster, and the state of replicas.

Owns: which broker gets which request, and retries when the controller moves. Every call has a deadline. A change whose
answer was lost is requested again; 'exists already' (or 'is gone already') then means that the first attempt succeeded.
"""

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Never, TypeVar

from minibroker.client.answered_names import answers_for, left_out
from minibroker.client.argument_hints import with_hints
from minibroker.client.caller_check import CallerCheck
from minibroker.client.cluster import Cluster, ClusterSettings
from minibroker.client.controller_changes import alter_errors, change, create_errors, delete_errors, no_errors
from minibroker.client.default_runtime import runtime_or_default
from minibroker.client.descriptions import (
    BrokerDescription,
    BrokerReplicas,
    ClusterDescription,
    ConfigEntry,
    CreatedTopic,
    NewTopic,
    ProducerNameDescription,
    TopicDescription,
    broker_replicas,
    config_entry,
    creatable,
    producer_name_description,
    resource_of,
    setting_text,
    topic_description,
)
from minibroker.client.errors import (
    BrokerError,
    CallTimedOut,
    ClientClosed,
    MinibrokerError,
    Where,
    broker_error,
)
from minibroker.client.limits import (
    BOOTSTRAP_TIMEOUT_MS,
    CALL_TIMEOUT_MS,
    Deadline,
    check_at_least,
    check_names,
    parse_servers,
)
from minibroker.client.metadata_cache import Address
from minibroker.client.offsets import OffsetAndTimestamp, list_ends, list_offsets
from minibroker.client.public_client import PublicClient
from minibroker.client.topics import with_similar_topic
from minibroker.protocol.counted import some_of
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import BrokerId, TopicPartition, from_wire
from minibroker.protocol.wire.messages import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    AlterableConfig,
    AlterConfigsResource,
    ConfigOperation,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteProducerNamesRequest,
    DeleteProducerNamesResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeReplicaStateRequest,
    DescribeReplicaStateResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListProducerNamesRequest,
    ListProducerNamesResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
    Response,
)
from minibroker.runtime.ports import Runtime

__all__ = [
    "AdminClient",
    "BrokerDescription",
    "BrokerReplicas",
    "ClusterDescription",
    "ConfigEntry",
    "CreatedTopic",
    "NewTopic",
    "OffsetAndTimestamp",
    "ProducerNameDescription",
    "TopicDescription",
]

R = TypeVar("R", bound=Response)


class AdminClient(PublicClient):
    """Creates, describes and changes topics and settings. Use it as `async with AdminClient(...) as admin`."""

    def __init__(
        self,
        *positional: Never,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        client_id: str = "minibroker-admin",
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        metadata_max_age_ms: int = 300_000,
        bootstrap_timeout_ms: int = BOOTSTRAP_TIMEOUT_MS,
        runtime: Runtime | None = None,
        **unknown: Never,
    ) -> None:
        """Opens nothing; `start()` (or `async with`) does that. Raises InvalidCall for invalid values."""
        self._check_arguments(positional, unknown)
        check_at_least(
            1,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
            metadata_max_age_ms=metadata_max_age_ms,
            bootstrap_timeout_ms=bootstrap_timeout_ms,
        )
        self._settings = ClusterSettings(
            bootstrap=parse_servers(bootstrap_servers),
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
            metadata_max_age_ms=metadata_max_age_ms,
            bootstrap_timeout_ms=bootstrap_timeout_ms,
        )
        self._runtime = runtime
        self._started = False
        self._closed = False

    # --------------------------------------------------------------------------------------------------------- life
    async def start(self) -> None:
        """Find the cluster. Raises ClusterUnreachable, with each server's error, after bootstrap_timeout_ms, or
        ClientClosed if it is closed meanwhile."""
        if self._started or self._closed:
            raise ClientClosed("an admin client is started once")
        self._owner = CallerCheck("admin client")
        self._cluster = Cluster(runtime_or_default(self._runtime), self._settings)
        await self._cluster.start(refusals_end_it=self._refusals_end_start)
        if self._closed:
            raise ClientClosed("the admin client was closed before it was open")
        self._started = True

    async def close(self) -> None:
        """Disconnect. Closing twice is fine."""
        if not self._closed and hasattr(self, "_cluster") and not self._cluster.closed:  # else its start has failed
            self._owner.check()
            self._closed = True
            await self._cluster.close()
        self._closed = True

    # --------------------------------------------------------------------------------------------------------- topics
    @with_hints
    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
        *,
        timeout_ms: float = CALL_TIMEOUT_MS,
    ) -> CreatedTopic:
        """Create a topic and wait until every broker knows a leader for each of its partitions.

        Raises TopicAlreadyExists, InvalidReplicationFactor, InvalidPartitions, InvalidConfig, InvalidTopic or
        CallTimedOut.
        """
        topic = NewTopic(name=name, partitions=partitions, replication_factor=replication_factor, configs=configs or {})
        created = await self.create_topics([topic], timeout_ms=timeout_ms)
        result = created[name]
        if isinstance(result, MinibrokerError):
            raise result
        return result

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, timeout_ms: float = CALL_TIMEOUT_MS
    ) -> dict[str, CreatedTopic | BrokerError]:
        """As `create_topic`, for several topics; a topic that failed has its error as value."""
        deadline = self._deadline(timeout_ms)
        wanted = {topic.name: topic for topic in map(creatable, topics)}
        request = CreateTopicsRequest(
            topics=list(wanted.values()), timeout_ms=deadline.remaining_ms(), validate_only=validate_only
        )
        results: dict[str, CreatedTopic | BrokerError] = {}
        made_before = []
        reply, in_doubt = await change(self._cluster_checked(), request, CreateTopicsResponse, deadline, create_errors)
        for answer in answers_for(wanted, reply.topics):
            if answer.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and in_doubt and not validate_only:
                made_before.append(answer.name)
            elif answer.error_code:
                results[answer.name] = broker_error(answer.error_code, Where(topic=answer.name), answer.error_message)
            else:
                results[answer.name] = CreatedTopic(
                    answer.name, answer.topic_id, answer.num_partitions, answer.replication_factor
                )
        created = {name: result.partitions for name, result in results.items() if isinstance(result, CreatedTopic)}
        created |= dict.fromkeys(made_before, 1)
        if created and not validate_only:
            await self._wait_until_propagated(created, deadline, present=True)
        results |= {name: await self._made_before(name, deadline) for name in made_before}
        return results | {name: left_out(name, Where(topic=name)) for name in wanted if name not in results}

    async def _made_before(self, name: str, deadline: Deadline) -> CreatedTopic | BrokerError:
        """What a request whose answer was lost has created."""
        try:
            found = (await self.describe_topics([name], timeout_ms=deadline.remaining_ms()))[name]
        except BrokerError as error:  # it was deleted meanwhile
            return error
        return CreatedTopic(name, found.topic_id, len(found.partitions), found.replication_factor)

    async def delete_topics(
        self, names: Iterable[str], *, timeout_ms: float = CALL_TIMEOUT_MS, answer_ms: float | None = None
    ) -> dict[str, BrokerError | None]:
        """Delete topics and wait until no broker knows them; the value is None or the error.

        A topic with the code REPLICA_NOT_AVAILABLE (a broker is down) or REQUEST_TIMED_OUT is marked for deletion: it
        will be deleted all the same. With `answer_ms` the controller's first answer counts, which comes within it:
        only the search for a controller takes up to `timeout_ms`.
        """
        deadline = self._deadline(timeout_ms)
        wanted = check_names(names)
        reply, in_doubt = await self._delete_in_time(wanted, deadline, answer_ms)
        results: dict[str, BrokerError | None] = {name: left_out(name, Where(topic=name)) for name in wanted}
        for answer in answers_for(wanted, reply.responses):
            gone = answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and in_doubt
            if answer.error_code and not gone:
                results[answer.name] = broker_error(answer.error_code, Where(topic=answer.name), answer.error_message)
            else:
                results[answer.name] = None
        deleted = [name for name, error in results.items() if error is None]
        if deleted:
            await self._wait_until_propagated(dict.fromkeys(deleted, 0), deadline, present=False)
        return results

    async def _delete_in_time(
        self, names: list[str], deadline: Deadline, answer_ms: float | None
    ) -> tuple[DeleteTopicsResponse, bool]:
        """Repeats requests that the controller answers before they time out here: its last answer says what the
        deletion waits for."""
        has_begun = False
        while True:
            limit_ms = deadline.at_most(min(self._settings.request_timeout_ms, answer_ms or math.inf))
            request = DeleteTopicsRequest(topic_names=names, timeout_ms=max(limit_ms - ANSWER_SLACK_MS, limit_ms // 2))
            reply, in_doubt = await change(
                self._cluster_checked(), request, DeleteTopicsResponse, deadline, delete_errors, answer_ms
            )
            is_last = answer_ms is not None or deadline.remaining_ms() <= 2 * ANSWER_SLACK_MS
            if is_last or DELETION_WAITS.isdisjoint(delete_errors(reply)):
                return reply, in_doubt or has_begun
            has_begun = True

    async def delete_topic(self, name: str, *, timeout_ms: float = CALL_TIMEOUT_MS) -> None:
        """Delete one topic. Raises UnknownTopicOrPartition or CallTimedOut."""
        error = (await self.delete_topics([name], timeout_ms=timeout_ms))[name]
        if error is not None:
            raise await with_similar_topic(self._cluster_checked(), error)

    async def list_topics(self, *, timeout_ms: float = CALL_TIMEOUT_MS) -> list[str]:
        """Names of all topics, sorted."""
        return sorted(await self.describe_topics(timeout_ms=timeout_ms))

    async def describe_topics(
        self, names: Iterable[str] | None = None, *, timeout_ms: float = CALL_TIMEOUT_MS
    ) -> dict[str, TopicDescription]:
        """Leader, epoch, replicas and ISR of each partition of these topics, or of all.

        Raises UnknownTopicOrPartition if one of the named topics does not exist.
        """
        asked = None if names is None else [MetadataRequestTopic(name=name) for name in check_names(names)]
        request = MetadataRequest(topics=asked)
        reply = await self._cluster_checked().ask_any(request, MetadataResponse, self._deadline(timeout_ms))
        result: dict[str, TopicDescription] = {}
        wanted = None if asked is None else [topic.name for topic in asked]
        for topic in reply.topics if wanted is None else answers_for(wanted, reply.topics):
            if topic.error_code and not topic.partitions:
                if asked is None:
                    continue  # being deleted
                error = broker_error(topic.error_code, Where(topic=topic.name))
                raise await with_similar_topic(self._cluster_checked(), error)
            result[topic.name] = topic_description(topic)
        for name in wanted or ():
            if name not in result:
                raise left_out(name, Where(topic=name))
        return result

    # -------------------------------------------------------------------------------------------------------- cluster
    async def describe_cluster(self, *, timeout_ms: float = CALL_TIMEOUT_MS) -> ClusterDescription:
        """Live brokers with their addresses, and the controller."""
        reply = await self._cluster_checked().ask_any(
            DescribeClusterRequest(), DescribeClusterResponse, self._deadline(timeout_ms)
        )
        brokers = [
            BrokerDescription(broker.broker_id, Address(broker.host, broker.port), from_wire(broker.broker_epoch))
            for broker in sorted(reply.brokers, key=lambda broker: broker.broker_id)
        ]
        return ClusterDescription(
            reply.cluster_id, from_wire(reply.controller_id), from_wire(reply.controller_epoch), brokers
        )

    async def describe_replica_state(
        self, topics: Iterable[str] | None = None, *, timeout_ms: float = 5_000
    ) -> dict[BrokerId, BrokerReplicas]:
        """Ask every registered broker for its replicas (of these topics or of all): role, epochs, LEO, HW, ISR, lag.

        A broker that does not answer in time has its `error` set; the others are returned all the same.
        """
        cluster = self._cluster_checked()
        deadline = self._deadline(timeout_ms)
        await cluster.refresh_brokers(deadline)
        request = DescribeReplicaStateRequest(topics=None if topics is None else list(dict.fromkeys(topics)))
        broker_ids = sorted(cluster.metadata.brokers)
        answers = await asyncio.gather(*(self._replicas_of(broker_id, request, deadline) for broker_id in broker_ids))
        return dict(zip(broker_ids, answers, strict=True))

    async def _replicas_of(
        self, broker_id: BrokerId, request: DescribeReplicaStateRequest, deadline: Deadline
    ) -> BrokerReplicas:
        try:
            reply = await self._cluster.ask(broker_id, request, DescribeReplicaStateResponse, deadline)
        except MinibrokerError as error:
            return BrokerReplicas(broker_id, error=error)
        return broker_replicas(broker_id, reply)

    # -------------------------------------------------------------------------------------------------------- offsets
    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, timeout_ms: float = CALL_TIMEOUT_MS
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """The first offset of each partition that is not older than its timestamp in ms; EARLIEST_TIMESTAMP (-2) and
        LATEST_TIMESTAMP (-1, the high watermark) as in Kafka."""
        wanted = {TopicPartition(*partition): timestamp for partition, timestamp in timestamps.items()}
        return await list_offsets(self._cluster_checked(), wanted, self._deadline(timeout_ms))

    async def offsets(
        self, topic: str, *, timeout_ms: float = CALL_TIMEOUT_MS
    ) -> dict[TopicPartition, tuple[int, int]]:
        """(log start offset, high watermark) of each partition of a topic."""
        deadline = self._deadline(timeout_ms)
        described = await self.describe_topics([topic], timeout_ms=deadline.remaining_ms())
        partitions = [TopicPartition(topic, partition.partition) for partition in described[topic].partitions]
        cluster = self._cluster_checked()
        starts = await list_ends(cluster, partitions, EARLIEST_TIMESTAMP, deadline)
        ends = await list_ends(cluster, partitions, LATEST_TIMESTAMP, deadline)
        return {partition: (starts[partition], ends[partition]) for partition in partitions}

    # ------------------------------------------------------------------------------------------------------- settings
    async def describe_configs(
        self, *, topic: str | None = None, broker_id: BrokerId | None = None, timeout_ms: float = CALL_TIMEOUT_MS
    ) -> dict[str, ConfigEntry]:
        """The settings of one topic or one broker, with the source of each value."""
        kind, name = resource_of(topic, broker_id)
        request = DescribeConfigsRequest(
            resources=[DescribeConfigsResource(resource_type=kind.value, resource_name=name)]
        )
        cluster, deadline = self._cluster_checked(), self._deadline(timeout_ms)
        if broker_id is not None:
            reply = await cluster.ask(broker_id, request, DescribeConfigsResponse, deadline)
        else:
            reply = await cluster.ask_any(request, DescribeConfigsResponse, deadline)
        for result in reply.results:
            if result.error_code:
                raise broker_error(result.error_code, Where(topic=topic, broker_id=broker_id), result.error_message)
        return {config.name: config_entry(config) for result in reply.results for config in result.configs}

    async def alter_configs(
        self,
        changes: Mapping[str, str | None],
        *,
        topic: str | None = None,
        broker_id: BrokerId | None = None,
        validate_only: bool = False,
        timeout_ms: float = CALL_TIMEOUT_MS,
    ) -> None:
        """Set (or with None: unset) some settings of one topic or one broker; others stay. Raises InvalidConfig."""
        kind, name = resource_of(topic, broker_id)
        configs = [
            AlterableConfig(
                name=key,
                config_operation=int(ConfigOperation.DELETE if value is None else ConfigOperation.SET),
                value=None if value is None else setting_text(value),
            )
            for key, value in changes.items()
        ]
        resource = AlterConfigsResource(resource_type=kind.value, resource_name=name, configs=configs)
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        reply, _ = await change(
            self._cluster_checked(), request, IncrementalAlterConfigsResponse, self._deadline(timeout_ms), alter_errors
        )
        where = Where(topic=topic, broker_id=broker_id)
        if all(result.resource_name != name for result in reply.responses):
            raise left_out(name, where)
        for result in reply.responses:
            if result.error_code:
                error = broker_error(result.error_code, where, result.error_message)
                raise await with_similar_topic(self._cluster_checked(), error)

    # -------------------------------------------------------------------------------------------------- producer names
    async def list_producer_names(self, *, timeout_ms: float = CALL_TIMEOUT_MS) -> list[ProducerNameDescription]:
        """The names that producers were given (`Producer(producer_name=..)`), in order."""
        reply = await self._cluster_checked().ask_any(
            ListProducerNamesRequest(), ListProducerNamesResponse, self._deadline(timeout_ms)
        )
        return [producer_name_description(listed) for listed in reply.names]

    async def delete_producer_names(
        self, names: Iterable[str], *, timeout_ms: float = CALL_TIMEOUT_MS
    ) -> dict[str, BrokerError | None]:
        """Forget these names; the value is None or the error. A process that runs under a name is not fenced by that,
        nor by a later start: end it first. It gets ProducerFenced when it needs its next epoch."""
        wanted = check_names(names)
        request = DeleteProducerNamesRequest(names=wanted)
        reply, in_doubt = await change(
            self._cluster_checked(), request, DeleteProducerNamesResponse, self._deadline(timeout_ms), no_errors
        )
        results: dict[str, BrokerError | None] = {name: left_out(name) for name in wanted}
        for answer in answers_for(wanted, reply.responses):
            gone = answer.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND and in_doubt
            failed = answer.error_code and not gone
            results[answer.name] = broker_error(answer.error_code, message=answer.error_message) if failed else None
        return results

    async def delete_producer_name(self, name: str, *, timeout_ms: float = CALL_TIMEOUT_MS) -> None:
        """Forget one name, as `delete_producer_names`. Raises UnknownProducerName."""
        error = (await self.delete_producer_names([name], timeout_ms=timeout_ms))[name]
        if error is not None:
            raise error

    # --------------------------------------------------------------------------------------------------------- pieces
    async def _wait_until_propagated(self, topics: Mapping[str, int], deadline: Deadline, *, present: bool) -> None:
        """Wait until every live broker knows leaders for so many partitions of each topic, which come one after the
        other if there are many (or has forgotten the topics)."""
        cluster = self._cluster_checked()
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in topics])
        await cluster.refresh_brokers(deadline)
        waiting = sorted(cluster.metadata.brokers)
        while waiting:
            asked = (self._knows(broker_id, request, topics, present) for broker_id in waiting)
            answers = await asyncio.gather(*asked)
            waiting = [broker_id for broker_id, knows in zip(waiting, answers, strict=True) if not knows]
            if waiting and not await deadline.pause(self._settings.retry_backoff_ms / 2):
                singular, plural = ("does not know", "do not know") if present else ("still has", "still have")
                who = f"broker {waiting[0]} {singular}" if len(waiting) == 1 else f"brokers {waiting} {plural}"
                raise CallTimedOut(
                    f"it is done, but {who} {some_of([*topics])} after {round(deadline.timeout_ms)} ms:"
                    " `minibroker doctor` names what is wrong, and the cure"
                )

    async def _knows(
        self, broker_id: BrokerId, request: MetadataRequest, topics: Mapping[str, int], present: bool
    ) -> bool:
        try:
            reply = await self._cluster.ask(broker_id, request, MetadataResponse, Deadline(1_000))
        except ClientClosed:
            raise  # by another task
        except MinibrokerError:
            # a broker that failed meanwhile is not waited for, once the cluster has noticed
            return broker_id not in self._cluster.metadata.brokers
        known = {topic.name: topic for topic in reply.topics if not topic.error_code}
        if not present:
            return known.keys().isdisjoint(topics)
        return all(name in known and _is_led(known[name], count) for name, count in topics.items())

    def _deadline(self, timeout_ms: float) -> Deadline:
        self._cluster_checked()
        return Deadline(timeout_ms)

    def _cluster_checked(self) -> Cluster:
        if not self._started or self._closed:
            raise ClientClosed("the admin client is not open: use `async with AdminClient(...)` or `await start()`")
        self._owner.check()
        return self._cluster


def _is_led(topic: MetadataTopic, partitions: int) -> bool:
    """Whether it has so many partitions, and all have leaders."""
    return len(topic.partitions) >= partitions and all(each.leader_id >= 0 for each in topic.partitions)


ANSWER_SLACK_MS = 1_000
"""A controller that has to wait must answer this long before the request times out here."""
DELETION_WAITS = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REPLICA_NOT_AVAILABLE})
"""Answers for a topic that is marked for deletion and still there: brokers that run have not deleted it yet, or brokers
that are down hold replicas of it."""
