"""A consumer's position in one partition. Pure.

Owns: the two positions (what was returned, what was fetched), when they are valid, and what a reply means for them.
Leaves to others: connections, tasks and time.

    position       next offset for the user; None until it is known
    fetch_offset   next offset to fetch: `position` plus what waits in `chunks`

States, in the order in which they are checked:

    halted        there is an error that the user has to act on (seek)
    resetting     the position has to be requested (start, seek_to_beginning, a reset policy)
    validating    the leader's epoch is newer than the one under which the position was last valid: before anything is
                  fetched from the new leader, it is asked where that epoch ends (KIP-320)
    fetching      the normal state

A position only moves forward, except by the user's own seek and a truncation. Every change that was not caused by a
fetch raises `generation`; replies to requests of an older generation, or for another offset, are dropped.
"""

from collections import deque
from enum import Enum

import msgspec

from minibroker.client.errors import (
    LogTruncated,
    MinibrokerError,
    OffsetOutOfRange,
    TopicMadeAgain,
    Where,
    broker_error,
)
from minibroker.client.limits import TIMER_SLACK_MS
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
from minibroker.protocol.record_batch import BatchHeader
from minibroker.protocol.wire.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, EpochEndOffset

CHUNKS_MAX = 2
"""Fetched chunks that may wait for the user: one being read, one ahead."""
EPOCHS_MAX = 1_000
"""Leader epochs remembered of what was read. Where the log parts in front of them, that offset is not known."""
NO_EPOCH = -1


class OffsetReset(Enum):
    """What to do without a valid position."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"

    @property
    def timestamp(self) -> int:
        """As in a ListOffsets request."""
        return EARLIEST_TIMESTAMP if self is OffsetReset.EARLIEST else LATEST_TIMESTAMP


class EpochQuestion(msgspec.Struct, frozen=True):
    """The question to a new leader where the epoch of the last fetched record ends."""

    generation: int
    epoch: LeaderEpoch
    """The epoch of the last record fetched, at the time of the request."""
    leader_epoch: LeaderEpoch
    """The epoch of the leader that is asked."""


class Chunk(msgspec.Struct, gc=False):
    """Whole batches that were fetched together."""

    records: memoryview
    unread: deque[tuple[int, BatchHeader]]
    """Positions in `records` of the batches that were not read yet. Never empty while the chunk waits."""


class Cursor:
    """One assigned partition."""

    __slots__ = (
        "chunks",
        "epoch_starts",
        "error",
        "fetch_epoch",
        "fetch_offset",
        "generation",
        "halted",
        "high_watermark",
        "known_leader",
        "leader",
        "leader_epoch",
        "max_bytes",
        "outrun_at",
        "paused",
        "position",
        "position_epoch",
        "read_since_move",
        "record_epoch",
        "refusals",
        "refused_since_ms",
        "reset_from",
        "reset_timestamp",
        "retry_at_ms",
        "topic_id",
        "topic_partition",
        "unfit_fetches",
        "validated_epoch",
    )

    def __init__(self, topic_partition: TopicPartition, reset: OffsetReset, max_bytes: int) -> None:
        self.topic_partition = topic_partition
        self.topic_id: str | None = None
        """The topic that the position belongs to; None until it is known."""
        self.position: Offset | None = None
        self.position_epoch: LeaderEpoch | None = None
        """Epoch of the last record returned."""
        self.fetch_offset: Offset = 0
        self.fetch_epoch: LeaderEpoch | None = None
        """Epoch of the last record fetched, or under which the position was found."""
        self.record_epoch: LeaderEpoch | None = None
        """Epoch of the last record fetched since the position was last moved."""
        self.epoch_starts: list[tuple[LeaderEpoch, Offset]] = []
        """Of what was fetched since the position was chosen or found: each epoch, and its first offset here."""
        self.chunks: deque[Chunk] = deque()
        self.generation = 0
        self.leader: BrokerId | None = None
        self.known_leader: BrokerId | None = None
        """The last one that was not None."""
        self.leader_epoch: LeaderEpoch | None = None
        self.validated_epoch: LeaderEpoch | None = None
        """Leader epoch under which the fetch position was last known to be valid."""
        self.reset_timestamp: int | None = None
        """The requested timestamp; None once the position is known."""
        self.reset_from: int | None = None
        """The timestamp by which the position was found, if the user did not seek to an offset."""
        self.outrun_at: tuple[Offset, LeaderEpoch | None, bool] | None = None
        """Position, epoch and `read_since_move` before a reset that retention forced: it leads no further back."""
        self.read_since_move = False
        """Records were returned since then: only then a truncation is a loss for the user."""
        self.halted: MinibrokerError | None = None
        """Raised by every call until the user seeks."""
        self.error: MinibrokerError | None = None
        """The last error; None after a valid answer."""
        self.unfit_fetches = 0
        """Consecutive replies without the requested batches."""
        self.refused_since_ms: float | None = None
        """When the present series of errors and unusable answers began; None after a valid one."""
        self.refusals = 0
        """Errors and unusable answers since the last valid one, of this leader in this epoch."""
        self.paused = False
        self.high_watermark: Offset | None = None
        self.max_bytes = max_bytes
        self.retry_at_ms = 0.0
        if reset is OffsetReset.NONE:
            where = Where(topic_partition=topic_partition)
            self.halted = broker_error(
                ErrorCode.OFFSET_OUT_OF_RANGE, where, "no position yet, and auto_offset_reset is 'none'"
            )
        else:
            self.reset_timestamp = reset.timestamp

    # -------------------------------------------------------------------------------------------------------- states
    @property
    def needs_reset(self) -> bool:
        return self.halted is None and self.reset_timestamp is not None

    @property
    def needs_validation(self) -> bool:
        return (
            self.halted is None
            and self.reset_timestamp is None
            and self.fetch_epoch is not None
            and self.leader_epoch is not None
            and self.validated_epoch is not None
            and self.leader_epoch > self.validated_epoch
        )

    @property
    def wants_data(self) -> bool:
        """May be fetched as far as the position is concerned, whether or not there is room."""
        return self.halted is None and not self.paused and self.reset_timestamp is None and not self.needs_validation

    def is_due(self, now_ms: float) -> bool:
        """May be fetched now: its last fetch did not fail a moment ago."""
        return self.wants_data and self.retry_at_ms <= now_ms + TIMER_SLACK_MS

    @property
    def place(self) -> str:
        """The position, for messages."""
        return f"offset {self.fetch_offset}" if self.reset_timestamp is None else "a position that is not known yet"

    @property
    def lag(self) -> int | None:
        """Records between the position and the high watermark, as far as both are known."""
        if self.position is None or self.high_watermark is None:
            return None
        return max(0, self.high_watermark - self.position)

    @property
    def has_room(self) -> bool:
        return len(self.chunks) < CHUNKS_MAX

    # ----------------------------------------------------------------------------------------------------- decisions
    def refused(self, error: MinibrokerError, now_ms: float) -> None:
        """An answer came that is an error or unusable."""
        self.error = error
        self.refusals += 1
        if self.refused_since_ms is None:
            self.refused_since_ms = now_ms

    def answered(self) -> None:
        """The leader accepted the request."""
        self.error = None
        self.refusals = 0
        self.refused_since_ms = None

    def learn_leader(self, leader: BrokerId | None, epoch: LeaderEpoch | None) -> bool:
        """Set the leader that metadata names; returns whether it changed. A position that was never validated counts as
        valid under this epoch."""
        is_changed = (leader, epoch) != (self.leader, self.leader_epoch)
        if epoch != self.leader_epoch or leader not in (None, self.known_leader):
            self.retry_at_ms = 0.0
            self.refusals = 0
        self.leader = leader
        if leader is not None:
            self.known_leader = leader
        self.leader_epoch = epoch
        if self.validated_epoch is None or self.fetch_epoch is None:
            self.validated_epoch = epoch
        return is_changed

    def learn_topic(self, topic_id: str, reset: OffsetReset, where: Where) -> bool:
        """Set the topic id that metadata names; returns whether it is another topic than before. Then no position,
        epoch or buffered record is valid in it, and the policy decides as for a position that is not in the log."""
        before, self.topic_id = self.topic_id, topic_id
        if before in (None, topic_id):
            return False
        self.generation += 1
        self.chunks.clear()
        self.fetch_epoch = self.record_epoch = self.position_epoch = self.outrun_at = None
        self.epoch_starts.clear()
        self.validated_epoch = self.leader_epoch = None
        self.high_watermark = None
        if self.reset_timestamp is not None:
            return True  # the position is being requested, and will be requested again
        if not self.read_since_move and self.reset_from is not None:
            self.seek_by(self.reset_from)
        elif reset is OffsetReset.NONE:
            self.halted = TopicMadeAgain(where, self.position)
        else:
            self.seek_by(reset.timestamp)
        return True

    def seek(self, offset: Offset, epoch: LeaderEpoch | None = None) -> None:
        """Set the position. `epoch`: the leader epoch of the record before it, if known."""
        self.epoch_starts.clear()
        self._move(offset, epoch)
        self.reset_timestamp = None
        self.reset_from = None
        self.read_since_move = False
        self.halted = None
        self.answered()
        self.unfit_fetches = 0
        self.validated_epoch = self.leader_epoch if epoch is None else epoch

    def refetch(self) -> None:
        """Drop buffered records; they are fetched again from the position on."""
        if self.position is not None:
            self._move(self.position, self.position_epoch)

    def halt(self, problem: MinibrokerError) -> None:
        """Drop buffered records, and fetch nothing until the user seeks."""
        self.generation += 1
        self.chunks.clear()
        self.halted = problem

    def seek_by(self, timestamp: int) -> None:
        """Have the position requested from the leader."""
        self.outrun_at = None
        self.generation += 1
        self.chunks.clear()
        self.position = None
        self.reset_timestamp = timestamp
        self.halted = None
        self.answered()

    def settle_reset(self, generation: int, offset: Offset, epoch: LeaderEpoch | None) -> bool:
        """The answer to a reset; dropped if the user has sought meanwhile. Returns whether it was accepted."""
        if generation != self.generation or self.reset_timestamp is None:
            return False
        timestamp, outrun_at = self.reset_timestamp, self.outrun_at
        if outrun_at is not None and offset < outrun_at[0]:
            self.seek(*outrun_at[:2])
            self.read_since_move = outrun_at[2]
        else:
            self.seek(offset, epoch)
        self.reset_from = timestamp
        return True

    def fetched(self, chunk: Chunk, end: Offset, epoch: LeaderEpoch) -> None:
        """A reply brought batches up to `end`."""
        assert end > self.fetch_offset
        if epoch != self.record_epoch:
            self._note_epochs(chunk, epoch)
        self.chunks.append(chunk)
        self.fetch_offset = end
        self.fetch_epoch = self.record_epoch = epoch
        self.unfit_fetches = 0

    def _note_epochs(self, chunk: Chunk, last: LeaderEpoch) -> None:
        starts = [(each.partition_leader_epoch, max(each.base_offset, self.fetch_offset)) for _, each in chunk.unread]
        for epoch, start in starts or [(last, self.fetch_offset)]:
            if not self.epoch_starts or epoch > self.epoch_starts[-1][0]:
                self.epoch_starts.append((epoch, start))
        if len(self.epoch_starts) > EPOCHS_MAX:
            del self.epoch_starts[1 : len(self.epoch_starts) - EPOCHS_MAX + 1]
            self.epoch_starts[0] = NO_EPOCH, self.epoch_starts[0][1]

    def _parting(self, end: EpochEndOffset) -> Offset | None:
        """Where the leader's log parts from what was fetched; the fetch offset if it does not, None if that is not
        known. An answer about an earlier epoch than that of the last record says that the leader lacks all later
        ones, however far its records of that epoch reach (KIP-279)."""
        own_end = next((start for epoch, start in self.epoch_starts if epoch > end.epoch), self.fetch_offset)
        before = [epoch for epoch, start in self.epoch_starts if start < own_end]
        if before and before[-1] != end.epoch:
            return None
        return min(end.end_offset, own_end)

    def misfit(self, header: BatchHeader, before: BatchHeader | None) -> str | None:
        """Why this batch of a reply cannot be a requested one; None if it can. The first batch holds the requested
        offset, each further one follows the one before, epochs never fall along a log, and none is above the
        leader's."""
        if before is None:
            if not header.base_offset <= self.fetch_offset < header.end_offset:
                return f"the first batch holds offsets {header.base_offset} to {header.last_offset}"
            epoch = self.record_epoch
        else:
            if header.base_offset != before.end_offset:
                return f"offset {header.base_offset} follows {before.last_offset}"
            epoch = before.partition_leader_epoch
        if epoch is not None and header.partition_leader_epoch < epoch:
            return f"leader epoch {header.partition_leader_epoch} follows epoch {epoch}"
        if self.leader_epoch is not None and header.partition_leader_epoch > self.leader_epoch:
            return f"leader epoch {header.partition_leader_epoch} is above the leader's {self.leader_epoch}"
        return None

    def out_of_range(self, reset: OffsetReset, where: Where, log_start_offset: Offset = 0) -> bool:
        """The leader does not have the fetch offset. Buffered records stay readable. Where its log starts behind that
        offset, its successor may start earlier again: no record is returned twice then. Returns whether the user must
        be told: the policy moves a position that the user chose or has read up to, and no call raises an error."""
        if self.chunks:
            return False  # fetch again when the user has read them: the log may have changed by then
        is_users = self.read_since_move or self.reset_from is None
        if reset is OffsetReset.NONE:
            text = f"position {self.fetch_offset} is not in the log, and auto_offset_reset is 'none'"
            self.halted = OffsetOutOfRange(ErrorCode.OFFSET_OUT_OF_RANGE, where, text)
        else:
            before = self.fetch_offset, self.fetch_epoch, self.read_since_move
            self.seek_by(reset.timestamp)
            if reset is OffsetReset.EARLIEST and log_start_offset > before[0]:
                self.outrun_at = before
        return is_users and reset is not OffsetReset.NONE

    def ask_epoch_end(self) -> EpochQuestion:
        """The present question to the leader, whose answer ends a validation."""
        assert self.fetch_epoch is not None
        assert self.leader_epoch is not None
        return EpochQuestion(self.generation, self.fetch_epoch, self.leader_epoch)

    def validated(
        self, question: EpochQuestion, end: EpochEndOffset, *, halt: bool, where: Where
    ) -> LogTruncated | None:
        """The leader answered where the epoch of the last fetched record ends. Returns an error if the log was
        truncated below the position.

        Records that are only buffered, in chunks or decoded, are dropped without an error: the user has not seen them.
        A fetch may have brought a record of a later epoch meanwhile: the answer does not cover that record then, and
        the question is asked again.
        """
        if question.generation != self.generation or question.epoch != self.fetch_epoch:
            return None
        epoch = question.leader_epoch
        undefined = end.end_offset < 0 or end.epoch < 0
        parting = None if undefined else self._parting(end)
        if parting is not None and parting >= self.fetch_offset:
            self.validated_epoch = epoch
            return None
        position = self.fetch_offset if self.position is None else self.position
        if not undefined and position < self.fetch_offset and (parting is None or parting >= position):
            self._move(position, self.position_epoch)  # this position is validated next
            return None
        if not self.read_since_move and self.reset_from is not None:
            self._truncated_unread(parting, end.epoch, epoch)
            return None
        problem = LogTruncated(where, position, parting)
        if halt or parting is None:
            self.halt(problem)
        else:
            self.seek(parting, end.epoch)
            self.validated_epoch = epoch
        return problem

    def _truncated_unread(self, parting: Offset | None, record_epoch: LeaderEpoch, leader_epoch: LeaderEpoch) -> None:
        """The log changed below a position from which nothing was read yet: the user lost nothing."""
        reset_from = self.reset_from
        assert reset_from is not None
        if parting is None:
            self.seek_by(reset_from)
            return
        self.seek(parting, record_epoch)
        self.reset_from = reset_from
        self.validated_epoch = leader_epoch

    def _move(self, offset: Offset, epoch: LeaderEpoch | None) -> None:
        self.generation += 1
        self.chunks.clear()
        self.position = self.fetch_offset = offset
        self.epoch_starts = [each for each in self.epoch_starts if each[1] < offset]
        self.position_epoch = self.fetch_epoch = self.epoch_starts[-1][0] if self.epoch_starts else epoch
        self.record_epoch = self.outrun_at = None
