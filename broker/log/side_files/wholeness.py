"""Since when the logs of a directory are whole: the incarnations since which they have lost nothing.

Owns: the file `whole-since`, and the check whether this start found everything. Leaves to others: roles and elections;
the controller compares these incarnations with those recorded with the ISR (`controller/core/restarted_members.py`).

Theory (hardening rule 16; Protocol-Aware Recovery, FAST'18). A process that starts again may have lost the tail of its
logs, which the controller must know before it elects a leader. It is proven that nothing is lost if the last stop was
clean and each log ends where that stop recorded it. It is likely if the machine did not go down (same boot: the kernel
has what a killed process wrote) and nothing was cut, missing or damaged when the logs were loaded. But a killed process
left no record of its log ends, so a file that is gone, or shorter by whole batches, goes unnoticed. Such logs are
*undisturbed*, which counts only together with another in-sync replica. So there are two chains of incarnations, the
proven one at the end of the other; a break starts a chain again with this incarnation. The check covers the whole
directory: if one log is lost, no log on that disk is trusted.

The file is durably removed before anything is loaded, and written again before the broker registers: after a crash or
power cut in between there is no chain, rather than a wrong one. It is also removed when the directory fails.
"""

import logging
from collections.abc import Iterable, Mapping

from minibroker.broker.log.partition_log import PartitionLog
from minibroker.protocol.events.broker_events import FileNotUsed
from minibroker.protocol.files.checkpoints import (
    LOG_START,
    OFFSETS_FILE_BYTES_MAX,
    WHOLE_SINCE,
    CorruptCheckpoint,
    WholeSince,
    format_whole_since,
    parse_whole_since,
)
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.observer import Observer
from minibroker.runtime.ports import Disk, DiskError, DiskFull, FileMissing, FileTooLarge

INCARNATIONS_MAX = 100
"""Number of starts remembered. An ISR that names an earlier one belongs to a partition without a leader since then; its
members are compared by their log ends."""

logger = logging.getLogger(__name__)


class Wholeness:
    """The two chains of one log directory, for one start of its broker."""

    def __init__(self, disk: Disk, path: str, incarnation_id: str) -> None:
        """Without an incarnation id (a tool opens the directory) no chain is kept."""
        self._disk = disk
        self._path = path
        self._file = f"{path}/{WHOLE_SINCE}"
        self._incarnation_id = incarnation_id
        self._before: WholeSince | None = None
        self.incarnations: tuple[str, ...] = (incarnation_id,) if incarnation_id else ()
        """Incarnations since which these logs are undisturbed, the oldest first; the last one is this start's."""
        self.proven: tuple[str, ...] = self.incarnations
        """Incarnations since which they are proven whole."""
        self.doubt: str | None = None
        """Why the logs may have lost records since the start before."""
        self.missing: frozenset[TopicPartition] = frozenset()
        """Logs of the last incarnation without a directory now: their records are lost, they were not empty."""

    def take(self, observer: Observer) -> None:
        """Read the file of the last incarnation, and remove it."""
        try:
            self._before = parse_whole_since(self._disk.read_file(self._file, OFFSETS_FILE_BYTES_MAX))
        except FileMissing:
            return
        except (CorruptCheckpoint, FileTooLarge) as error:
            consequence = "the starts since which these logs are whole are unknown"
            observer.notify(FileNotUsed(path=self._file, reason=str(error), consequence=consequence))
        self._remove()

    def clean_end(self, partition: TopicPartition) -> int:
        """The end of the log at the last stop, if that was clean (0: unknown)."""
        ends = None if self._before is None else self._before.log_ends
        return 0 if ends is None else ends.get(partition, 0)

    def assess(
        self, logs: Mapping[TopicPartition, PartitionLog], listed: Iterable[TopicPartition], same_boot: bool
    ) -> None:
        """Extend or restart the chains after loading. `listed`: the partitions that the old checkpoints name."""
        before = self._before
        ends = {} if before is None or before.log_ends is None else before.log_ends
        self.missing = frozenset(each for each in (*listed, *ends) if each not in logs)
        doubt = self._doubt(logs, same_boot)
        if doubt is None and before is not None:
            known, count = before.incarnations, before.proven if before.log_ends is not None else 0
            self.proven = (*known[len(known) - count :], *self.proven)[-INCARNATIONS_MAX:]
            self.incarnations = (*known, *self.incarnations)[-INCARNATIONS_MAX:]
        elif before is not None:
            self.doubt = doubt

    def _doubt(self, logs: Mapping[TopicPartition, PartitionLog], same_boot: bool) -> str | None:
        """Why the logs may be shorter than before, or begin lower; None without a doubt. One that begins lower would
        lead, and a replica that has deleted that head would be called damaged."""
        before = self._before
        if before is None:
            return "nothing is known of it"
        if self.missing:
            return f"the directory of {min(self.missing)} is missing"
        for partition in sorted(logs):
            log = logs[partition]
            if log.damage is not None:
                return f"{partition} is damaged: {log.damage}"
            if log.report.reason is not None:
                return f"{partition} was cut: {log.report.reason}"
            if log.report.is_reported(f"{log.directory}/{LOG_START}") or (
                log.start_record.known is None and log.size_bytes
            ):
                return f"{partition} may begin too low: its {LOG_START} file is missing or damaged"
        if before.log_ends is None:
            return None if same_boot else "the machine went down without a clean stop"
        for partition, end in sorted(before.log_ends.items()):
            if logs[partition].log_end_offset != end:
                return (
                    f"{partition} ended at {end} when the broker stopped, and at {logs[partition].log_end_offset} now"
                )
        return None

    def write(self, log_ends: Mapping[TopicPartition, int] | None = None, is_proof: bool = True) -> None:
        """Write the file durably: at a start, or with the log ends at a clean stop. Without room none is kept. Without
        `is_proof` the logs end there, but others may have gone on in a way that this broker could not note."""
        if not self._incarnation_id or not self.incarnations:
            return
        ends = None if log_ends is None else dict(log_ends)
        proven = len(self.proven) if is_proof else 0
        known = WholeSince(incarnations=self.incarnations, proven=proven, log_ends=ends)
        try:
            self._disk.replace_file(self._file, format_whole_since(known))
        except DiskFull as error:
            logger.warning(
                "%s is not written: after the next start these logs count as doubtful: %s", self._file, error
            )
            self._remove()

    def forget(self) -> None:
        """The directory has failed: the next start proves nothing. Best effort, since the disk may fail here, too."""
        if not self.incarnations:
            return
        self.incarnations = self.proven = ()
        try:
            self._remove()
        except DiskError as error:
            logger.info("%s stays: %s", self._file, error)

    def _remove(self) -> None:
        if self._disk.exists(self._file):
            self._disk.remove(self._file)
            self._disk.sync_directory(self._path)
