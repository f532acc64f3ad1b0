"""What can go wrong for a user of the client: one tree.

    MinibrokerError               .retriable  .refreshes_metadata  .code  .maybe_written
    |- InvalidCall                the call can never succeed as it is (also a ValueError)
    |  |- ClientClosed            used before start or after close
    |  |- WrongArguments         a parameter that does not exist, or one that must be named (also a TypeError)
    |  |- ForeignCaller           used from another event loop, thread or process than it was started in
    |  `- RecordTooLarge          larger than max_request_size, or than the broker's max.message.bytes
    |- ClusterUnreachable         no known broker answers
    |  |- BrokerUnreachable       one broker does not; says so if its advertised address is to blame
    |  `- NotMinibroker           the peer answers, but is not a minibroker
    |- CallTimedOut               a call reached its deadline (also a TimeoutError); names the last error
    |  |- BufferTimedOut          send() waited max_block_ms for buffer memory or metadata
    |  |- DeliveryTimedOut        a record was not acknowledged within delivery_timeout_ms
    |  `- FlushTimedOut           flush() or close() gave up; says what is still on its way
    |- DeliveryAborted            the producer was closed before the record could be delivered
    |- UndeliveredRecords         raised by flush() and close(): failures that the program has not looked at
    |- BrokerError                a broker refused; its class follows the error code
    |  |- UnknownTopicOrPartition, NotLeaderOrFollower, LeaderNotAvailable, NotEnoughReplicas,
    |  |  NotEnoughReplicasAfterAppend, InvalidTopic, TopicAlreadyExists, InvalidReplicationFactor,
    |  |  InvalidPartitions, InvalidConfig, NotController, StorageError, CorruptMessage, OffsetNotAvailable
    |  |- OffsetOutOfRange        the position is outside the log and there is no reset policy
    |  |- ProducerFenced          a later process has this producer's name: this one can write nothing more
    |  |- UnknownProducerName     no producer has the name that is to be deleted
    |  |- SequenceError           the broker no longer knows what this producer wrote before
    |  `- OutcomeUnknown          and an earlier attempt went unanswered: the record may have been written or not
    |- CorruptRecords             what a broker sent is damaged (CRC); names partition, offset and broker
    |  `- MisplacedRecords        intact batches that were not requested: wrong offsets, a gap, a falling epoch
    |- UndecodableRecords         an intact batch that no reader can decode: its producer encoded it like this
    |- UndeserializableRecord     a deserializer of the program refused a key or a value
    |- LogTruncated               records that were read here have since been lost; names the divergent offset
    `- TopicMadeAgain             the topic that was read was deleted, and another one has its name

Owns: the classes and their wording. Leaves to others: when to raise them. Every text names the topic-partition, the
broker, its leader epoch and the in-sync replicas as far as they are known, and says what to do.
"""

from collections.abc import Awaitable, Generator, Sequence
from typing import Any, Protocol

import msgspec

from minibroker.client.error_advice import advice_for
from minibroker.protocol.errors import REFRESHES_METADATA, RETRIABLE, ErrorCode, error_code
from minibroker.protocol.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
from minibroker.runtime.ports import ConnectionRefused


class Where(msgspec.Struct, frozen=True):
    """Partition and broker of an error, and what was known of both at that time."""

    topic_partition: TopicPartition | None = None
    topic: str | None = None
    broker_id: BrokerId | None = None
    leader_epoch: LeaderEpoch | None = None
    isr: tuple[BrokerId, ...] | None = None

    def __str__(self) -> str:
        parts = []
        if self.broker_id is not None:
            parts.append(f"from broker {self.broker_id}")
        if self.topic_partition is not None:
            parts.append(f"for {self.topic_partition}")
        elif self.topic is not None:
            parts.append(f"for topic {self.topic!r}")
        known = []
        if self.leader_epoch is not None:
            known.append(f"epoch {self.leader_epoch}")
        if self.isr is not None:
            known.append(f"ISR [{', '.join(map(str, self.isr))}]")
        if known:
            parts.append(f"({', '.join(known)})")
        return " ".join(parts)


NOWHERE = Where()


class MinibrokerError(Exception):
    """Base of everything the client raises."""

    retriable = False
    """The same call may succeed later."""
    refreshes_metadata = False
    """The client's metadata was out of date (it has fetched it again already)."""
    code: ErrorCode | None = None
    """The broker's error code, if a broker sent one."""
    maybe_written = False
    """For a record that was not acknowledged: it may be in the log all the same."""
    taken: "TakenRecords | None" = None
    """The first records of a `send_many` that it had taken before this error ended it; they are being sent. None if the
    error did not come from `send_many`."""


class TakenRecords(Protocol):
    """Promises of a `send_many` that an error ended: they are its Deliveries."""

    @property
    def done(self) -> bool:
        """Whether all outcomes are known."""
        ...

    def first_error(self) -> MinibrokerError | None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Awaitable[Any]: ...
    def __await__(self) -> Generator[Any, None, Any]: ...


class PlacedRecord(Protocol):
    """The record that an error is about: a Record."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> Offset: ...


class InvalidCall(MinibrokerError, ValueError):
    """This call can never succeed as it is."""


class ClientClosed(InvalidCall):
    """The client is not open: call `await start()` or use `async with` first; after close() it cannot be used again."""


class WrongArguments(InvalidCall, TypeError):
    """A parameter that does not exist, or one by position that must be named."""


class ForeignCaller(InvalidCall):
    """The call comes from another event loop or thread than the one that started the client, or from a forked
    process."""


class RecordTooLarge(InvalidCall):
    """A record is larger than what may be sent."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class ClusterUnreachable(MinibrokerError):
    """No known broker answers."""

    retriable = True
    refreshes_metadata = True
    failures: tuple[tuple[object, Exception], ...] = ()
    """Each address that was asked, with its error, where none answered."""
    are_silent = False
    """None of them refused, either."""

    @property
    def is_refused(self) -> bool:
        """Whether nothing listens at any address that was asked: waiting helps only where brokers are starting."""
        causes = [failure.__cause__ for _, failure in self.failures]
        return bool(causes) and all(isinstance(cause, ConnectionRefused) for cause in causes)


class BrokerUnreachable(ClusterUnreachable):
    """One broker does not answer."""

    def __init__(self, message: str, broker_id: BrokerId | None = None, *, in_doubt: bool = False) -> None:
        super().__init__(message)
        self.broker_id = broker_id
        self.in_doubt = in_doubt
        """The request had been sent: it may have been carried out."""


class NotMinibroker(ClusterUnreachable):
    """The peer uses another protocol, or another version of this one."""

    retriable = False


class CallTimedOut(MinibrokerError, TimeoutError):
    """A call reached its deadline."""

    retriable = True

    def __init__(self, message: str, last_error: Exception | None = None) -> None:
        if isinstance(last_error, CallTimedOut):  # name what was waited for, not the waits around it
            last_error = last_error.last_error or last_error
        if last_error is not None:
            message = f"{message}; last error: {last_error}"
        super().__init__(message)
        self.last_error: Exception | None = last_error
        """The last error before the deadline, if there was one."""
        if isinstance(last_error, MinibrokerError):
            self.code = last_error.code


class BufferTimedOut(CallTimedOut):
    """send() could not take the record within max_block_ms; the record was not taken."""


class DeliveryTimedOut(CallTimedOut):
    """The record was not acknowledged within delivery_timeout_ms. `maybe_written` says whether it may be in the log."""

    def __init__(self, message: str, last_error: Exception | None = None, *, maybe_written: bool = False) -> None:
        super().__init__(message, last_error)
        self.maybe_written = maybe_written


class FlushTimedOut(CallTimedOut):
    """flush() or close() reached its deadline with records still on their way."""


class DeliveryAborted(MinibrokerError):
    """The producer was closed before the record could be delivered."""

    def __init__(self, message: str, *, maybe_written: bool = False) -> None:
        super().__init__(message)
        self.maybe_written = maybe_written


def records(count: int) -> str:
    """'1 record', '2 records'."""
    return "1 record" if count == 1 else f"{count} records"


class UndeliveredRecords(MinibrokerError):
    """Records failed, and the program has not looked at their deliveries."""

    def __init__(self, record_count: int, first: Exception) -> None:
        super().__init__(f"{records(record_count)} could not be delivered; the first failure: {first}")
        self.record_count = record_count
        self.first = first


class CorruptRecords(MinibrokerError):
    """A broker sent records that fail their checks. The same call tries again."""

    code = ErrorCode.CORRUPT_MESSAGE
    retriable = True

    def __init__(self, where: Where, offset: Offset, reason: object) -> None:
        self.topic_partition = where.topic_partition
        self.broker_id = where.broker_id
        self.offset = offset
        """Where they should begin."""
        super().__init__(f"what came {where} at offset {offset} {self._fault}: {reason}")

    _fault = "is damaged"


class MisplacedRecords(CorruptRecords):
    """A broker sent intact batches that are not those at the requested offset, or that do not follow each other: its
    log or an index of it is damaged. None of them is returned to the user."""

    _fault = "does not belong there"


class UndecodableRecords(MinibrokerError):
    """A batch is in the log as its producer sent it (the CRC is right), but no reader can decode its records. The
    consumer stays in front of it until `seek(end_offset)`, or skips it with on_undecodable="skip"."""

    code = ErrorCode.INVALID_RECORD

    def __init__(self, where: Where, offset: Offset, end_offset: Offset, reason: object) -> None:
        self.topic_partition = where.topic_partition
        self.offset = offset
        """Of the batch's first record."""
        self.end_offset = end_offset
        """The offset behind the batch, where reading may continue."""
        super().__init__(
            f"offsets {offset} to {end_offset - 1} of {where.topic_partition} cannot be decoded by any reader: {reason}"
            f". The producer encoded them like this; seek({end_offset}), or read with on_undecodable='skip'"
        )


class UndeserializableRecord(MinibrokerError):
    """A deserializer raised an error, which is this one's cause. The consumer stays in front of the record until
    `seek`."""

    def __init__(self, record: "PlacedRecord", cause: Exception) -> None:
        self.topic_partition = TopicPartition(record.topic, record.partition)
        self.record = record
        """As it is in the log, with key and value in bytes."""
        super().__init__(
            f"offset {record.offset} of {self.topic_partition} cannot be deserialized: {cause!r:.500}. To read on"
            f" behind it: seek(TopicPartition({record.topic!r}, {record.partition}), {record.offset + 1})"
        )


class LogTruncated(MinibrokerError):
    """Records at and above `divergent_offset` that were read here are no longer in the log (KIP-320).

    Happens after an unclean election or the loss of all in-sync replicas. The consumer keeps its position until `seek`.
    """

    def __init__(self, where: Where, position: Offset, divergent_offset: Offset | None) -> None:
        self.topic_partition = where.topic_partition
        self.position = position
        self.divergent_offset = divergent_offset
        """First offset at which the log now differs from what was read; None if the leader does not know it."""
        lost = "an unknown offset" if divergent_offset is None else f"offset {divergent_offset}"
        seek = "seek_to_beginning()" if divergent_offset is None else f"seek({divergent_offset})"
        super().__init__(
            f"the log of {where.topic_partition} was truncated {_known(where)}: read up to {position}, but it differs "
            f"from {lost} on; records read there may be gone. Discard what was derived from them, then {seek}"
        )


class TopicMadeAgain(MinibrokerError):
    """The topic was deleted, and another one was created under its name: the position means nothing in the new topic.

    Raised with auto_offset_reset="none" only. The consumer keeps its position until `seek`.
    """

    def __init__(self, where: Where, position: Offset | None) -> None:
        self.topic_partition = where.topic_partition
        self.position = position
        """In the deleted topic."""
        super().__init__(
            f"the topic of {where.topic_partition} was deleted and created again: position {position} belonged to the"
            " deleted topic, and auto_offset_reset is 'none'. Discard what was derived from it if necessary, then seek"
        )


def _known(where: Where) -> str:
    text = str(Where(broker_id=where.broker_id, leader_epoch=where.leader_epoch, isr=where.isr))
    return text.replace("from broker", "by broker")


class BrokerError(MinibrokerError):
    """A broker refused."""

    def __init__(self, code: int, where: Where = NOWHERE, message: str | None = None) -> None:
        self.code = error_code(code)
        self.where = where
        self.broker_message = message
        self.retriable = self.code in RETRIABLE
        self.refreshes_metadata = self.code in REFRESHES_METADATA
        name = self.code.name if self.code == code else f"error {code}"
        if message and "ISR=" in message:  # the broker's is newer than what this client knew
            where = msgspec.structs.replace(where, isr=None)
        text = f"{name} {where}".rstrip()
        if message:
            text += f": {message}"
        advice = advice_for(self.code, of_partition=where.topic_partition is not None)
        if advice:
            text += f" [{advice}]"
        super().__init__(text)

    @property
    def topic_partition(self) -> TopicPartition | None:
        return self.where.topic_partition

    @property
    def broker_id(self) -> BrokerId | None:
        return self.where.broker_id


class UnknownTopicOrPartition(BrokerError):
    """The topic or partition does not exist, or this broker does not know it yet."""


class LeaderNotAvailable(BrokerError):
    """The partition has no leader now."""


class NotLeaderOrFollower(BrokerError):
    """The broker that was asked does not lead the partition, or no longer does."""


class NotEnoughReplicas(BrokerError):
    """Fewer in-sync replicas than min.insync.replicas: nothing was written."""


class NotEnoughReplicasAfterAppend(BrokerError):
    """Written, but the in-sync replicas fell below min.insync.replicas before it was committed."""

    maybe_written = True


class InvalidTopic(BrokerError):
    """The name is not valid for a topic."""


class TopicAlreadyExists(BrokerError):
    """A topic of this name exists."""


class InvalidReplicationFactor(BrokerError):
    """More replicas than brokers, or fewer than one."""


class InvalidPartitions(BrokerError):
    """The number of partitions is not valid."""


class InvalidConfig(BrokerError):
    """A setting that does not exist, or a value that is not valid for it."""


class NotController(BrokerError):
    """The broker that was asked is not the controller, or no longer is."""


class StorageError(BrokerError):
    """The broker's log directory failed, or its disk is full."""


class CorruptMessage(BrokerError):
    """The broker received a damaged batch."""


class OffsetNotAvailable(BrokerError):
    """A new leader does not know yet how far the log is committed."""


class OffsetOutOfRange(BrokerError):
    """The position is outside the log."""


class ProducerFenced(BrokerError):
    """A later process has started with this producer's name (or uses its id): this one can write nothing more."""


class UnknownProducerName(BrokerError):
    """No producer has this name, or it was deleted."""


class SequenceError(BrokerError):
    """The broker does not know what this producer wrote before."""


class OutcomeUnknown(BrokerError):
    """An attempt went unanswered, and the leader does not know what this producer wrote: the record is in the log once
    or not at all, and only reading the log can tell. The producer continues with the records behind it."""

    maybe_written = True


CLASS_OF_CODE: dict[ErrorCode, type[BrokerError]] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    ErrorCode.CORRUPT_MESSAGE: CorruptMessage,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopicOrPartition,
    ErrorCode.LEADER_NOT_AVAILABLE: LeaderNotAvailable,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: NotLeaderOrFollower,
    ErrorCode.INVALID_TOPIC_EXCEPTION: InvalidTopic,
    ErrorCode.NOT_ENOUGH_REPLICAS: NotEnoughReplicas,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: NotEnoughReplicasAfterAppend,
    ErrorCode.TOPIC_ALREADY_EXISTS: TopicAlreadyExists,
    ErrorCode.INVALID_PARTITIONS: InvalidPartitions,
    ErrorCode.INVALID_REPLICATION_FACTOR: InvalidReplicationFactor,
    ErrorCode.INVALID_CONFIG: InvalidConfig,
    ErrorCode.NOT_CONTROLLER: NotController,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: SequenceError,
    ErrorCode.UNKNOWN_PRODUCER_ID: SequenceError,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: OutcomeUnknown,
    ErrorCode.INVALID_PRODUCER_EPOCH: ProducerFenced,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: UnknownProducerName,
    ErrorCode.KAFKA_STORAGE_ERROR: StorageError,
    ErrorCode.OFFSET_NOT_AVAILABLE: OffsetNotAvailable,
}


def broker_error(code: int, where: Where = NOWHERE, message: str | None = None) -> BrokerError:
    """The error for a code that a broker sent."""
    return CLASS_OF_CODE.get(error_code(code), BrokerError)(code, where, message)


def fetch_refusal(code: int, where: Where, offset: Offset) -> BrokerError:
    """The error for a leader's refusal of a fetch from `offset` on."""
    if code != ErrorCode.CORRUPT_MESSAGE:
        return broker_error(code, where)
    text = (
        f"the leader's log is damaged at offset {offset}, and no other replica is in sync: start the brokers that hold"
        " a copy; if none does, read on behind the damage, or cut the log there with `minibroker log repair --cut`"
    )
    return broker_error(code, where, text)


def where_of(
    topic_partition: TopicPartition, broker_id: BrokerId | None, leader_epoch: LeaderEpoch | None, isr: Sequence[int]
) -> Where:
    """A Where, with the ISR only if it is known."""
    return Where(
        topic_partition=topic_partition,
        broker_id=broker_id,
        leader_epoch=leader_epoch,
        isr=tuple(isr) if isr else None,
    )
