"""Whether ZooKeeper's data is older than what this broker has seen there.

Owns: a count, in ZooKeeper and on this broker's disk, that rises after each change of the cluster that this broker
learns of; and the comparison. Leaves to others: what counts as a change, and when a broker must compare
(`registration`).

Why: an acknowledged record is safe because only members of the ISR may lead, and ZooKeeper says who is one. An older
copy of its data names members that have left since, and lack records; it may have a shorter retention, and it gives
the ids and epochs of producers a second time.

Theory: only this broker raises its count, first in ZooKeeper and then on its disk. So ZooKeeper's is never the lower
one, unless ZooKeeper has lost a change. A refused broker writes nothing: it is refused until the lost data is back, or
an operator has removed the file. The number of the newest transaction would prove less: each start is a few
transactions, so an older copy soon has as many as the lost one (decision 0032).
"""

import asyncio
import contextlib
from collections.abc import Callable

from minibroker.broker.membership.registration import OlderCopy
from minibroker.protocol.events.broker_events import FileNotUsed, NodeUnreadable
from minibroker.protocol.files.checkpoints import NOTED_CHANGES, SMALL_FILE_BYTES_MAX, CorruptCheckpoint
from minibroker.protocol.files.noted_changes import format_noted_changes, parse_noted_changes
from minibroker.protocol.znodes import CorruptZnode, NotedChangesNode, noted_changes_path
from minibroker.runtime.observer import Observer
from minibroker.runtime.ports import (
    BadEntry,
    Coordination,
    CoordinationError,
    Disk,
    DiskError,
    FileMissing,
    FileTooLarge,
    NoNode,
    Stat,
)

CHECK_MS = 1_000
"""How late a change is noted at most, and how often: a burst of changes is one write."""
CLOSE_MS = 1_000
"""Limit at a stop: ZooKeeper answers in milliseconds, or the stop continues without it."""


class NotedChanges:
    """Of one broker. Use: `read` before the session, `require_known` before each registration, `keep` in a task of the
    owner, `conclude` at a stop."""

    def __init__(self, disk: Disk, log_dir: str, broker_id: int, observer: Observer) -> None:
        self._disk = disk
        self._file = f"{log_dir}/{NOTED_CHANGES}"
        self._path = noted_changes_path(broker_id)
        self._observer = observer
        self._count = 0
        """As on the disk."""
        self._noted = 0
        """Changes that are counted."""
        self._write: asyncio.Future[None] | None = None
        """The newest of the file. It goes on when its caller is cancelled, and two at once would spoil each other."""

    def read(self) -> None:
        """What earlier starts have counted. An entry that cannot be read is reported when the directory is opened."""
        try:
            self._count = parse_noted_changes(self._disk.read_file(self._file, SMALL_FILE_BYTES_MAX))
        except (CorruptCheckpoint, FileTooLarge) as error:
            consequence = "an older copy of ZooKeeper's data would not be noticed"
            self._observer.notify(FileNotUsed(path=self._file, reason=str(error), consequence=consequence))
        except (FileMissing, BadEntry):
            pass

    async def require_known(self, coordination: Coordination) -> None:
        """Raises OlderCopy if ZooKeeper does not know all of them."""
        await self._in_zookeeper(coordination)

    async def _in_zookeeper(self, coordination: Coordination) -> tuple[int, Stat | None]:
        """The count there, 0 for none, and the node's version. Raises OlderCopy."""
        known_before = self._count  # it may rise until the answer is there
        count, stat = 0, None
        try:
            content, stat = await coordination.get(self._path)
            count = NotedChangesNode.decode(content).changes
        except NoNode:
            pass
        except CorruptZnode as error:
            consequence = "an older copy of ZooKeeper's data would not be noticed"
            self._observer.notify(NodeUnreadable(path=self._path, consequence=consequence, reason=str(error)))
            count = self._count
        if count < known_before:
            raise OlderCopy(f"it knows {count} of the {known_before} changes that this broker has noted there")
        return count, stat

    async def keep(
        self,
        coordination: Coordination,
        changes: Callable[[], int],
        may_write: Callable[[], bool],
        failed: Callable[[DiskError], None],
    ) -> None:
        """Count soon after `changes` has risen, until cancelled, while `may_write` says that this broker is registered
        and its disk in use. Raises OlderCopy."""
        while True:
            await asyncio.sleep(CHECK_MS / 1000)
            if changes() == self._noted or not may_write():
                continue
            try:
                await self._count_changes(coordination, changes())
            except CoordinationError:  # ZooKeeper does not answer, or another process has our id (`registration`)
                pass
            except DiskError as error:
                failed(error)

    async def conclude(self, coordination: Coordination, changes: Callable[[], int]) -> bool:
        """At a stop, once this broker has left its ISRs. False if that could not be noted: an older copy may name this
        broker as a member, and the next start does not notice it. An error of the disk is met, and reported, by what is
        written next."""
        with contextlib.suppress(CoordinationError, DiskError, OlderCopy, TimeoutError):
            async with asyncio.timeout(CLOSE_MS / 1000):
                await self._count_changes(coordination, changes())
                return True
        return False

    async def _count_changes(self, coordination: Coordination, changes: int) -> None:
        known, stat = await self._in_zookeeper(coordination)
        count = known + 1
        content = NotedChangesNode(changes=count).encode()
        if stat is None:
            await coordination.create(self._path, content)
        else:
            await coordination.set(self._path, content, version=stat.version)
        if self._write is not None:
            await asyncio.wait([self._write])
        write = self._disk.in_background(lambda: self._disk.replace_file(self._file, format_noted_changes(count)))
        self._write = asyncio.ensure_future(write)
        self._write.add_done_callback(_look_at_error)
        await asyncio.shield(self._write)
        self._count, self._noted = count, changes


def _look_at_error(write: "asyncio.Future[None]") -> None:
    """Its caller, if it was cancelled, does not. What a stop writes next to this disk meets the error, too."""
    if not write.cancelled():
        write.exception()
