"""The idempotent producers of one log (replication rules, section 10; hardening rule 12; KIP-98). Pure.

Owns: the last batches of each producer id, the decision whether a client's batch is new, a repetition or wrong,
and snapshots of these states. Leaves to others: keeping them in line with the batches, which the log does that holds
both; where snapshots are kept, and which requests need them.

Theory: a retry must never write twice. A batch that is in the log is therefore recognised by producer id, producer
epoch and exact sequences, and answered with its offsets. As many batches are remembered as a producer may have in
flight: five requests with several batches each. The states follow from the log: reading the batches in order yields the
same states everywhere. So followers and recovery only `update`, and only the leader of a client's write `check`s.

Forgotten batches (too many producers, an idle producer, a lost snapshot) may still be in the log. So a producer without
state may only send sequence 0, the first of a producer epoch. Anything else is answered with UNKNOWN_PRODUCER_ID, and
the producer continues under its next epoch. Thus the states of an epoch reach from its sequence 0 on without a gap, and
'older than what is remembered' means 'written before'. Idle time counts from the append, by this broker's clock: the
timestamp of a record comes from its producer and proves nothing.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from minibroker.protocol.checksum import crc32c
from minibroker.protocol.errors import ErrorCode, ProtocolError
from minibroker.protocol.ids import MAX_OFFSET, PRODUCER_EPOCH_MAX
from minibroker.protocol.record_batch import SEQUENCE_MAX, BatchHeader
from minibroker.protocol.wire.message_types import PRODUCE_BATCHES_MAX, PRODUCES_IN_FLIGHT_MAX

BATCHES_REMEMBERED = PRODUCES_IN_FLIGHT_MAX * PRODUCE_BATCHES_MAX
"""No retry can be older."""
PRODUCERS_MAX = 5_000
"""Per partition: about 2 MB with a few batches each, 7 MB with all batches remembered. The longest idle producers are
forgotten first, so invented ids cannot fill the memory."""
EXPIRATION_MS = 86_400_000
NOT_DATED = 0
"""Append time of batches that were found in the log, after a start or a truncation."""
SNAPSHOT_VERSION = 3
FORMER_VERSION = 2
"""Its place has no leader epoch. Still read; and still sent, without a place, to replicas that know no later one."""
_CRC = struct.Struct(">I")
_BATCH = struct.Struct("=iiqqI")
"""A `ProducedBatch` in memory, in 28 bytes instead of 250: a thousand partitions remember forty thousand of them."""

_SNAPSHOT_HEAD_BYTES = 17
_PLACE_BYTES_MAX = 2_100
_PRODUCER_BYTES_MAX = 26
_BATCH_BYTES_MAX = 34
"""Their sizes in a snapshot; a topic id may be as long as a message allows."""
SNAPSHOT_BYTES_MAX = (
    _SNAPSHOT_HEAD_BYTES
    + _PLACE_BYTES_MAX
    + PRODUCERS_MAX * (_PRODUCER_BYTES_MAX + BATCHES_REMEMBERED * _BATCH_BYTES_MAX)
)
"""The size with all producers and all their batches."""


class CorruptSnapshot(ProtocolError):
    """Bytes that are not a snapshot of producer states."""


class ProducedBatch(NamedTuple):
    """One remembered batch; offsets and sequences are those of its first and last record."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    crc: int
    """CRC of the batch: a retry has the same bytes, including producer id, epoch and sequence."""


class ProducerState(msgspec.Struct, frozen=True, gc=False):
    """One producer: its epoch and its newest batches."""

    producer_epoch: int
    packed: bytes
    """The batches, oldest first, at least one."""
    appended_ms: int
    """When the newest one was appended here, by this broker's wall clock, or NOT_DATED. Replicas may have different
    values."""

    @property
    def batches(self) -> tuple[ProducedBatch, ...]:
        return tuple(ProducedBatch(*fields) for fields in _BATCH.iter_unpack(self.packed))

    @property
    def last_sequence(self) -> int:
        """Of the newest batch."""
        return int(_BATCH.unpack_from(self.packed, len(self.packed) - _BATCH.size)[1])


class Accept(msgspec.Struct, frozen=True):
    """The batch is the next one: append it."""


class Duplicate(msgspec.Struct, frozen=True):
    """The batch is in the log already: append nothing and answer with these offsets (acks=all still waits)."""

    base_offset: int
    last_offset: int


class Refuse(msgspec.Struct, frozen=True):
    """The batch must not be appended."""

    error: ErrorCode
    reason: str = ""
    """Added to what the batch says of itself."""


SequenceCheck: TypeAlias = Accept | Duplicate | Refuse
ACCEPT = Accept()


class KnownProducers(Protocol):
    """What the core may ask of a log's producer states. Only the log changes them."""

    def check(self, header: BatchHeader, is_retry: bool = False) -> SequenceCheck:
        """Decide about a client's batch."""
        ...


class SnapshotPlace(NamedTuple):
    """The log of a snapshot, and its end offset when the snapshot was taken."""

    topic_id: str
    partition: int
    offset: int
    leader_epoch: int | None = None
    """Of the batch that ends at the offset (-1: not known). Offset and epoch fix all batches in front: after a
    truncation others may end there. None: not named, or nothing is left to compare it with."""

    def __str__(self) -> str:
        epoch = "" if self.leader_epoch is None else f" after leader epoch {self.leader_epoch}"
        return f"partition {self.partition} of topic {self.topic_id!r} at offset {self.offset}{epoch}"


class _Snapshot(NamedTuple):
    version: int
    place: SnapshotPlace | None
    producers: list[tuple[int, int, int, list[ProducedBatch]]]
    incomplete_since_ms: int | None = None


class _SnapshotHead(NamedTuple):
    """The same, its producers not decoded."""

    version: int
    place: SnapshotPlace | None
    producers: msgspec.Raw
    incomplete_since_ms: msgspec.Raw = msgspec.Raw()


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Snapshot)
_HEAD_DECODER = msgspec.msgpack.Decoder(_SnapshotHead)


class ProducerStates:
    """All producers of one partition, in the order of their last batch."""

    __slots__ = ("_idle", "_incomplete_since_ms", "_states")

    def __init__(self, is_incomplete: bool = False) -> None:
        self._incomplete_since_ms = NOT_DATED if is_incomplete else None
        """When producers were found to be missing, by the clock that dates appends; NOT_DATED until `expire`."""
        self._states: dict[int, ProducerState] = {}
        self._idle: dict[int, int] = {}
        """Producers forgotten for their silence, the latest last, with their epochs. In memory only."""

    def __len__(self) -> int:
        return len(self._states)

    def __eq__(self, other: object) -> bool:
        """Equal if they hold the same producers with the same batches in the same order, whatever the append times."""
        if not isinstance(other, ProducerStates):
            return NotImplemented
        return self._content() == other._content()

    __hash__ = None  # type: ignore[assignment]

    def _content(self) -> list[tuple[int, int, bytes]]:
        return [(producer, state.producer_epoch, state.packed) for producer, state in self._states.items()]

    def __iter__(self) -> Iterator[tuple[int, ProducerState]]:
        return iter(self._states.items())

    @property
    def is_incomplete(self) -> bool:
        """Whether producers may be missing that wrote in front of the log's first batch: no file tells of them."""
        return self._incomplete_since_ms is not None

    def mark_incomplete(self) -> None:
        self._incomplete_since_ms = NOT_DATED

    def get(self, producer_id: int) -> ProducerState | None:
        return self._states.get(producer_id)

    def check(self, header: BatchHeader, is_retry: bool = False) -> SequenceCheck:
        """Decide about a client's batch. A batch without a producer id is always new. `is_retry`: an earlier attempt
        was not answered; if this producer was forgotten, or any one may be missing, it may have been written."""
        if header.producer_id < 0:
            return ACCEPT
        if header.producer_epoch < 0 or header.base_sequence < 0:
            return Refuse(ErrorCode.INVALID_RECORD)
        state = self._states.get(header.producer_id)
        if state is None:
            if is_retry and header.producer_epoch <= self._idle.get(header.producer_id, -1):
                return Refuse(ErrorCode.UNKNOWN_PRODUCER_ID, "it was silent for so long that it was forgotten")
            if header.base_sequence == 0 and not (is_retry and self._may_lack_any):
                return ACCEPT
            return Refuse(ErrorCode.UNKNOWN_PRODUCER_ID, "nothing is known of its sequences before")
        if header.producer_epoch < state.producer_epoch:
            later = f"a later process writes as this producer, with epoch {state.producer_epoch}"
            return Refuse(ErrorCode.INVALID_PRODUCER_EPOCH, later)
        if header.producer_epoch > state.producer_epoch:
            is_first = header.base_sequence == 0
            return ACCEPT if is_first else Refuse(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        return _check_sequence(header, state)

    @property
    def _may_lack_any(self) -> bool:
        """Where all places are taken, producers may have been forgotten for lack of room."""
        return self.is_incomplete or len(self._states) >= PRODUCERS_MAX

    def update(self, header: BatchHeader, now_ms: int = NOT_DATED) -> None:
        """Remember a batch that is in the log now. `now_ms`: when it was appended, by this broker's wall clock."""
        if header.producer_id < 0:
            return
        batches = _BATCH.pack(
            header.base_sequence, header.last_sequence, header.base_offset, header.last_offset, header.crc
        )
        if self._idle:
            self._idle.pop(header.producer_id, None)
        states = self._states
        state = states.pop(header.producer_id, None)  # goes back in at the end: the order is that of the last batches
        if state is not None and state.producer_epoch == header.producer_epoch:
            batches = state.packed[(1 - BATCHES_REMEMBERED) * _BATCH.size :] + batches
        states[header.producer_id] = ProducerState(header.producer_epoch, batches, now_ms)
        if len(states) > PRODUCERS_MAX:
            del states[next(iter(states))]

    def update_all(self, headers: Sequence[BatchHeader]) -> None:
        """Like `update` with each of them in order, but cheaper if producers have many batches: it handles only those
        that are remembered in the end."""
        newest: dict[int, list[BatchHeader]] = {}
        for header in reversed(headers):
            known = newest.get(header.producer_id)
            if known is None:
                newest[header.producer_id] = [header]
            elif len(known) < BATCHES_REMEMBERED:
                known.append(header)
        if len(self._states) + len(newest) > PRODUCERS_MAX:  # a producer forgotten meanwhile starts again: take each
            newest = {number: [header] for number, header in enumerate(reversed(headers))}
        for batches in reversed(newest.values()):
            for header in reversed(batches):
                self.update(header)

    def expire(self, now_ms: int, expiration_ms: int = EXPIRATION_MS) -> int:
        """Forget producers with a last batch older than that; returns how many. If its append time is unknown, it
        counts from now on. So does the time after which all that may be missing would have been forgotten, too."""
        oldest = now_ms - expiration_ms
        if self._incomplete_since_ms is not None:
            since_ms = self._incomplete_since_ms or now_ms
            self._incomplete_since_ms = since_ms if since_ms >= oldest else None
        expired = {
            producer: state.producer_epoch
            for producer, state in self._states.items()
            if state.appended_ms < oldest and state.appended_ms != NOT_DATED
        }
        self._states = {
            producer: state if state.appended_ms != NOT_DATED else replace(state, appended_ms=now_ms)
            for producer, state in self._states.items()
            if producer not in expired
        }
        self._idle |= expired
        while len(self._idle) > PRODUCERS_MAX:
            del self._idle[next(iter(self._idle))]
        return len(expired)

    def copy(self) -> "ProducerStates":
        states = ProducerStates()
        states._incomplete_since_ms = self._incomplete_since_ms
        states._states = dict(self._states)
        states._idle = dict(self._idle)
        return states

    def snapshot(self, place: SnapshotPlace | None = None) -> bytes:
        """u32 CRC-32C of the rest, then msgpack [version, [topic_id, partition, offset, leader_epoch], [[producer_id,
        producer_epoch, appended_ms, [[first_sequence, last_sequence, base_offset, last_offset, crc], ..]], ..]].
        Without a place (nil) it is sent to another replica, not kept. If producers may be missing, since when that
        is known follows, in ms (0: not dated)."""
        producers = [
            (producer, state.producer_epoch, state.appended_ms, state.batches)
            for producer, state in self._states.items()
        ]
        content = (FORMER_VERSION if place is None else SNAPSHOT_VERSION, place, producers)
        since_ms = self._incomplete_since_ms
        body = _ENCODER.encode(content if since_ms is None else (*content, since_ms))
        return _CRC.pack(crc32c(body)) + body

    def snapshot_below(self, offset: int, bytes_max: int) -> bytes:
        """A snapshot of the batches below `offset`, for a replica that starts empty there and reads the later ones
        itself. If it exceeds `bytes_max`, the longest idle producers are left out, and it says so. Empty if there are
        no batches, and none may be missing."""
        chosen: list[tuple[int, ProducerState]] = []
        room = bytes_max - _SNAPSHOT_HEAD_BYTES
        for producer_id, state in reversed(self._states.items()):
            packed = b"".join(_BATCH.pack(*batch) for batch in state.batches if batch.last_offset < offset)
            room -= (_PRODUCER_BYTES_MAX + len(packed) // _BATCH.size * _BATCH_BYTES_MAX) if packed else 0
            if room < 0:
                break
            if packed:
                chosen.append((producer_id, replace(state, packed=packed)))
        states = ProducerStates(room < 0 or len(self._states) >= PRODUCERS_MAX)
        if not states.is_incomplete:
            states._incomplete_since_ms = self._incomplete_since_ms
        states._states = dict(reversed(chosen))
        return states.snapshot() if chosen or states.is_incomplete else b""

    @classmethod
    def load(cls, content: bytes, place: SnapshotPlace | None = None, end_offset: int = MAX_OFFSET) -> "ProducerStates":
        """The states of a snapshot. Raises CorruptSnapshot, also for a snapshot of another log, end offset or
        leader epoch, which is true only there. `end_offset`: of one that names no place, where its log begins."""
        found = _decoded(content, _DECODER, place)
        end_offset = end_offset if place is None else place.offset
        producers, incomplete_since_ms = found.producers, found.incomplete_since_ms
        if incomplete_since_ms is not None and not 0 <= incomplete_since_ms <= MAX_OFFSET:
            raise CorruptSnapshot(f"producers are missing since {incomplete_since_ms}")
        states = cls()
        states._incomplete_since_ms = incomplete_since_ms
        for producer_id, producer_epoch, appended_ms, batches in producers:
            problem = _misfit(producer_id, producer_epoch, appended_ms, batches, end_offset)
            if problem is None and producer_id in states._states:
                problem = "is named twice"
            if problem is not None:
                raise CorruptSnapshot(f"producer {producer_id} {problem}")
            packed = b"".join([_BATCH.pack(*batch) for batch in batches])
            states._states[producer_id] = ProducerState(producer_epoch, packed, appended_ms)
        if len(states) > PRODUCERS_MAX:
            raise CorruptSnapshot(f"{len(states)} producers are too many")
        return states


def check_snapshot(content: bytes, place: SnapshotPlace) -> None:
    """Raise CorruptSnapshot if `load` would, for the snapshot as a whole: its producers are not looked at."""
    _decoded(content, _HEAD_DECODER, place)


SnapshotT = TypeVar("SnapshotT", _Snapshot, _SnapshotHead)


def _decoded(content: bytes, decoder: msgspec.msgpack.Decoder[SnapshotT], place: SnapshotPlace | None) -> SnapshotT:
    body = content[_CRC.size :]
    if len(content) < _CRC.size or crc32c(body) != _CRC.unpack_from(content)[0]:
        raise CorruptSnapshot("the CRC of the producer snapshot does not match")
    try:
        found = decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptSnapshot(f"the producer snapshot does not decode: {error}") from None
    if found.version not in (FORMER_VERSION, SNAPSHOT_VERSION):
        raise CorruptSnapshot(f"the producer snapshot has version {found.version}, not {SNAPSHOT_VERSION}")
    if not _is_same(found.place, place):
        raise CorruptSnapshot(f"the producer snapshot is of {found.place}, not of {place}")
    return found


def _is_same(found: SnapshotPlace | None, place: SnapshotPlace | None) -> bool:
    if found is None or place is None:
        return found is place
    return found[:3] == place[:3] and (None in (found.leader_epoch, place.leader_epoch) or found == place)


def _misfit(
    producer_id: int,
    producer_epoch: int,
    appended_ms: int,
    batches: Sequence[ProducedBatch],
    end_offset: int,
) -> str | None:
    """Why no log can have these states of a producer: a valid checksum proves that they were written, not that they
    are true."""
    if not (0 <= producer_id <= MAX_OFFSET and 0 <= producer_epoch <= PRODUCER_EPOCH_MAX):
        return f"of epoch {producer_epoch} is no producer's identity"
    if not 0 <= appended_ms <= MAX_OFFSET:
        return f"wrote at {appended_ms}"
    if not 1 <= len(batches) <= BATCHES_REMEMBERED:
        return f"has {len(batches)} batches"
    at = 0
    for batch in batches:
        is_in_place = at <= batch.base_offset <= batch.last_offset < end_offset
        is_in_range = all(0 <= each <= SEQUENCE_MAX for each in batch[:2]) and 0 <= batch.crc < 2**32
        count = (batch.last_sequence - batch.first_sequence) & SEQUENCE_MAX
        if not is_in_place or not is_in_range or count != batch.last_offset - batch.base_offset:
            return f"has a batch out of range or out of order: {batch}"
        at = batch.last_offset + 1
    return None


def _check_sequence(header: BatchHeader, state: ProducerState) -> SequenceCheck:
    """For the same producer epoch: one of the remembered batches, the next one, or wrong."""
    first, last = header.base_sequence, header.last_sequence
    if first == next_sequence(state.last_sequence):
        return ACCEPT  # no remembered batch begins there: they would have to span all sequence numbers
    batches = state.batches
    for batch in reversed(batches):
        if batch.first_sequence == first and batch.last_sequence == last:
            if batch.crc != header.crc:
                return Refuse(ErrorCode.INVALID_PRODUCER_EPOCH, _other_bytes(batch, header))
            return Duplicate(batch.base_offset, batch.last_offset)
    if is_before(last, batches[0].first_sequence):
        return Refuse(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    return Refuse(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


def _other_bytes(batch: ProducedBatch, header: BatchHeader) -> str:
    """The reason if two producers share an identity: neither may take the other's records for its own."""
    return (
        f"offsets {batch.base_offset} to {batch.last_offset} hold other bytes under these sequences (CRC"
        f" {batch.crc:08x}, not {header.crc:08x}): another producer uses this producer id and epoch"
    )


def continues(before: BatchHeader, header: BatchHeader) -> bool:
    """Whether `header` is the next batch of the same producer, so that it is accepted once `before` is written. Any
    batches without a producer id continue each other."""
    if header.producer_id != before.producer_id:
        return False
    if header.producer_id < 0:
        return True
    next_one = (before.base_sequence + before.record_count) & SEQUENCE_MAX
    return header.base_sequence == next_one and header.producer_epoch == before.producer_epoch


def next_sequence(sequence: int) -> int:
    """After 2^31 - 1 sequences continue at 0."""
    return (sequence + 1) & SEQUENCE_MAX


def is_before(sequence: int, other: int) -> bool:
    """Whether `sequence` lies in the half of the wrapping range that comes before `other`."""
    return 0 < ((other - sequence) & SEQUENCE_MAX) < 2**30
