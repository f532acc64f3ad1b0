"""One partition as the whole cluster wrote it: which process led which epoch, which wrote what, and what is committed.

Owns: the one canonical sequence of committed batches, and the rule of log matching (I16), checked once per append: a
batch is written once, and always follows the same batch. So two logs that hold the same batch hold the same bytes below
it. Leaves to others: observing the brokers.
"""

from collections.abc import Callable

from msgspec import Struct

from minibroker.simulation.checks.replication.reference_log import LoggedBatch, ReferenceLog

Find = Callable[..., None]
"""Reports a finding for this partition: find(invariant, text, *facts)."""


class Writer(Struct, frozen=True):
    """One process of a broker."""

    broker_id: int
    incarnation: int

    def __str__(self) -> str:
        return f"broker {self.broker_id} (process {self.incarnation})"


class WrittenBatch(Struct, frozen=True):
    """A batch, and its place where it was first written."""

    batch: LoggedBatch
    previous: LoggedBatch | None
    """None: the log began there, or unknown."""
    writer: Writer


class Lineage:
    """The history of one partition, and the checks on it."""

    def __init__(self, find: Find) -> None:
        self.committed: dict[int, LoggedBatch] = {}
        self.committed_end = 0
        self.last_committed: LoggedBatch | None = None
        self.leaders: dict[int, Writer] = {}
        self.is_broken = False
        """After an unclean election that lost something nothing is promised of earlier committed records, and high
        watermarks may fall."""
        self.deleted_below = 0
        """Highest log start of a leader. A follower that adopts it may hold anything below: it serves none of it."""
        self._find = find
        self._written: dict[tuple[int, int], WrittenBatch] = {}

    # ----------------------------------------------------------------------------------------------------- writers
    def leads(self, epoch: int, writer: Writer) -> None:
        """I18: only one process leads an epoch, not even a second process of the same broker."""
        known = self.leaders.setdefault(epoch, writer)
        if known != writer:
            self._find("I18", f"epoch {epoch} has two leaders", f"{known} leads it", f"{writer} leads it, too")

    def appended(self, reference_log: ReferenceLog, batch: LoggedBatch, writer: Writer) -> None:
        """I12, I16, I17. Call it before the batch is added to `reference_log`."""
        previous = reference_log.last
        if batch.base_offset != reference_log.end:
            self._find("I12", f"{writer} left a gap: its log ended at {reference_log.end}", f"then came {batch}")
        if previous is not None and batch.epoch < previous.epoch:
            self._find("I12", f"the epoch fell along the log of {writer}", f"first {previous}", f"then {batch}")
        known = self._written.get((batch.epoch, batch.base_offset))
        if known is None:
            self._written[batch.epoch, batch.base_offset] = WrittenBatch(batch, previous, writer)
            leader = self.leaders.get(batch.epoch)
            if leader != writer:
                facts = (f"{writer} wrote {batch} first", f"{leader} leads that epoch")
                self._find("I17", "a record from a process that is not its epoch's leader", *facts)
        else:
            self._match(known, batch, previous, writer)

    def _match(self, known: WrittenBatch, batch: LoggedBatch, previous: LoggedBatch | None, writer: Writer) -> None:
        if batch != known.batch:
            facts = (f"{known.writer} wrote {known.batch}", f"{writer} holds {batch}")
            self._find("I16", "the same offset and epoch hold different bytes", *facts)
        elif self._differ(previous, known.previous):
            facts = (f"at {known.writer} it follows {known.previous}", f"at {writer} it follows {previous}")
            self._find("I16", f"logs with {batch} in common differ below it", *facts)
        elif writer == self.leaders.get(batch.epoch) and writer != known.writer:
            self._find("I17", f"{batch} was written twice", f"by {known.writer}", f"and by {writer}")

    def _differ(self, one: LoggedBatch | None, other: LoggedBatch | None) -> bool:
        return one is not None and other is not None and one != other and one.end_offset > self.deleted_below

    def knows(self, batch: LoggedBatch) -> bool:
        known = self._written.get((batch.epoch, batch.base_offset))
        return known is not None and known.batch == batch

    # ------------------------------------------------------------------------------------------------- committed
    def commit(self, reference_log: ReferenceLog, high_watermark: int, writer: Writer) -> list[LoggedBatch]:
        """A leader raised its high watermark: what lies below is committed. Returns the newly committed batches."""
        new = reference_log.between(self.committed_end, high_watermark)
        for batch in new:
            self.committed[batch.base_offset] = batch
            self.committed_end, self.last_committed = batch.end_offset, batch
        if high_watermark > self.committed_end and reference_log.end >= self.committed_end and not self.is_broken:
            facts = (
                f"its high watermark is {high_watermark}",
                f"its log continues the committed sequence only up to {self.committed_end}",
            )
            self._find("I19", f"{writer} commits what does not continue the committed sequence", *facts)
        return new

    def compare(self, reference_log: ReferenceLog, low: int, high_watermark: int, holder: str) -> None:
        """I2, I19: below its high watermark every replica holds the committed sequence."""
        for batch in reference_log.between(max(low, self.deleted_below), high_watermark) if not self.is_broken else ():
            canonical = self.committed.get(batch.base_offset)
            if canonical != batch:
                facts = (
                    f"{holder} holds {batch} below its high watermark {high_watermark}",
                    f"committed is {canonical or 'nothing there'}",
                )
                self._find("I19", "a replica holds another record below its high watermark", *facts)
                return
        if high_watermark > self.committed_end and not self.is_broken:
            facts = (
                f"the high watermark of {holder} is {high_watermark}",
                f"no leader's has passed {self.committed_end}",
            )
            self._find("I22", "a follower's high watermark passed what is committed", *facts)

    def record_unclean_election(self, reference_log: ReferenceLog | None) -> None:
        """An allowed unclean election: from now on, committed is what the new leader has of it. If that is all, nothing
        changes, and all rules hold on."""
        if reference_log is not None and not reference_log.uncertain and self.holds_all(reference_log):
            return
        self.is_broken = True
        held = () if reference_log is None else reference_log.batches
        kept = [batch for batch in held if self.committed.get(batch.base_offset) == batch]
        self.committed = {batch.base_offset: batch for batch in kept}
        self.last_committed = kept[-1] if kept else None
        self.committed_end = kept[-1].end_offset if kept else 0

    def holds_all(self, reference_log: ReferenceLog) -> bool:
        """Whether the last committed batch is in this log: by log matching, then all of them are."""
        last = self.last_committed
        if last is None or last.end_offset <= reference_log.start:
            return True
        return reference_log.at(last.base_offset) == last
