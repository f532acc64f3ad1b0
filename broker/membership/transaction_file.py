"""The newest transaction of ZooKeeper that this broker has seen, kept on its disk over restarts.

Owns: the file, and when it is written. Leaves to others: the comparison with what ZooKeeper has now, which its adapter
makes (`Coordination.went_back`), and the refusal (`registration`).

Why: an acknowledged record is safe because only members of the ISR may lead, and ZooKeeper says who is one. An older
copy of its data names members that have left since, and lack records. A running broker sees that transactions are gone.
One that starts can see it only by what it wrote down.

A refused start is written down, too. Each start is a few transactions, so a broker that is started again and again
would find ZooKeeper as new as before, and with other data.
"""

import asyncio
import contextlib
from collections.abc import Callable

from minibroker.broker.membership.registration import OlderCopy
from minibroker.protocol.events.broker_events import FileNotUsed
from minibroker.protocol.files.checkpoints import NEWEST_TRANSACTION, SMALL_FILE_BYTES_MAX, CorruptCheckpoint
from minibroker.protocol.files.newest_transaction import (
    NewestTransaction,
    format_newest_transaction,
    parse_newest_transaction,
)
from minibroker.runtime.observer import Observer
from minibroker.runtime.ports import BadEntry, Coordination, Disk, DiskError, FileMissing, FileTooLarge

WRITE_INTERVAL_MS = 5_000
"""As often as high watermarks: an older copy that is put in was made long before."""


class TransactionFile:
    """Of one broker. Use: `read` before the session, then `run` in a task of the owner, and `conclude` at a stop."""

    def __init__(self, disk: Disk, log_dir: str, observer: Observer) -> None:
        self._disk = disk
        self._file = f"{log_dir}/{NEWEST_TRANSACTION}"
        self._observer = observer
        self._kept = NewestTransaction(seen=0)

    def read(self) -> int:
        """What an earlier start has seen; 0 if that is unknown. Raises OlderCopy if it was refused since."""
        try:
            self._kept = parse_newest_transaction(self._disk.read_file(self._file, SMALL_FILE_BYTES_MAX))
        except (CorruptCheckpoint, FileTooLarge) as error:
            consequence = "an older copy of ZooKeeper's data would not be noticed"
            self._observer.notify(FileNotUsed(path=self._file, reason=str(error), consequence=consequence))
        except (FileMissing, BadEntry):  # an entry that cannot be read is reported when the directory is opened
            pass
        if self._kept.found is not None:
            raise OlderCopy(self._kept.seen, self._kept.found)
        return self._kept.seen

    async def run(
        self, coordination: Coordination, may_write: Callable[[], bool], failed: Callable[[DiskError], None]
    ) -> None:
        """Keep it until cancelled, while `may_write` says that the directory is in use."""
        while True:
            try:
                if may_write():
                    await self._keep(coordination.newest_transaction)
            except DiskError as error:
                failed(error)
            await asyncio.sleep(WRITE_INTERVAL_MS / 1000)

    async def conclude(self, coordination: Coordination) -> None:
        """At a stop. An error of the disk is met, and reported, by what is written next."""
        with contextlib.suppress(DiskError):
            await self._keep(coordination.newest_transaction)

    async def _keep(self, zxid: int) -> None:
        if zxid > self._kept.seen and self._kept.found is None:
            kept = NewestTransaction(seen=zxid)
            await self._disk.in_background(lambda: self._write(kept))
            if self._kept.found is None:
                self._kept = kept
            else:  # noted meanwhile, and perhaps overwritten
                self._write(self._kept)

    def note_older_copy(self, seen: int, found: int) -> None:
        """ZooKeeper lacks what was seen: no start until an operator has removed the file. Without room on the disk only
        this process is refused."""
        self._kept = NewestTransaction(seen=seen, found=found)
        with contextlib.suppress(DiskError):
            self._write(self._kept)

    def _write(self, newest: NewestTransaction) -> None:
        self._disk.replace_file(self._file, format_newest_transaction(newest))
