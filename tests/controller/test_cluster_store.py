"""Each write of a controller to ZooKeeper ends in what was wanted, whichever of its requests or answers is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from minibroker.controller import cluster_store
from minibroker.controller.cluster_reader import RETRY_SECONDS
from minibroker.controller.cluster_store import ClusterStore, TopicExists
from minibroker.controller.controller_election import ControllerFence
from minibroker.controller.core.controller_state import Topic
from minibroker.controller.core.election import PartitionChange
from minibroker.protocol import znodes
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.ports import Coordination, CreateOp, NodeExists, Operation, Stat, WriteOutcomeUnknown
from tests.controller.cluster import Cluster, simulated
from tests.controller.facts import T0, leadership

TOPIC = T0.topic
CREATED = Topic(topic_id="id", assignment={0: (1, 2, 3)}, configs={"retention.ms": "1"})
FIRST = PartitionChange(partition=T0, before=None, after=leadership(1, 1, 2, 3, epoch=0, version=0), reason="new")
SECOND = PartitionChange(
    partition=T0,
    before=leadership(1, 1, 2, 3, epoch=0, version=0),
    after=leadership(2, 2, 3, epoch=1, version=0),
    reason="1 is gone",
)
MULTIS_MAX = 12
"""No write below needs as many, with what comes before it."""


class LossyCoordination:
    """Loses one multi: its request, or its answer after the write."""

    create: Callable[..., Awaitable[tuple[str, Stat]]]
    """A test may set it."""

    def __init__(self, inner: Coordination) -> None:
        self._inner = inner
        self.sent = 0
        self.lost_number: int | None = None
        self.loses_request = False
        self.before_multi: Callable[[Sequence[Operation]], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        number, self.sent = self.sent, self.sent + 1
        if self.before_multi is not None:
            await self.before_multi(operations)
        assert self.sent < MULTIS_MAX, "it is repeated without end"
        if number == self.lost_number and self.loses_request:
            raise WriteOutcomeUnknown("lost on its way there")
        results = await self._inner.multi(operations)
        if number == self.lost_number:
            raise WriteOutcomeUnknown("lost on its way back")
        return results


async def store_on(cluster: Cluster) -> tuple[ClusterStore, LossyCoordination]:
    await cluster.start()
    _, stat = await cluster.observer.create(znodes.CONTROLLER_EPOCH, b"1")
    coordination: Any = LossyCoordination(cluster.observer)
    return ClusterStore(coordination, ControllerFence(controller_epoch=1, epoch_version=stat.version)), coordination


async def contents(cluster: Cluster, root: str = "") -> dict[str, bytes]:
    """Everything in ZooKeeper."""
    found: dict[str, bytes] = {}
    if root:
        found[root] = (await cluster.observer.get(root))[0]
    for name in await cluster.observer.get_children(root or "/"):
        found |= await contents(cluster, f"{root}/{name}")
    return found


async def nothing(store: ClusterStore) -> None: ...


async def create(store: ClusterStore) -> None:
    await store.create_topic(TOPIC, CREATED)


async def create_bare(store: ClusterStore) -> None:
    """As another tool does."""
    await store.multi([CreateOp(path=znodes.topic_path(TOPIC), data=b"")])


async def create_and_elect(store: ClusterStore) -> None:
    await create(store)
    await store.write_leaderships([FIRST])


async def mark(store: ClusterStore) -> None:
    await create_and_elect(store)
    await store.mark_deleted(TOPIC)


async def write_config(store: ClusterStore) -> None:
    written = await store.write_config(znodes.topic_config_path(TOPIC), lambda before: {**before, "segment.ms": "2"})
    assert written["segment.ms"] == "2"


async def write_first(store: ClusterStore) -> None:
    written = await store.write_leaderships([FIRST])
    assert ([each.partition for each in written.written], written.lost) == ([T0], {})


async def write_second(store: ClusterStore) -> None:
    written = await store.write_leaderships([SECOND])
    assert [each.after.partition_epoch for each in written.written] == [1]


Work = Callable[[ClusterStore], Awaitable[None]]
WRITES: dict[str, tuple[Work, Work]] = {
    "create a topic": (nothing, create),
    "first leadership": (create, write_first),
    "first leadership of a topic without parents": (create_bare, write_first),
    "second leadership": (create_and_elect, write_second),
    "mark a topic": (create_and_elect, lambda store: store.mark_deleted(TOPIC)),
    "begin a deletion": (mark, lambda store: store.begin_deletion(TOPIC)),
    "begin a deletion whose marker is gone": (create_and_elect, lambda store: store.begin_deletion(TOPIC)),
    "erase a topic": (mark, lambda store: store.erase_topic(TOPIC)),
    "first settings": (nothing, write_config),
    "other settings": (create, write_config),
}


@pytest.mark.parametrize("loses_request", [True, False], ids=["request", "answer"])
@pytest.mark.parametrize(("before", "write"), WRITES.values(), ids=WRITES)
def test_any_lost_request_or_answer_of_a_write_leaves_what_was_wanted(
    before: Work, write: Work, loses_request: bool
) -> None:
    async def after_losing(cluster: Cluster, number: int | None) -> tuple[dict[str, bytes], int]:
        store, coordination = await store_on(cluster)
        await before(store)
        coordination.sent, coordination.lost_number, coordination.loses_request = 0, number, loses_request
        await write(store)
        return await contents(cluster), coordination.sent

    def play(number: int | None) -> tuple[dict[str, bytes], int]:
        found: list[tuple[dict[str, bytes], int]] = []

        @simulated
        async def story(cluster: Cluster) -> None:
            found.append(await after_losing(cluster, number))

        story()
        return found[0]

    wanted, count = play(None)
    for number in range(count):
        assert play(number)[0] == wanted, number


@pytest.mark.parametrize("path", [znodes.partitions_path(TOPIC), znodes.partition_path(T0)])
def test_a_parent_that_another_client_creates_at_the_same_moment_is_used(path: str) -> None:
    @simulated
    async def story(cluster: Cluster) -> None:
        store, coordination = await store_on(cluster)
        await cluster.observer.create(znodes.topic_path(TOPIC), b"")

        async def overtake(operations: Sequence[Operation]) -> None:
            if [each.path for each in operations if isinstance(each, CreateOp)] == [path]:
                await cluster.observer.create(path, b"")

        coordination.before_multi = overtake
        await write_first(store)
        assert await cluster.version(TOPIC) == 0

    story()


@simulated
async def test_a_topic_of_another_id_is_not_taken_for_the_own_one(cluster: Cluster) -> None:
    store, _ = await store_on(cluster)
    await create(store)
    with pytest.raises(TopicExists):
        await store.create_topic(TOPIC, msgspec.structs.replace(CREATED, topic_id="another"))


@pytest.mark.parametrize("loses_request", [True, False, None], ids=["request", "answer", "nothing"])
def test_a_registration_is_removed_once_and_a_later_one_stays(loses_request: bool | None) -> None:
    @simulated
    async def story(cluster: Cluster) -> None:
        store, coordination = await store_on(cluster)
        broker = await cluster.add_broker(1)
        await store.unregister(1, broker.broker_epoch - 1)
        assert await cluster.observer.exists(znodes.broker_path(1)) is not None
        coordination.sent, coordination.lost_number = 0, None if loses_request is None else 0
        coordination.loses_request = bool(loses_request)
        await store.unregister(1, broker.broker_epoch)
        assert await cluster.observer.exists(znodes.broker_path(1)) is None

    story()


@simulated
async def test_an_erasure_that_another_client_disturbs_again_and_again_is_repeated_with_pauses(
    cluster: Cluster,
) -> None:
    """ZooKeeper has other work to do."""
    store, coordination = await store_on(cluster)
    await create(store)
    loop, disturbed = cluster.world.loop, 0

    async def disturb(operations: Sequence[Operation]) -> None:
        nonlocal disturbed
        if znodes.topic_path(TOPIC) in [each.path for each in operations] and disturbed < 3:
            disturbed += 1
            await cluster.observer.create(f"{znodes.topic_path(TOPIC)}/foreign", b"")

    coordination.sent, coordination.before_multi = 0, disturb
    began = loop.time()
    await store.erase_topic(TOPIC)
    assert disturbed == 3
    assert await cluster.observer.exists(znodes.topic_path(TOPIC)) is None
    assert coordination.sent / (loop.time() - began) < 100, "multis a second"


@simulated
async def test_the_partitions_of_a_topic_are_erased_at_once(cluster: Cluster) -> None:
    """Partitions that stayed would be removed as another client's nodes, one by one and after a pause each."""
    store, coordination = await store_on(cluster)
    partitions = [TopicPartition(TOPIC, number) for number in range(5)]
    await store.create_topic(
        TOPIC, msgspec.structs.replace(CREATED, assignment={each.partition: (1, 2, 3) for each in partitions})
    )
    await store.write_leaderships([msgspec.structs.replace(FIRST, partition=each) for each in partitions])
    coordination.sent, began = 0, cluster.world.loop.time()
    await store.erase_topic(TOPIC)
    assert (coordination.sent, await cluster.observer.get_children(znodes.BROKER_TOPICS)) == (2, [])
    assert cluster.world.loop.time() - began < RETRY_SECONDS


@simulated
async def test_the_state_of_a_topic_that_another_tool_removed_is_not_written_for_ever(cluster: Cluster) -> None:
    store, _ = await store_on(cluster)
    written = await store.write_leaderships([FIRST])
    assert (written.written, written.lost) == ((), {})
    written = await store.write_leaderships([SECOND])
    assert (written.written, written.lost, written.unreadable) == ((), {T0: None}, frozenset())
    assert store.ignored_nodes.nodes() == {}
    assert await cluster.observer.get_children(znodes.BROKER_TOPICS) == []


@simulated
async def test_a_list_is_there_again_though_its_parent_was_removed_too(cluster: Cluster) -> None:
    store, _ = await store_on(cluster)
    await cluster.observer.delete(znodes.DELETE_TOPICS)
    await cluster.observer.delete(znodes.DELETE_TOPICS.rpartition("/")[0])
    assert await store.read_deletions(lambda: None) == []
    assert await cluster.observer.exists(znodes.DELETE_TOPICS) is not None


WITHOUT_PARENT: dict[str, tuple[str, str, Callable[[ClusterStore], Awaitable[object]]]] = {
    "settings of a topic": (
        znodes.TOPIC_CONFIGS,
        znodes.topic_config_path(TOPIC),
        lambda store: store.write_config(znodes.topic_config_path(TOPIC), lambda before: {"a": "1"}),
    ),
    "settings of a broker": (
        znodes.BROKER_CONFIGS,
        znodes.broker_config_path(1),
        lambda store: store.write_config(znodes.broker_config_path(1), lambda before: {"a": "1"}),
    ),
    "topic, no settings": (znodes.TOPIC_CONFIGS, znodes.topic_path(TOPIC), lambda store: create(store)),
    "topic, no topics": (znodes.BROKER_TOPICS, znodes.topic_path(TOPIC), lambda store: create(store)),
    "marker": (znodes.DELETE_TOPICS, znodes.delete_topic_path(TOPIC), lambda store: store.mark_deleted(TOPIC)),
    "begun": (znodes.DELETE_TOPICS, znodes.delete_topic_path(TOPIC), lambda store: store.begin_deletion(TOPIC)),
}


@pytest.mark.parametrize(("parent", "path", "write"), WITHOUT_PARENT.values(), ids=WITHOUT_PARENT)
def test_a_write_whose_parent_another_tool_removed_creates_it_again(
    parent: str, path: str, write: Callable[[ClusterStore], Awaitable[object]]
) -> None:
    """It was tried again without end and without a pause, and no failover came any more."""

    @simulated
    async def story(cluster: Cluster) -> None:
        store, _ = await store_on(cluster)
        await cluster.observer.delete(parent)
        await write(store)
        assert await cluster.observer.exists(path) is not None

    story()


@simulated
async def test_a_topic_whose_node_is_not_understood_exists(cluster: Cluster) -> None:
    store, _ = await store_on(cluster)
    await cluster.observer.create(znodes.topic_path(TOPIC), b"{")
    with pytest.raises(TopicExists):
        await create(store)
    assert (await cluster.observer.get(znodes.topic_path(TOPIC)))[0] == b"{"


@simulated
async def test_a_new_partition_hides_no_removed_state_behind_it(cluster: Cluster) -> None:
    store, _ = await store_on(cluster)
    await create(store)
    second = TopicPartition(TOPIC, 1)
    removed = msgspec.structs.replace(FIRST, partition=second, before=FIRST.after)
    written = await store.write_leaderships([FIRST, removed])
    assert [each.partition for each in written.written] == [T0]
    assert written.lost == {second: None}
    assert written.unreadable == {second}


@pytest.mark.parametrize("place", range(3))
def test_what_each_of_several_multis_finds_is_told(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand elections are several multis: a state that one of them finds removed must not be elected anew."""
    monkeypatch.setattr(cluster_store, "PARTITIONS_PER_MULTI", 1)
    monkeypatch.setattr(cluster_store, "MULTIS_IN_FLIGHT_MAX", 2)

    @simulated
    async def story(cluster: Cluster) -> None:
        store, _ = await store_on(cluster)
        await store.create_topic(
            TOPIC, msgspec.structs.replace(CREATED, assignment={each: (1, 2, 3) for each in range(3)})
        )
        changes = [msgspec.structs.replace(FIRST, partition=TopicPartition(TOPIC, number)) for number in range(3)]
        changes[place] = msgspec.structs.replace(changes[place], before=FIRST.after)
        written = await store.write_leaderships(changes)
        removed = changes.pop(place).partition
        assert [each.partition for each in written.written] == [each.partition for each in changes]
        assert written.lost == {removed: None}
        assert written.unreadable == {removed}

    story()


@simulated
async def test_a_deletion_whose_marker_is_gone_has_not_begun(cluster: Cluster) -> None:
    store, _ = await store_on(cluster)
    await store.begin_deletion(TOPIC)
    await store.mark_deleted("marked")
    assert await store.read_begun([TOPIC, "marked", "gone"]) == {TOPIC}


@pytest.mark.parametrize("ends", ["request lost", "answer lost", "created meanwhile"])
def test_a_removed_parent_is_there_again_however_its_creation_ends(ends: str) -> None:
    """The controller reads on: an error here would end it."""

    @simulated
    async def story(cluster: Cluster) -> None:
        store, coordination = await store_on(cluster)
        await cluster.observer.delete(znodes.DELETE_TOPICS)
        tried: list[str] = []

        async def create(path: str, data: bytes, **options: Any) -> tuple[str, Stat]:
            tried.append(path)
            if len(tried) > 1:
                return await cluster.observer.create(path, data, **options)
            if ends != "request lost":
                await cluster.observer.create(path, data, **options)
            raise NodeExists(path) if ends == "created meanwhile" else WriteOutcomeUnknown(ends)

        coordination.create = create
        assert await store.read_deletions(lambda: None) == []
        assert await cluster.observer.exists(znodes.DELETE_TOPICS) is not None
        assert tried == [znodes.DELETE_TOPICS] * (2 if ends == "request lost" else 1)

    story()
