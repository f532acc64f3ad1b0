"""Events of a broker's data path, reported to an observer that wants details.

Owns: the events, with the live objects that they concern. Leaves to others: what they mean. All are reported in the
acting process, before anything else happens there.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.state import ReplicaState
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import BatchHeader
from minibroker.protocol.wire.codec import FetchedRecords
from minibroker.protocol.wire.messages import MetadataResponse
from minibroker.runtime.ports import Buffer


class ObservedReplica(Protocol):
    """What an observer may read of a replica (`partition.Partition`)."""

    topic_partition: TopicPartition
    log: PartitionLog
    state: ReplicaState


class OrderAdmitted(Struct, frozen=True):
    """This broker accepts an order of a controller of that epoch, and will execute it."""

    controller_epoch: int


class ReplicaLoaded(Struct, frozen=True):
    """A process has created a replica, over an existing log or a new one."""

    replica: ObservedReplica


class ReplicaStepped(Struct, frozen=True):
    """The core has decided, but the effects are not performed yet."""

    replica: ObservedReplica
    event: ev.ReplicaEvent
    effects: Sequence[ev.ReplicaEffect]
    is_refused: bool
    """The fetch of a follower was refused, and proves nothing."""


class BatchesLogged(Struct, frozen=True):
    """Batches are written, and the log now ends behind them."""

    replica: ObservedReplica
    batches: Sequence[tuple[BatchHeader, Buffer]]


class LogShortened(Struct, frozen=True):
    """The tail of a log was truncated, or the whole log was dropped."""

    replica: ObservedReplica
    has_failed: bool
    """The disk failed: it is unknown how much was truncated."""


class RecordsRead(Struct, frozen=True):
    """Records were read for an answer to a consumer or a follower."""

    replica: ObservedReplica
    fetch_offset: int
    found: "FetchedRecords"


class ConsumerReadGranted(Struct, frozen=True):
    """A consumer may read from this replica."""

    replica: ObservedReplica


class MetadataAnswered(Struct, frozen=True):
    """A client received the leaders."""

    broker_id: int
    response: MetadataResponse
