"""How many changes of the cluster a broker has noted: in ZooKeeper first, then on its disk."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from minibroker.broker.membership.metadata_image import MetadataImage
from minibroker.broker.membership.noted_changes import CHECK_MS, NotedChanges
from minibroker.broker.membership.registration import OlderCopy
from minibroker.protocol.events.broker_events import FileNotUsed, NodeUnreadable
from minibroker.protocol.files.checkpoints import CorruptCheckpoint
from minibroker.protocol.files.noted_changes import format_noted_changes, parse_noted_changes
from minibroker.protocol.znodes import NotedChangesNode, noted_changes_path
from minibroker.runtime.observer import Observers
from minibroker.runtime.ports import Coordination, DiskError, DiskFull, FileMissing
from tests.broker.virtual_zookeeper import World, run

PATH = noted_changes_path(1)


class StandInDisk:
    """One file in memory."""

    def __init__(self) -> None:
        self.content: bytes | None = None
        self.is_full = False
        self.before_write: Callable[[], Coroutine[Any, Any, None]] | None = None

    def read_file(self, path: str, bytes_max: int) -> bytes:
        if self.content is None:
            raise FileMissing(path)
        return self.content

    def replace_file(self, path: str, content: bytes) -> None:
        if self.is_full:
            raise DiskFull(path)
        self.content = content

    async def in_background(self, work: Callable[[], None]) -> None:
        if self.before_write is not None:
            await self.before_write()
        work()

    @property
    def count(self) -> int | None:
        return None if self.content is None else parse_noted_changes(self.content)


class Scene:
    """One broker's counts."""

    def __init__(self, coordination: Coordination) -> None:
        self.coordination = coordination
        self.disk = StandInDisk()
        self.image = MetadataImage(1, "cluster")
        self.events: list[object] = []
        self.failed: list[DiskError] = []
        self.may_write = True

    def started(self) -> NotedChanges:
        """By a new process."""
        self.image = MetadataImage(1, "cluster")
        noted = NotedChanges(self.disk, "/log", 1, Observers(self.events.append))  # type: ignore[arg-type]
        noted.read()
        return noted

    async def keep(self, noted: NotedChanges, seconds: float) -> None:
        """For so long."""
        try:
            async with asyncio.timeout(seconds):
                await noted.keep(self.coordination, self.image, lambda: self.may_write, self.failed.append)
        except TimeoutError:
            pass

    async def in_zookeeper(self) -> int:
        return NotedChangesNode.decode((await self.coordination.get(PATH))[0]).changes


def play(story: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def tell(world: World) -> None:
        coordination = await world.observer()
        await coordination.create(PATH.rpartition("/")[0], b"", make_parents=True)
        await story(Scene(coordination))

    run(tell)


def test_the_file_is_read_as_it_was_written_and_any_flipped_bit_is_found() -> None:
    content = format_noted_changes(12_345)
    assert parse_noted_changes(content) == 12_345
    for position in range(8 * len(content)):
        broken = bytearray(content)
        broken[position // 8] ^= 1 << position % 8
        with pytest.raises(CorruptCheckpoint):
            parse_noted_changes(bytes(broken))


def test_each_change_is_counted_soon_and_a_burst_once() -> None:
    async def story(scene: Scene) -> None:
        noted = scene.started()
        await scene.keep(noted, 3 * CHECK_MS / 1000)
        assert scene.disk.count is None, "nothing has changed"
        for changes, count in ((1, 1), (1, 1), (9, 2)):
            scene.image.changes = changes
            await scene.keep(noted, 1.5 * CHECK_MS / 1000)
            assert await scene.in_zookeeper() == count
            assert scene.disk.count == count

    play(story)


def test_a_later_start_goes_on_with_the_count() -> None:
    async def story(scene: Scene) -> None:
        await scene.started().conclude(scene.coordination, scene.image)
        again = scene.started()
        await again.require_known(scene.coordination)
        await again.conclude(scene.coordination, scene.image)
        assert (await scene.in_zookeeper(), scene.disk.count) == (2, 2)

    play(story)


@pytest.mark.invariant("I3")
def test_zookeeper_that_lacks_a_change_is_refused_and_not_written_to() -> None:
    async def story(scene: Scene) -> None:
        first = scene.started()
        await first.conclude(scene.coordination, scene.image)
        await first.conclude(scene.coordination, scene.image)
        await scene.coordination.set(PATH, NotedChangesNode(changes=1).encode())
        noted = scene.started()
        for _ in range(3):
            with pytest.raises(OlderCopy, match="it knows 1 of the 2 changes"):
                await noted.require_known(scene.coordination)
        scene.image.changes = 1
        with pytest.raises(OlderCopy):
            await scene.keep(noted, 3 * CHECK_MS / 1000)
        await noted.conclude(scene.coordination, scene.image)
        assert (await scene.in_zookeeper(), scene.disk.count) == (1, 2)
        await scene.coordination.delete(PATH)
        with pytest.raises(OlderCopy, match="it knows 0 of the 2 changes"):
            await noted.require_known(scene.coordination)
        scene.disk.content = None  # by an operator
        await scene.started().require_known(scene.coordination)

    play(story)


@pytest.mark.invariant("I3")
def test_zookeeper_counts_before_the_disk() -> None:
    """Else a kill in between would look as if ZooKeeper had lost a change."""

    async def story(scene: Scene) -> None:
        seen: list[tuple[int, int | None]] = []

        async def look() -> None:
            seen.append((await scene.in_zookeeper(), scene.disk.count))

        scene.disk.before_write = look
        await scene.started().conclude(scene.coordination, scene.image)
        assert seen == [(1, None)]

    play(story)


def test_nothing_is_counted_while_the_broker_may_not_write() -> None:
    async def story(scene: Scene) -> None:
        noted, scene.image.changes, scene.may_write = scene.started(), 1, False
        scene.image.changes = 1
        await scene.keep(noted, 3 * CHECK_MS / 1000)
        assert scene.disk.count is None
        scene.may_write = True
        await scene.keep(noted, 1.5 * CHECK_MS / 1000)
        assert scene.disk.count == 1

    play(story)


def test_a_full_disk_is_told_of_and_the_change_is_counted_later() -> None:
    async def story(scene: Scene) -> None:
        noted = scene.started()
        scene.image.changes, scene.disk.is_full = 1, True
        await scene.keep(noted, 1.5 * CHECK_MS / 1000)
        await noted.conclude(scene.coordination, scene.image)
        assert ([type(each) for each in scene.failed], scene.disk.count) == ([DiskFull], None)
        scene.disk.is_full = False
        await scene.keep(noted, 1.5 * CHECK_MS / 1000)
        assert scene.disk.count == await scene.in_zookeeper() == 3

    play(story)


def test_a_damaged_file_and_an_unreadable_node_are_named_and_stop_no_start() -> None:
    async def story(scene: Scene) -> None:
        await scene.started().conclude(scene.coordination, scene.image)
        scene.disk.content = b"1\n7\n"
        await scene.started().require_known(scene.coordination)
        assert [type(each) for each in scene.events] == [FileNotUsed]
        scene.disk.content = format_noted_changes(7)
        await scene.coordination.set(PATH, b"?")
        await scene.started().require_known(scene.coordination)
        assert [type(each) for each in scene.events] == [FileNotUsed, NodeUnreadable]

    play(story)
