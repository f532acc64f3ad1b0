"""Brokers for the client's tests: one shared state, several servers that answer from it, and faults on demand.

The log of a partition is one list of batches for all brokers (as if replication were perfect), with the producer state
of a real broker in front of it: so an unrecognised retry shows up as an extra record.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import SEQUENCE_MAX, BatchHeader, decode_records, read_header, stamp
from minibroker.protocol.wire.messages import (
    APIS,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    CurrentLeader,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartitionResponse,
    OffsetForLeaderTopicResponse,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
    Request,
    Response,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.server import IncomingRequest, RpcServer
from minibroker.simulation.world.world import SimulatedWorld

PORT = 9092
CLIENT = "client"
T = TypeVar("T")
Handled = Response | None
"""None: never answered."""


class FakePartition:
    """The one log of a partition."""

    def __init__(self, leader: int | None, replicas: list[int]) -> None:
        self.leader = leader
        self.leader_epoch = 0
        self.replicas = replicas
        self.isr = list(replicas)
        self.batches: list[bytes] = []
        self.start_offset = 0
        self.end_offset = 0
        self.epoch_ends: dict[int, int] = {}
        self.producers: dict[int, tuple[int, deque[tuple[int, int, int]]]] = {}
        """producer id -> (epoch, last forty (first sequence, last sequence, base offset))."""
        self.forgets_producers = False

    def append(self, records: bytes) -> tuple[ErrorCode, int]:
        header = read_header(records)
        if header.producer_id >= 0:
            code, offset = self._check(header)
            if code is not ErrorCode.NONE or offset is not None:
                return code, -1 if offset is None else offset
        batch = bytearray(records)
        offset = self.end_offset
        stamp(batch, offset, self.leader_epoch)
        self.batches.append(bytes(batch))
        self.end_offset += header.record_count
        self.epoch_ends[self.leader_epoch] = self.end_offset
        if header.producer_id >= 0:
            _, recent = self.producers.setdefault(header.producer_id, (header.producer_epoch, deque(maxlen=40)))
            recent.append((header.base_sequence, header.last_sequence, offset))
            self.producers[header.producer_id] = (header.producer_epoch, recent)
        return ErrorCode.NONE, offset

    def _check(self, header: BatchHeader) -> tuple[ErrorCode, int | None]:
        known = self.producers.get(header.producer_id)
        if known is None:
            return (ErrorCode.UNKNOWN_PRODUCER_ID if header.base_sequence else ErrorCode.NONE), None
        epoch, recent = known
        if header.producer_epoch < epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, None
        if header.producer_epoch > epoch:
            if header.base_sequence != 0:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None
            recent.clear()
            return ErrorCode.NONE, None
        for first, last, offset in recent:
            if (first, last) == (header.base_sequence, header.last_sequence):
                return ErrorCode.NONE, offset
        if recent and header.base_sequence != (recent[-1][1] + 1) & SEQUENCE_MAX:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None
        return ErrorCode.NONE, None

    def elect(self, leader: int | None) -> None:
        """A new leader and a new epoch."""
        self.leader = leader
        self.leader_epoch += 1
        self.epoch_ends[self.leader_epoch] = self.end_offset
        if leader is not None and leader not in self.isr:
            self.isr = [leader]

    def as_hint(self) -> CurrentLeader:
        """What another broker tells of its leader."""
        return CurrentLeader(leader_id=-1 if self.leader is None else self.leader, leader_epoch=self.leader_epoch)

    def truncate_to(self, end: int) -> None:
        """Lose the tail (an unclean election)."""
        self.batches = [batch for batch in self.batches if read_header(batch).end_offset <= end]
        self.end_offset = read_header(self.batches[-1]).end_offset if self.batches else self.start_offset
        self.epoch_ends = {epoch: min(stop, self.end_offset) for epoch, stop in self.epoch_ends.items()}

    def trim_before(self, start: int) -> None:
        """Lose the head (retention)."""
        self.batches = [batch for batch in self.batches if read_header(batch).end_offset > start]
        self.start_offset = start

    def values(self) -> list[bytes | None]:
        return [record.value for batch in self.batches for record in decode_records(batch)]

    def headers(self) -> list[BatchHeader]:
        return [read_header(batch) for batch in self.batches]


class FakeCluster:
    """The shared state, the brokers, and the faults."""

    def __init__(self, world: SimulatedWorld, broker_count: int = 3) -> None:
        self.world = world
        self.brokers = {broker: FakeBroker(self, broker) for broker in range(1, broker_count + 1)}
        self.partitions: dict[TopicPartition, FakePartition] = {}
        self.topic_ids: dict[str, str] = {}
        self.advertised: dict[int, tuple[str, int]] = {broker: (f"broker{broker}", PORT) for broker in self.brokers}
        self.next_producer_id = 1_000
        self.controller_id = 1
        self.requests: dict[type[Request], list[tuple[int, Request]]] = defaultdict(list)
        """All requests: (broker, request) by kind, in order."""
        self.producer_names: dict[str, tuple[int, int]] = {}
        self.intercept: Callable[[int, IncomingRequest], Response | bool | None] = lambda broker, request: None
        """Called before a request is handled. Returns a response: that is the answer. True: the request is dropped,
        without answer and effect. False: handled, but the answer is lost with the connection. None: as usual."""

    def add_topic(self, name: str, partition_count: int = 1) -> None:
        brokers = list(self.brokers)
        for index in range(partition_count):
            replicas = [brokers[(index + shift) % len(brokers)] for shift in range(len(brokers))]
            self.partitions[TopicPartition(name, index)] = FakePartition(replicas[0], replicas)
        self.topic_ids[name] = f"id-of-{name}"

    def make_again(self, name: str) -> None:
        """Delete the topic and create another one of its name. No client is notified."""
        count = sum(1 for topic, _ in self.partitions if topic == name)
        before = self.topic_ids[name]
        self.add_topic(name, count)
        self.topic_ids[name] = f"{before}-again"
        self.brokers[1].wake_fetches()

    def start(self) -> None:
        for broker in self.brokers:
            self.start_broker(broker)

    def start_broker(self, broker: int) -> None:
        self.world.start(f"broker{broker}", self.brokers[broker].run)

    def kill(self, broker: int) -> None:
        self.world.kill(f"broker{broker}")

    def partition(self, topic: str, index: int = 0) -> FakePartition:
        return self.partitions[TopicPartition(topic, index)]

    def asked(self, kind: type[Request]) -> int:
        return len(self.requests[kind])

    @property
    def bootstrap(self) -> str:
        return ",".join(f"broker{broker}:{PORT}" for broker in self.brokers)

    def run(self, main: Callable[[Runtime], Coroutine[Any, Any, T]], seconds_max: float = 600) -> T:
        """Start the brokers, then run `main` as a process of its own on another machine, to its end."""

        async def drive() -> T:
            self.start()
            await asyncio.sleep(0.01)
            return await self.world.spawn(CLIENT, main(self.world.runtime(CLIENT)))

        return self.world.run(drive(), seconds_max)


class FakeBroker:
    """Answers one port."""

    def __init__(self, cluster: FakeCluster, broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.metadata_of: MetadataResponse | None = None
        """Stale metadata that this broker reports instead of the shared state."""
        self._waiting: list[Callable[[], None]] = []

    async def run(self, runtime: Runtime) -> None:
        server = RpcServer(runtime.network, self.handle)
        await server.start("", PORT)
        await asyncio.Event().wait()

    def handle(self, request: IncomingRequest) -> None:
        body = request.body
        self.cluster.requests[type(body)].append((self.broker_id, body))
        fault = self.cluster.intercept(self.broker_id, request)
        if fault is True:
            return
        if isinstance(fault, Response):
            request.respond(fault)
            return
        if isinstance(body, FetchRequest) and fault is None:
            self._fetch_or_wait(request, body)
            return
        answer = HANDLERS[type(body)](self, body)
        if fault is False:
            request.close_connection("the answer is lost")
        elif isinstance(body, ProduceRequest) and body.acks == 0:
            request.finish_without_reply()
        else:
            request.respond(answer)

    # ------------------------------------------------------------------------------------------------------- answers
    def api_versions(self, body: ApiVersionsRequest) -> Response:
        return ApiVersionsResponse(api_keys=[ApiVersion(api_key=key) for key in APIS], broker_software_version="fake")

    def metadata(self, body: MetadataRequest) -> Response:
        if self.metadata_of is not None:
            return self.metadata_of
        cluster = self.cluster
        names = sorted(cluster.topic_ids) if body.topics is None else [topic.name for topic in body.topics]
        brokers = [
            MetadataBroker(node_id=broker, host=host, port=port)
            for broker, (host, port) in cluster.advertised.items()
            if cluster.world.is_alive(f"broker{broker}") or (host, port) != (f"broker{broker}", PORT)
        ]
        topics = []
        for name in names:
            if name not in cluster.topic_ids:
                topics.append(MetadataTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name))
                continue
            partitions = [
                MetadataPartition(
                    partition_index=index,
                    leader_id=-1 if partition.leader is None else partition.leader,
                    leader_epoch=partition.leader_epoch,
                    replica_nodes=partition.replicas,
                    isr_nodes=partition.isr,
                )
                for (topic, index), partition in cluster.partitions.items()
                if topic == name
            ]
            topics.append(MetadataTopic(name=name, topic_id=cluster.topic_ids[name], partitions=partitions))
        return MetadataResponse(
            brokers=brokers, cluster_id="fake", controller_id=self.cluster.controller_id, topics=topics
        )

    def handle_metadata_now(self, topic: str) -> MetadataResponse:
        """This broker's present metadata of a topic, to be repeated later when it is stale."""
        answer = self.metadata(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]))
        assert isinstance(answer, MetadataResponse)
        return answer

    def init_producer_id(self, body: InitProducerIdRequest) -> Response:
        if body.transactional_id is not None:
            return self._init_named(body.transactional_id, (body.producer_id, body.producer_epoch))
        if body.producer_id >= 0:
            return InitProducerIdResponse(producer_id=body.producer_id, producer_epoch=body.producer_epoch + 1)
        self.cluster.next_producer_id += 1
        return InitProducerIdResponse(producer_id=self.cluster.next_producer_id, producer_epoch=0)

    def _init_named(self, name: str, present: tuple[int, int]) -> Response:
        newest = self.cluster.producer_names.get(name)
        if present[0] >= 0 and present != newest:
            return InitProducerIdResponse(error_code=ErrorCode.INVALID_PRODUCER_EPOCH, error_message="a later process")
        if newest is None:
            self.cluster.next_producer_id += 1
            newest = self.cluster.next_producer_id, -1
        self.cluster.producer_names[name] = newest[0], newest[1] + 1
        return InitProducerIdResponse(producer_id=newest[0], producer_epoch=newest[1] + 1)

    def produce(self, body: ProduceRequest) -> Response:
        topics = []
        for topic in body.topic_data:
            answers = []
            for data in topic.partition_data:
                partition = self.cluster.partitions.get(TopicPartition(topic.name, data.index))
                if partition is None:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    answers.append(ProducePartitionResponse(index=data.index, error_code=code))
                elif partition.leader != self.broker_id:
                    answers.append(self._not_leader(data.index, partition))
                elif topic.topic_id and topic.topic_id != self.cluster.topic_ids[topic.name]:
                    code = ErrorCode.INCONSISTENT_TOPIC_ID
                    answers.append(ProducePartitionResponse(index=data.index, error_code=code))
                else:
                    code, offset = partition.append(bytes(data.records))
                    answers.append(
                        ProducePartitionResponse(
                            index=data.index, error_code=code, base_offset=offset, leader_epoch=partition.leader_epoch
                        )
                    )
            topics.append(ProduceTopicResponse(name=topic.name, partition_responses=answers))
        self.wake_fetches()
        return ProduceResponse(responses=topics)

    def _not_leader(self, index: int, partition: FakePartition) -> ProducePartitionResponse:
        leader = partition.as_hint()
        return ProducePartitionResponse(index=index, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=leader)

    def wake_fetches(self) -> None:
        for broker in self.cluster.brokers.values():
            broker.answer_waiting()

    def answer_waiting(self) -> None:
        """Those that wait here."""
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()

    def _fetch_or_wait(self, request: IncomingRequest, body: FetchRequest) -> None:
        answer = self.fetch(body)
        if body.max_wait_ms == 0 or any(p.records or p.error_code for t in answer.responses for p in t.partitions):
            request.respond(answer)
            return
        done = False

        def again() -> None:
            nonlocal done
            if not done:
                done = True
                request.respond(self.fetch(body))

        self._waiting.append(again)
        asyncio.get_running_loop().call_later(body.max_wait_ms / 1000, again)

    def fetch(self, body: FetchRequest) -> FetchResponse:
        return FetchResponse(
            responses=[
                FetchTopicResponse(
                    topic=topic.topic, partitions=[self._fetch_one(topic, asked) for asked in topic.partitions]
                )
                for topic in body.topics
            ]
        )

    def _fetch_one(self, topic: FetchTopic, asked: FetchPartition) -> FetchPartitionResponse:
        partition = self.cluster.partitions.get(TopicPartition(topic.topic, asked.partition))
        code = ErrorCode.NONE
        if partition is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif partition.leader != self.broker_id:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif topic.topic_id and topic.topic_id != self.cluster.topic_ids[topic.topic]:
            code = ErrorCode.INCONSISTENT_TOPIC_ID
        elif asked.current_leader_epoch < partition.leader_epoch:
            code = ErrorCode.FENCED_LEADER_EPOCH
        elif asked.current_leader_epoch > partition.leader_epoch:
            code = ErrorCode.UNKNOWN_LEADER_EPOCH
        elif not partition.start_offset <= asked.fetch_offset <= partition.end_offset:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
        if partition is None or code is not ErrorCode.NONE:
            hint = partition.as_hint() if partition is not None and code is ErrorCode.NOT_LEADER_OR_FOLLOWER else None
            return FetchPartitionResponse(partition_index=asked.partition, error_code=code, current_leader=hint)
        chosen: list[bytes] = []
        for batch in partition.batches:
            if read_header(batch).end_offset > asked.fetch_offset:
                if chosen and sum(map(len, chosen)) + len(batch) > asked.partition_max_bytes:
                    break
                chosen.append(batch)
        return FetchPartitionResponse(
            partition_index=asked.partition,
            high_watermark=partition.end_offset,
            last_stable_offset=partition.end_offset,
            log_start_offset=partition.start_offset,
            records=memoryview(b"".join(chosen)),
        )

    def list_offsets(self, body: ListOffsetsRequest) -> Response:
        topics = []
        for topic in body.topics:
            answers = []
            for asked in topic.partitions:
                partition = self.cluster.partitions.get(TopicPartition(topic.name, asked.partition_index))
                if partition is None or partition.leader != self.broker_id:
                    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                    answers.append(ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=code))
                    continue
                offset = self._offset_at(partition, asked.timestamp)
                answers.append(
                    ListOffsetsPartitionResponse(
                        partition_index=asked.partition_index, offset=offset, leader_epoch=partition.leader_epoch
                    )
                )
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
        return ListOffsetsResponse(topics=topics)

    def _offset_at(self, partition: FakePartition, timestamp: int) -> int:
        if timestamp == EARLIEST_TIMESTAMP:
            return partition.start_offset
        if timestamp == LATEST_TIMESTAMP:
            return partition.end_offset
        for batch in partition.batches:
            for record in decode_records(batch):
                if record.timestamp_ms >= timestamp:
                    return record.offset
        return -1

    def offset_for_leader_epoch(self, body: OffsetForLeaderEpochRequest) -> Response:
        topics = []
        for topic in body.topics:
            answers = []
            for asked in topic.partitions:
                partition = self.cluster.partitions[TopicPartition(topic.topic, asked.partition)]
                if partition.leader != self.broker_id:
                    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                    answers.append(OffsetForLeaderPartitionResponse(partition=asked.partition, error_code=code))
                    continue
                if topic.topic_id and topic.topic_id != self.cluster.topic_ids[topic.topic]:
                    code = ErrorCode.INCONSISTENT_TOPIC_ID
                    answers.append(OffsetForLeaderPartitionResponse(partition=asked.partition, error_code=code))
                    continue
                known = [epoch for epoch in partition.epoch_ends if epoch <= asked.leader_epoch]
                epoch = max(known, default=-1)
                end = partition.epoch_ends.get(epoch, -1)
                answers.append(
                    OffsetForLeaderPartitionResponse(partition=asked.partition, leader_epoch=epoch, end_offset=end)
                )
            topics.append(OffsetForLeaderTopicResponse(topic=topic.topic, partitions=answers))
        return OffsetForLeaderEpochResponse(topics=topics)


HANDLERS: dict[type[Request], Callable[[FakeBroker, Any], Response]] = {
    ApiVersionsRequest: FakeBroker.api_versions,
    MetadataRequest: FakeBroker.metadata,
    InitProducerIdRequest: FakeBroker.init_producer_id,
    ProduceRequest: FakeBroker.produce,
    FetchRequest: FakeBroker.fetch,
    ListOffsetsRequest: FakeBroker.list_offsets,
    OffsetForLeaderEpochRequest: FakeBroker.offset_for_leader_epoch,
}
