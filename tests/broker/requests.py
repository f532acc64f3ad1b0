"""A simulated cluster and a client for raw requests: tests see answers exactly as a peer would."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from minibroker.broker.requests.authorization import CLAIMED_SENDERS, CLUSTER_ACTIONS, READS_AS_REPLICA
from minibroker.client.admin import AdminClient
from minibroker.protocol.record_batch import build_batch
from minibroker.protocol.wire import messages as m
from minibroker.protocol.wire.broker_authentication import BrokerName
from minibroker.runtime.broker_dialer import BrokerDialer, Credentials
from minibroker.runtime.rpc import RpcConnection, connect
from minibroker.simulation.cluster import PORT, SimulatedCluster

TOPIC = "t"
R = TypeVar("R", bound=m.Response)


class ClusterClient:
    """A running cluster with topic `t` of one partition, and connections to its brokers."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.runtime = cluster.client_runtime()
        self._connections: dict[tuple[int, int | None], RpcConnection] = {}

    @property
    def leader(self) -> int:
        leader = self.cluster.leader(TOPIC)
        assert leader is not None
        return leader

    @property
    def followers(self) -> list[int]:
        return [b for b in self.cluster.alive() if b != self.leader]

    async def connection(self, broker_id: int, sender: int | None = None) -> RpcConnection:
        """A client's connection, or one that is authenticated as the broker `sender`."""
        known = self._connections.get((broker_id, sender))
        if known is None or known.closed:
            host = f"broker-{broker_id}"
            if sender is None:
                known = await connect(self.runtime.network, host, PORT, client_id="test", timeout_ms=1_000)
            else:
                known = await self.dialer(sender).connect(broker_id, (host, PORT), client_id="test", timeout_ms=1_000)
            self._connections[broker_id, sender] = known
        return known

    def _sender(self, body: m.Request) -> int | None:
        key = m.KEY_OF_REQUEST[type(body)]
        if key in CLUSTER_ACTIONS or (key in READS_AS_REPLICA and getattr(body, "replica_id", -1) >= 0):
            claimed = CLAIMED_SENDERS[type(body)](body)[0]
            return self.cluster.controller() if claimed is None else claimed
        return None

    def dialer(self, sender: int) -> BrokerDialer:
        """A dialer with the credentials of that broker; for an unknown broker, with the shared secret and its id."""
        name = BrokerName(broker_id=sender, broker_epoch=self.broker_epoch(sender), incarnation_id="any")
        dialer = BrokerDialer(self.runtime.network, self.runtime.random)
        secret = self.cluster.brokers[1].secret.key
        dialer.registered(Credentials(name=name, secret=secret))
        return dialer

    async def ask(self, broker_id: int, body: m.Request, response: type[R]) -> R:
        """Send one request to one broker, authenticated as the broker that the request claims to come from, if any."""
        reply = await (await self.connection(broker_id, self._sender(body))).request(body, 60_000)
        assert isinstance(reply, response)
        return reply

    async def produce(
        self,
        broker_id: int | None = None,
        *,
        records: bytearray | None = None,
        acks: int = -1,
        topic: str = TOPIC,
        timeout_ms: int = 30_000,
    ) -> m.ProducePartitionResponse:
        """One batch to the leader (or to that broker)."""
        body = produce_request(batch(b"v") if records is None else records, acks, topic, timeout_ms)
        reply = await self.ask(broker_id or self.leader, body, m.ProduceResponse)
        return reply.responses[0].partition_responses[0]

    async def fetch(
        self, broker_id: int | None = None, offset: int = 0, *, epoch: int = -1, wait_ms: int = 0, replica_id: int = -1
    ) -> m.FetchPartitionResponse:
        """A whole fetch of the partition."""
        item = m.FetchPartition(partition=0, fetch_offset=offset, current_leader_epoch=epoch)
        body = m.FetchRequest(
            replica_id=replica_id,
            replica_epoch=-1 if replica_id < 0 else self.broker_epoch(replica_id),
            max_wait_ms=wait_ms,
            topics=[m.FetchTopic(topic=TOPIC, partitions=[item])],
        )
        reply = await self.ask(broker_id or self.leader, body, m.FetchResponse)
        return reply.responses[0].partitions[0]

    async def list_offset(
        self, timestamp: int, broker_id: int | None = None, replica_id: int = -1
    ) -> m.ListOffsetsPartitionResponse:
        item = m.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        body = m.ListOffsetsRequest(replica_id=replica_id, topics=[m.ListOffsetsTopic(name=TOPIC, partitions=[item])])
        reply = await self.ask(broker_id or self.leader, body, m.ListOffsetsResponse)
        return reply.topics[0].partitions[0]

    def broker_epoch(self, broker_id: int) -> int:
        if broker_id not in self.cluster.brokers:
            return 1
        epoch = self.cluster.brokers[broker_id].registration.broker_epoch
        assert epoch is not None, f"broker {broker_id} is not registered"
        return epoch


def batch(*values: bytes, timestamp_ms: int = 1_000) -> bytearray:
    """A client's batch."""
    return build_batch([(None, value, timestamp_ms, ()) for value in values])


def produce_request(
    records: bytearray, acks: int = -1, topic: str = TOPIC, timeout_ms: int = 30_000
) -> m.ProduceRequest:
    data = m.ProducePartition(index=0, records=records)
    return m.ProduceRequest(
        acks=acks, timeout_ms=timeout_ms, topic_data=[m.ProduceTopic(name=topic, partition_data=[data])]
    )


def in_cluster(
    test: Callable[[ClusterClient], Awaitable[None]], settings: dict[str, str] | None = None, seconds_max: float = 120
) -> None:
    """Run a test against a ready cluster of three."""

    async def live(cluster: SimulatedCluster) -> None:
        cluster.start_all()
        await cluster.until_ready()
        async with AdminClient(bootstrap_servers=cluster.bootstrap_servers, runtime=cluster.client_runtime()) as admin:
            await admin.create_topic(TOPIC, partitions=1, replication_factor=3)
        await cluster.until(lambda: cluster.in_sync_replicas(TOPIC) == (1, 2, 3), what="a topic with a full ISR")
        await test(ClusterClient(cluster))

    cluster = SimulatedCluster(seed=1, settings={"replica.lag.time.max.ms": "3000", **(settings or {})})
    cluster.world.run(live(cluster), seconds_max)
