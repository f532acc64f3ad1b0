"""How many changes of the cluster a broker has noted: in ZooKeeper first, then on its disk."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from minibroker.broker.membership.noted_changes import CHECK_MS, NotedChanges
from minibroker.broker.membership.registration import OlderCopy
from minibroker.protocol.events.broker_events import FileNotUsed, NodeUnreadable
from minibroker.protocol.files.checkpoints import CorruptCheckpoint
from minibroker.protocol.files.noted_changes import format_noted_changes, parse_noted_changes
from minibroker.protocol.znodes import NotedChangesNode, noted_changes_path
from minibroker.runtime.observer import Observers
from minibroker.runtime.ports import Coordination, DiskError, DiskFull, FileMissing, Stat
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
        self.changes = 0
        self.events: list[object] = []
        self.failed: list[DiskError] = []
        self.may_write = True

    def started(self) -> NotedChanges:
        """By a new process."""
        self.changes = 0
        noted = NotedChanges(self.disk, "/log", 1, Observers(self.events.append))  # type: ignore[arg-type]
        noted.read()
        return noted

    async def keep(self, noted: NotedChanges, seconds: float) -> None:
        """For so long."""
        try:
            async with asyncio.timeout(seconds):
                await noted.keep(self.coordination, lambda: self.changes, lambda: self.may_write, self.failed.append)
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
            scene.changes = changes
            await scene.keep(noted, 1.5 * CHECK_MS / 1000)
            assert await scene.in_zookeeper() == count
            assert scene.disk.count == count

    play(story)


def test_a_later_start_goes_on_with_the_count() -> None:
    async def story(scene: Scene) -> None:
        await scene.started().conclude(scene.coordination, lambda: scene.changes)
        again = scene.started()
        await again.require_known(scene.coordination)
        await again.conclude(scene.coordination, lambda: scene.changes)
        assert (await scene.in_zookeeper(), scene.disk.count) == (2, 2)

    play(story)


@pytest.mark.invariant("I3")
def test_zookeeper_that_lacks_a_change_is_refused_and_not_written_to() -> None:
    async def story(scene: Scene) -> None:
        first = scene.started()
        await first.conclude(scene.coordination, lambda: scene.changes)
        await first.conclude(scene.coordination, lambda: scene.changes)
        await scene.coordination.set(PATH, NotedChangesNode(changes=1).encode())
        noted = scene.started()
        for _ in range(3):
            with pytest.raises(OlderCopy, match="it knows 1 of the 2 changes"):
                await noted.require_known(scene.coordination)
        scene.changes = 1
        with pytest.raises(OlderCopy):
            await scene.keep(noted, 3 * CHECK_MS / 1000)
        await noted.conclude(scene.coordination, lambda: scene.changes)
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
        await scene.started().conclude(scene.coordination, lambda: scene.changes)
        assert seen == [(1, None)]

    play(story)


def test_an_answer_from_before_the_newest_count_is_not_an_older_copy() -> None:
    """The broker asks, counts one more change, and only then gets the answer."""

    async def story(scene: Scene) -> None:
        class LateAnswer:
            async def get(self, path: str) -> tuple[bytes, Stat]:
                answer = await scene.coordination.get(path)
                await noted.conclude(scene.coordination, lambda: scene.changes)
                return answer

        noted = scene.started()
        await noted.conclude(scene.coordination, lambda: scene.changes)
        await noted.require_known(LateAnswer())  # type: ignore[arg-type]
        assert scene.disk.count == 2

    play(story)


def test_a_write_whose_task_has_ended_is_over_before_the_next_one() -> None:
    """A thread does not end with its task. Of two at once, one could leave its count in the other one's file."""

    async def story(scene: Scene) -> None:
        begun, may_go_on = [], asyncio.Event()

        async def wait() -> None:
            begun.append(await scene.in_zookeeper())
            await may_go_on.wait()

        noted = scene.started()
        scene.disk.before_write = wait
        scene.changes = 1
        await scene.keep(noted, 1.5 * CHECK_MS / 1000)
        conclusion = asyncio.create_task(noted.conclude(scene.coordination, lambda: scene.changes))
        await asyncio.sleep(0.5 * CHECK_MS / 1000)
        assert (begun, scene.disk.count) == ([1], None)
        may_go_on.set()
        await conclusion
        assert (begun, scene.disk.count) == ([1, 2], 2)

    play(story)


def test_an_error_of_a_write_whose_task_has_ended_is_no_unseen_exception() -> None:
    """The broker stops. What its stop writes next meets a full disk, too (seed 78001270093)."""
    unseen: list[dict[str, Any]] = []

    async def story(scene: Scene) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        may_go_on = asyncio.Event()

        async def wait() -> None:
            await may_go_on.wait()

        noted = scene.started()
        scene.disk.before_write = wait
        scene.changes, scene.disk.is_full = 1, True
        await scene.keep(noted, 1.5 * CHECK_MS / 1000)
        may_go_on.set()
        await asyncio.sleep(CHECK_MS / 1000)
        del noted
        gc.collect()

    play(story)
    assert unseen == []


def test_nothing_is_counted_while_the_broker_may_not_write() -> None:
    async def story(scene: Scene) -> None:
        noted, scene.changes, scene.may_write = scene.started(), 1, False
        scene.changes = 1
        await scene.keep(noted, 3 * CHECK_MS / 1000)
        assert scene.disk.count is None
        scene.may_write = True
        await scene.keep(noted, 1.5 * CHECK_MS / 1000)
        assert scene.disk.count == 1

    play(story)


def test_a_full_disk_is_told_of_and_the_change_is_counted_later() -> None:
    async def story(scene: Scene) -> None:
        noted = scene.started()
        scene.changes, scene.disk.is_full = 1, True
        await scene.keep(noted, 1.5 * CHECK_MS / 1000)
        await noted.conclude(scene.coordination, lambda: scene.changes)
        assert ([type(each) for each in scene.failed], scene.disk.count) == ([DiskFull], None)
        scene.disk.is_full = False
        await scene.keep(noted, 1.5 * CHECK_MS / 1000)
        assert scene.disk.count == await scene.in_zookeeper() == 3

    play(story)


def test_a_damaged_file_and_an_unreadable_node_are_named_and_stop_no_start() -> None:
    async def story(scene: Scene) -> None:
        await scene.started().conclude(scene.coordination, lambda: scene.changes)
        scene.disk.content = b"1\n7\n"
        await scene.started().require_known(scene.coordination)
        assert [type(each) for each in scene.events] == [FileNotUsed]
        scene.disk.content = format_noted_changes(7)
        await scene.coordination.set(PATH, b"?")
        await scene.started().require_known(scene.coordination)
        assert [type(each) for each in scene.events] == [FileNotUsed, NodeUnreadable]

    play(story)
