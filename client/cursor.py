"""Where a consumer stands in one partition. Pure.

Owns: the two positions (what was handed out, what was fetched), when they may be trusted, and what a reply means for
them. Refuses to know connections, tasks and time.

    position       next offset for the user; None until it is known
    fetch_offset   next offset to ask for: `position` plus what waits in `chunks`

States, in the order in which they are looked at:

    halted        an error the user has to act on (seek) stands here
    resetting     the position has to be asked for (start, seek_to_beginning, a reset policy)
    validating    the leader's epoch is newer than the one the position was last seen under: before anything is fetched
                  from the new leader it is asked where that epoch ends (KIP-320)
    fetching      all is well

A position only moves forward, but for the user's own seek and a truncation. Every change that did not come from a
fetch raises `generation`; replies asked for under an older generation, or for another offset, are dropped.
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
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
from minibroker.protocol.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, EpochEndOffset
from minibroker.protocol.record_batch import BatchHeader

CHUNKS_MAX = 2
"""Fetched chunks that may wait for the user: one being read, one ahead."""


class OffsetReset(Enum):
    """What to do without a valid position."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"

    @property
    def timestamp(self) -> int:
        """As ListOffsets asks for it."""
        return EARLIEST_TIMESTAMP if self is OffsetReset.EARLIEST else LATEST_TIMESTAMP


class EpochQuestion(msgspec.Struct, frozen=True):
    """Where does the epoch of our last record end? Asked of a new leader."""

    generation: int
    epoch: LeaderEpoch
    """Of the last record fetched, at the time of asking."""
    leader_epoch: LeaderEpoch
    """Of the leader that is asked."""


class Chunk(msgspec.Struct, gc=False):
    """Whole batches that were fetched together."""

    records: memoryview
    unread: deque[tuple[int, BatchHeader]]
    """Where in `records` the batches lie that were not read yet. Never empty while the chunk waits."""


class Cursor:
    """One assigned partition."""

    __slots__ = (
        "chunks",
        "error",
        "fetch_epoch",
        "fetch_offset",
        "generation",
        "halted",
        "high_watermark",
        "leader",
        "leader_epoch",
        "log_start_offset",
        "max_bytes",
        "paused",
        "position",
        "position_epoch",
        "read_since_move",
        "record_epoch",
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
        """Of the topic that the position belongs to; None until it is known."""
        self.position: Offset | None = None
        self.position_epoch: LeaderEpoch | None = None
        """Epoch of the last record handed out."""
        self.fetch_offset: Offset = 0
        self.fetch_epoch: LeaderEpoch | None = None
        """Epoch of the last record fetched, or under which the position was found."""
        self.record_epoch: LeaderEpoch | None = None
        """Epoch of the last record fetched since the position was last moved."""
        self.chunks: deque[Chunk] = deque()
        self.generation = 0
        self.leader: BrokerId | None = None
        self.leader_epoch: LeaderEpoch | None = None
        self.validated_epoch: LeaderEpoch | None = None
        """Leader epoch under which the fetch position was last known to be right."""
        self.reset_timestamp: int | None = None
        """What is being asked for; None once the position is known."""
        self.reset_from: int | None = None
        """The timestamp by which the position was found, if it was not the user's own seek."""
        self.read_since_move = False
        """Something was handed out since then: only then a truncation is anybody's loss."""
        self.halted: MinibrokerError | None = None
        """Raised by every call until the user seeks."""
        self.error: MinibrokerError | None = None
        """What went wrong last; None once an answer came."""
        self.unfit_fetches = 0
        """Replies in a row that did not bring what was asked for."""
        self.refused_since_ms: float | None = None
        """When the first of those answers came that were errors or of no use; None after a good one."""
        self.paused = False
        self.high_watermark: Offset | None = None
        self.log_start_offset: Offset | None = None
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
        """May be fetched now, as far as positions are concerned, and has room or not."""
        return self.halted is None and not self.paused and self.reset_timestamp is None and not self.needs_validation

    @property
    def place(self) -> str:
        """Where it stands, in words."""
        return f"offset {self.fetch_offset}" if self.reset_timestamp is None else "a position that is not known yet"

    @property
    def has_room(self) -> bool:
        return len(self.chunks) < CHUNKS_MAX

    # ----------------------------------------------------------------------------------------------------- decisions
    def refused(self, error: MinibrokerError, now_ms: float) -> None:
        """Somebody answered, and it does not help us on."""
        self.error = error
        if self.refused_since_ms is None:
            self.refused_since_ms = now_ms

    def answered(self) -> None:
        """The leader took our question."""
        self.error = None
        self.refused_since_ms = None

    def learn_leader(self, leader: BrokerId | None, epoch: LeaderEpoch | None) -> bool:
        """What metadata says, and whether that is news; a position that nobody has validated yet is taken as seen under
        this epoch."""
        is_news = (leader, epoch) != (self.leader, self.leader_epoch)
        if is_news:
            self.retry_at_ms = 0.0
        self.leader = leader
        self.leader_epoch = epoch
        if self.validated_epoch is None or self.fetch_epoch is None:
            self.validated_epoch = epoch
        return is_news

    def learn_topic(self, topic_id: str, reset: OffsetReset, where: Where) -> bool:
        """What metadata says; whether it is another topic than before. Then no position, epoch or buffered record of
        ours means anything there, and the policy decides as for a position that is not in the log."""
        before, self.topic_id = self.topic_id, topic_id
        if before in (None, topic_id):
            return False
        self.generation += 1
        self.chunks.clear()
        self.fetch_epoch = self.record_epoch = self.position_epoch = None
        self.validated_epoch = self.leader_epoch = None
        self.high_watermark = self.log_start_offset = None
        if self.reset_timestamp is not None:
            return True  # it is being asked for, and will be anew
        if not self.read_since_move and self.reset_from is not None:
            self.seek_by(self.reset_from)
        elif reset is OffsetReset.NONE:
            self.halted = TopicMadeAgain(where, self.position)
        else:
            self.seek_by(reset.timestamp)
        return True

    def seek(self, offset: Offset, epoch: LeaderEpoch | None = None) -> None:
        """Stand at this offset. `epoch`: the leader epoch of the record before it, if known."""
        self._move(offset, epoch)
        self.reset_timestamp = None
        self.reset_from = None
        self.read_since_move = False
        self.halted = None
        self.answered()
        self.unfit_fetches = 0
        self.validated_epoch = self.leader_epoch if epoch is None else epoch

    def refetch(self) -> None:
        """Drop what is buffered; it is fetched again from the position on."""
        if self.position is not None and self.reset_timestamp is None:
            self._move(self.position, self.position_epoch)

    def seek_by(self, timestamp: int) -> None:
        """Ask the leader where to stand."""
        self.generation += 1
        self.chunks.clear()
        self.position = None
        self.reset_timestamp = timestamp
        self.halted = None
        self.answered()

    def settle_reset(self, generation: int, offset: Offset, epoch: LeaderEpoch | None) -> bool:
        """The answer to a reset; dropped if the user has sought meanwhile. Says whether it was taken."""
        if generation != self.generation or self.reset_timestamp is None:
            return False
        timestamp = self.reset_timestamp
        self.seek(offset, epoch)
        self.reset_from = timestamp
        return True

    def fetched(self, chunk: Chunk, end: Offset, epoch: LeaderEpoch) -> None:
        """A reply brought batches up to `end`."""
        assert end > self.fetch_offset
        self.chunks.append(chunk)
        self.fetch_offset = end
        self.fetch_epoch = self.record_epoch = epoch
        self.unfit_fetches = 0

    def misfit(self, header: BatchHeader, before: BatchHeader | None) -> str | None:
        """Why this batch of a reply cannot be what was asked for, if so. The first one holds the asked offset, each
        other one follows the one before, epochs never fall along a log, and none is above the leader's."""
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

    def out_of_range(self, reset: OffsetReset, where: Where) -> None:
        """The leader has no such offset (the reply's offset still being ours). What is buffered stays readable."""
        if self.chunks:
            return  # ask again when the user has caught up: the log may have moved by then
        if reset is OffsetReset.NONE:
            text = f"position {self.fetch_offset} is not in the log, and auto_offset_reset is 'none'"
            self.halted = OffsetOutOfRange(ErrorCode.OFFSET_OUT_OF_RANGE, where, text)
        else:
            self.seek_by(reset.timestamp)

    def ask_epoch_end(self) -> EpochQuestion:
        """The question that ends a validation, as it is to be asked now."""
        assert self.fetch_epoch is not None
        assert self.leader_epoch is not None
        return EpochQuestion(self.generation, self.fetch_epoch, self.leader_epoch)

    def validated(
        self, question: EpochQuestion, end: EpochEndOffset, *, halt: bool, where: Where
    ) -> LogTruncated | None:
        """The leader said where the epoch of our last record ends. Truncated: that is said, too.

        What is only buffered is dropped quietly: nobody has seen it. A fetch that was under way may have brought a
        record of a later epoch meanwhile: then the answer says nothing about that record, and the question is put anew.
        """
        if question.generation != self.generation or question.epoch != self.fetch_epoch:
            return None
        epoch = question.leader_epoch
        undefined = end.end_offset < 0 or end.epoch < 0
        if not undefined and end.end_offset >= self.fetch_offset:
            self.validated_epoch = epoch
            return None
        position = self.fetch_offset if self.position is None else self.position
        if not undefined and end.end_offset >= position and self.chunks:
            self._move(position, self.position_epoch)  # and then this position is validated in its turn
            return None
        if not self.read_since_move and self.reset_from is not None:
            self._truncated_unread(None if undefined else end, epoch)
            return None
        problem = LogTruncated(where, position, None if undefined else end.end_offset)
        if halt or undefined:
            self.generation += 1
            self.chunks.clear()
            self.halted = problem
        else:
            self.seek(end.end_offset, end.epoch)
            self.validated_epoch = epoch
        return problem

    def _truncated_unread(self, end: EpochEndOffset | None, epoch: LeaderEpoch) -> None:
        """The log changed below a position from which nothing was read yet: nobody lost anything."""
        reset_from = self.reset_from
        assert reset_from is not None
        if end is None:
            self.seek_by(reset_from)
            return
        self.seek(end.end_offset, end.epoch)
        self.reset_from = reset_from
        self.validated_epoch = epoch

    def _move(self, offset: Offset, epoch: LeaderEpoch | None) -> None:
        self.generation += 1
        self.chunks.clear()
        self.position = self.fetch_offset = offset
        self.position_epoch = self.fetch_epoch = epoch
        self.record_epoch = None
