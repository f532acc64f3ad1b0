"""What a broker reports of its data path to an observer that wants details.

Owns: the events, with the live objects that they concern. Leaves to others: what they mean. All are reported in the
process that acts, before anything else happens there.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from minibroker.broker.replication import events as ev
from minibroker.protocol.codec import FetchedRecords
from minibroker.protocol.messages import MetadataResponse
from minibroker.protocol.record_batch import BatchHeader
from minibroker.runtime.ports import Buffer

if TYPE_CHECKING:
    from minibroker.broker.partition import Partition


class OrderAdmitted(Struct, frozen=True):
    """This broker takes an order of a controller of that epoch, and will obey it."""

    controller_epoch: int


class ReplicaLoaded(Struct, frozen=True):
    """A process has made it over the log that it found, or created one."""

    replica: "Partition"


class ReplicaStepped(Struct, frozen=True):
    """The core has decided. Its effects are not performed yet."""

    replica: "Partition"
    event: ev.ReplicaEvent
    effects: Sequence[ev.ReplicaEffect]
    is_refused: bool
    """A fetch of a follower that was refused: it proves nothing."""


class BatchesLogged(Struct, frozen=True):
    """Batches are written, and the log ends behind them."""

    replica: "Partition"
    batches: Sequence[tuple[BatchHeader, Buffer]]


class LogCut(Struct, frozen=True):
    """The tail of a log is cut, or all of it was dropped."""

    replica: "Partition"
    has_failed: bool
    """The disk refused: how much is cut is not known."""


class RecordsRead(Struct, frozen=True):
    """Records were read for an answer to a consumer or a follower."""

    replica: "Partition"
    fetch_offset: int
    found: "FetchedRecords"


class ConsumerReadGranted(Struct, frozen=True):
    """A consumer may read from this replica."""

    replica: "Partition"


class MetadataAnswered(Struct, frozen=True):
    """A client was told the leaders."""

    broker_id: int
    response: MetadataResponse
