"""Health and the table of replicas, from the brokers' answers."""

import msgspec
import pytest

from minibroker.observation import cures
from minibroker.observation.broker_queries import BrokerQueries, NoAnswer, R
from minibroker.observation.cluster_view import (
    BrokerView,
    ClusterView,
    health_problems,
    partitions_of,
    problems_of,
    view_cluster,
    with_present_leaders,
)
from minibroker.observation.cures import ZOOKEEPER_CURE
from minibroker.observation.replica_table import replica_rows
from minibroker.protocol.counted import NAMES_SHOWN
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    DescribeClusterResponse,
    DescribedEpoch,
    DescribedReplicaTopic,
    DescribeReplicaStateRequest,
    DescribeReplicaStateResponse,
    ElectLeadersRequest,
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    RemoteReplicaState,
    ReplicaStateDescription,
    Request,
)

T0 = TopicPartition("t", 0)
ELECT = "(`minibroker partition elect t-0` shows what each replica holds, and which one --accept-loss would elect)"
NO_CONTROLLER = "(start the brokers that are down, or check whether ZooKeeper runs)"


def replica(role: str, log_end_offset: int, epoch: int = 0) -> ReplicaStateDescription:
    remotes = [RemoteReplicaState(replica_id=3, log_end_offset=7)] if role == "leader" else []
    return ReplicaStateDescription(
        partition=0, role=role, leader_epoch=epoch, log_end_offset=log_end_offset, high_watermark=5, remotes=remotes
    )


def broker(broker_id: int, described: ReplicaStateDescription | None, incarnation: str = "a") -> BrokerView:
    if described is None:
        return BrokerView(broker_id=broker_id, server=f"h:{broker_id}", description=None, problem="refused")
    topics = [DescribedReplicaTopic(topic="t", partitions=[described])]
    answer = DescribeReplicaStateResponse(broker_id=broker_id, incarnation_id=incarnation, topics=topics)
    return BrokerView(broker_id=broker_id, server=f"h:{broker_id}", description=answer, problem=None)


def view(leader: int = 1, epoch: int = 0, isr: tuple[int, ...] = (1, 2, 3), **changes: BrokerView) -> ClusterView:
    brokers = {
        "one": broker(1, replica("leader", 10)),
        "two": broker(2, replica("follower", 9)),
        "three": broker(3, replica("follower", 7)),
    } | changes
    partition = MetadataPartition(
        partition_index=0, leader_id=leader, leader_epoch=epoch, replica_nodes=[1, 2, 3], isr_nodes=list(isr)
    )
    return ClusterView(
        taken_at=0.0, cluster_id="c", controller_id=1, brokers=list(brokers.values()), partitions={T0: partition}
    )


def without_replica(broker_id: int) -> BrokerView:
    """A broker that answers without the replica that the metadata assigns to it."""
    answer = DescribeReplicaStateResponse(broker_id=broker_id, incarnation_id="a")
    return BrokerView(broker_id=broker_id, server=f"h:{broker_id}", description=answer, problem=None)


def without_broker(broker_id: int) -> ClusterView:
    whole = view()
    return msgspec.structs.replace(whole, brokers=[each for each in whole.brokers if each.broker_id != broker_id])


def on_directory(healthy: BrokerView, state: str, reason: str) -> BrokerView:
    assert healthy.description is not None
    answer = msgspec.structs.replace(healthy.description, log_directory=state, log_directory_reason=reason)
    return msgspec.structs.replace(healthy, description=answer)


def test_of_many_ignored_znodes_the_first_are_named() -> None:
    ignored_nodes = {f"/brokers/topics/{number}": "why" for number in range(NAMES_SHOWN + 3)}
    problems = health_problems(msgspec.structs.replace(view(), ignored_nodes=ignored_nodes))
    assert len(problems) == NAMES_SHOWN + 1
    assert problems[-1] == "the controller ignores 3 more nodes in ZooKeeper"


def test_healthy_cluster_has_no_problems() -> None:
    assert health_problems(view(), 3) == []


@pytest.mark.parametrize(
    ("unhealthy", "reason"),
    [
        (msgspec.structs.replace(view(), topic_deletions={"t": "t waits for broker 3"}), "t waits for broker 3"),
        (
            msgspec.structs.replace(view(), ignored_nodes={"/brokers/topics/x": "'partitions' is missing"}),
            "the controller ignores /brokers/topics/x in ZooKeeper: 'partitions' is missing"
            " (correct the node, or delete it if nothing uses it; then restart the broker that is the controller:"
            " the next controller reads everything again)",
        ),
        (view(isr=(1, 2)), "t-0 is under-replicated: ISR [1, 2] of [1, 2, 3], missing [3]"),
        (view(leader=-1), f"t-0 has no leader: replicas [1, 2, 3], ISR [1, 2, 3] {ELECT}"),
        (
            msgspec.structs.replace(view(leader=-1), waits={TopicPartition("t", 0): "waiting for brokers [3]"}),
            f"t-0 has no leader: replicas [1, 2, 3], ISR [1, 2, 3]; waiting for brokers [3] {ELECT}",
        ),
        (view(three=broker(3, None)), "broker 3 does not answer: refused (it has replicas of t-0)"),
        (view(three=without_replica(3)), "t-0: broker 3 answers, but has no replica of it"),
        (without_broker(3), "t-0: broker 3 is in the ISR but not registered"),
        (view(two=broker(2, replica("none", 9))), "t-0: broker 2 should be follower, but is 'none'"),
        (view(two=broker(2, replica("leader", 9))), "t-0: broker 2 should be follower, but is 'leader'"),
        (
            view(epoch=1, one=broker(1, replica("leader", 10, 1)), two=broker(2, replica("follower", 9, 1))),
            "t-0: the replica on broker 3 is still in leader epoch 0, the metadata in 1",
        ),
        (
            view(two=broker(2, msgspec.structs.replace(replica("offline", 9), why_offline="a bit flipped"))),
            "t-0: the replica on broker 2 is offline: a bit flipped",
        ),
        (
            view(one=broker(1, msgspec.structs.replace(replica("leader", 10), damage="a bit flipped"))),
            "t-0: broker 1 leads with a damaged log, and readers of the damaged range are refused: a bit flipped (start"
            " the brokers that hold a copy, or cut the log with `minibroker log repair` if none does)",
        ),
        (
            view(two=on_directory(broker(2, replica("offline", 9)), "full", "no space left")),
            f"log directory of broker 2 is full: no space left ({cures.MAKE_ROOM})",
        ),
        (
            view(isr=(1, 2, 3), two=on_directory(broker(2, replica("follower", 9)), "offline", "input/output error")),
            f"log directory of broker 2 is offline: input/output error ({cures.START_AGAIN})",
        ),
        (msgspec.structs.replace(view(), controller_id=-1), f"no controller is elected {NO_CONTROLLER}"),
        (msgspec.structs.replace(view(), controller_id=9), f"no controller is elected {NO_CONTROLLER}"),
        (
            view(two=broker(2, replica("leader", 9, epoch=1))),  # the metadata is from a leader that was paused
            "t-0: broker 2 is in leader epoch 1, the metadata still in 0",
        ),
    ],
)
def test_each_problem_is_named(unhealthy: ClusterView, reason: str) -> None:
    assert health_problems(unhealthy, 3 if len(unhealthy.brokers) == 3 else None) == [reason]


def test_a_damaged_only_copy_is_named_once() -> None:
    offline = msgspec.structs.replace(replica("offline", 9), why_offline="a bit flipped")
    waits = {T0: "broker 2 has a damaged log: a bit flipped"}
    (reason,) = health_problems(msgspec.structs.replace(view(leader=-1, two=broker(2, offline)), waits=waits))
    assert reason == f"t-0 has no leader: replicas [1, 2, 3], ISR [1, 2, 3]; {waits[T0]} {ELECT}"


def test_missing_brokers_are_counted() -> None:
    assert health_problems(view(), 4) == ["3 of 4 brokers are registered: [1, 2, 3]"]


def test_lag_is_counted_from_the_leader() -> None:
    rows = replica_rows(view())
    assert [(row.broker, row.role, row.lag) for row in rows] == [
        (1, "leader", 0),
        (2, "follower", 1),
        (3, "follower", 3),
    ]


def test_lag_of_a_silent_broker_comes_from_the_leader() -> None:
    row = replica_rows(view(three=broker(3, None), isr=(1, 2)))[2]
    assert (row.role, row.lag, row.in_sync, row.log_end_offset) == ("no answer", 3, False, None)


def test_without_zookeeper_the_cure_is_zookeeper_and_no_election() -> None:
    """Once `partition elect` was named as the cure."""
    fenced = []
    for described in view().brokers:
        assert described.description is not None
        answer = msgspec.structs.replace(described.description, fenced=True)
        fenced.append(msgspec.structs.replace(described, description=answer))
    seen = with_present_leaders(msgspec.structs.replace(view(), brokers=fenced))
    assert (seen.controller_id, seen.partitions[T0].leader_id) == (-1, -1), "once it showed who had led before"
    assert with_present_leaders(view()) == view()
    (reason,) = health_problems(msgspec.structs.replace(view(leader=-1), brokers=fenced))
    assert reason == f"no broker leads a partition, because all have lost ZooKeeper ({ZOOKEEPER_CURE})", "once of each"
    one_fenced = msgspec.structs.replace(view(), brokers=[fenced[0], *view().brokers[1:]])
    assert health_problems(one_fenced) == [f"broker 1 is fenced, because it has lost ZooKeeper ({ZOOKEEPER_CURE})"]


def test_a_dead_replica_lacks_at_least_the_records_of_the_leaders_epoch() -> None:
    """Its leader forgot where it was when the new epoch began, and LAG was '-' however far the leader went."""
    led = msgspec.structs.replace(
        replica("leader", 10, epoch=2),
        remotes=[],
        epoch_history=[DescribedEpoch(epoch=0, start_offset=0), DescribedEpoch(epoch=2, start_offset=4)],
    )
    row = replica_rows(view(one=broker(1, led), three=broker(3, None)))[2]
    assert (row.lag, row.lag_at_least, row.cells()[7]) == (None, 6, "6+")
    nothing_since = msgspec.structs.replace(led, log_end_offset=4)
    assert replica_rows(view(one=broker(1, nothing_since), three=broker(3, None)))[2].cells()[7] is None


def test_a_partition_that_a_broken_broker_lists_twice_is_one() -> None:
    """It was a TypeError."""
    twice = [MetadataPartition(partition_index=0, leader_epoch=epoch) for epoch in (1, 2)]
    topics = [MetadataTopic(name="t", partitions=twice), MetadataTopic(name="t", partitions=twice)]
    assert list(partitions_of(MetadataResponse(topics=topics))) == [T0]


class CutOff(BrokerQueries):
    """Broker 1 led t-0 and was the controller until it lost ZooKeeper; broker 2 is both now, and broker 3 follows."""

    def __init__(self, down: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.down = down

    async def ask(self, server: str, request: Request, kind: type[R], timeout_s: float = 3.0) -> R:
        if server in self.down or isinstance(request, ElectLeadersRequest):
            raise NoAnswer(f"{server} refused")
        answer: object = DescribeClusterResponse()
        if isinstance(request, DescribeReplicaStateRequest):
            role = "leader" if server == "h:2" else "follower"
            answer = broker(int(server[-1]), replica(role, 9, epoch=1)).description
        elif isinstance(request, MetadataRequest):
            answer = self.metadata_of(server)
        assert isinstance(answer, kind)
        return answer

    def metadata_of(self, server: str) -> MetadataResponse:
        is_fenced = server == "h:1"
        known = (1, 2, 3) if is_fenced else (2, 3)
        partition = MetadataPartition(
            partition_index=0,
            leader_id=-1 if is_fenced else 2,
            leader_epoch=0 if is_fenced else 1,
            replica_nodes=[2, 3],
            isr_nodes=[2, 3],
        )
        return MetadataResponse(
            brokers=[MetadataBroker(node_id=each, host="h", port=each) for each in known],
            controller_id=1 if is_fenced else 2,
            fenced=is_fenced,
            topics=[MetadataTopic(name="t", partitions=[partition])],
        )


@pytest.mark.parametrize("servers", ["h:1,h:2,h:3", "h:1"])
async def test_what_a_broker_without_zookeeper_knows_is_not_taken_for_the_cluster(servers: str) -> None:
    """It was asked first: `status` said that t-0 has no leader, and advised an election that accepts losses, while
    broker 2 led it and all was well."""
    found = await view_cluster(CutOff(), servers)
    assert (found.controller_id, health_problems(found)) == (2, [])
    assert health_problems(found, 3) == ["2 of 3 brokers are registered: [2, 3]"]


async def test_where_no_other_broker_answers_its_old_knowledge_is_shown() -> None:
    found = await view_cluster(CutOff(("h:2", "h:3")), "h:1,h:2")
    assert found.controller_id == 1
    assert health_problems(found)


def test_a_full_disk_is_the_cause_and_not_brokers_that_are_down() -> None:
    """To start brokers, or to accept a loss, was the cure of what ends when there is room."""
    full = on_directory(broker(1, replica("offline", 10)), "full", "no space left")
    of_disk, leaderless = problems_of(view(leader=-1, one=full))
    assert of_disk.cure == cures.MAKE_ROOM
    assert leaderless.cure == f"the disk of broker 1 is full: {cures.MAKE_ROOM}"
    full = on_directory(broker(3, replica("offline", 7)), "full", "no space left")
    _, under_replicated = problems_of(view(isr=(1, 2), three=full))
    assert under_replicated.cure == f"the disk of broker 3 is full: {cures.MAKE_ROOM}"
    (other,) = problems_of(view(leader=-1, isr=(1, 2)))
    assert "partition elect" in (other.cure or "")
