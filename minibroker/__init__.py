"""minibroker: a small replicated log. The public API.

    from minibroker import Producer, Consumer, AdminClient, TopicPartition

Names are loaded when they are first used, so that `import minibroker` (every start of the command line) stays cheap.
"""

from importlib import import_module
from os import getpid, register_at_fork
from sys import _getframe
from typing import TYPE_CHECKING

from minibroker.client import default_runtime as _default_runtime

if TYPE_CHECKING:
    from minibroker.client.admin import AdminClient as AdminClient
    from minibroker.client.consumer.connection_state import ConnectionState as ConnectionState
    from minibroker.client.consumer.consumer import Consumer as Consumer
    from minibroker.client.consumer.fetch_answer import FetchAnswer as FetchAnswer
    from minibroker.client.consumer.records import Record as Record
    from minibroker.client.consumer.records import RecordBatch as RecordBatch
    from minibroker.client.descriptions import NewTopic as NewTopic
    from minibroker.client.errors import BrokerError as BrokerError
    from minibroker.client.errors import BrokerUnreachable as BrokerUnreachable
    from minibroker.client.errors import BufferTimedOut as BufferTimedOut
    from minibroker.client.errors import CallTimedOut as CallTimedOut
    from minibroker.client.errors import ClientClosed as ClientClosed
    from minibroker.client.errors import ClusterUnreachable as ClusterUnreachable
    from minibroker.client.errors import CorruptMessage as CorruptMessage
    from minibroker.client.errors import CorruptRecords as CorruptRecords
    from minibroker.client.errors import DeliveryAborted as DeliveryAborted
    from minibroker.client.errors import DeliveryTimedOut as DeliveryTimedOut
    from minibroker.client.errors import FlushTimedOut as FlushTimedOut
    from minibroker.client.errors import ForeignCaller as ForeignCaller
    from minibroker.client.errors import InvalidCall as InvalidCall
    from minibroker.client.errors import InvalidConfig as InvalidConfig
    from minibroker.client.errors import InvalidPartitions as InvalidPartitions
    from minibroker.client.errors import InvalidReplicationFactor as InvalidReplicationFactor
    from minibroker.client.errors import InvalidTopic as InvalidTopic
    from minibroker.client.errors import LeaderNotAvailable as LeaderNotAvailable
    from minibroker.client.errors import LogTruncated as LogTruncated
    from minibroker.client.errors import MinibrokerError as MinibrokerError
    from minibroker.client.errors import MisplacedRecords as MisplacedRecords
    from minibroker.client.errors import NotController as NotController
    from minibroker.client.errors import NotEnoughReplicas as NotEnoughReplicas
    from minibroker.client.errors import NotEnoughReplicasAfterAppend as NotEnoughReplicasAfterAppend
    from minibroker.client.errors import NotLeaderOrFollower as NotLeaderOrFollower
    from minibroker.client.errors import NotMinibroker as NotMinibroker
    from minibroker.client.errors import OffsetNotAvailable as OffsetNotAvailable
    from minibroker.client.errors import OffsetOutOfRange as OffsetOutOfRange
    from minibroker.client.errors import OutcomeUnknown as OutcomeUnknown
    from minibroker.client.errors import ProducerFenced as ProducerFenced
    from minibroker.client.errors import RecordTooLarge as RecordTooLarge
    from minibroker.client.errors import SequenceError as SequenceError
    from minibroker.client.errors import StorageError as StorageError
    from minibroker.client.errors import TopicAlreadyExists as TopicAlreadyExists
    from minibroker.client.errors import TopicMadeAgain as TopicMadeAgain
    from minibroker.client.errors import UndecodableRecords as UndecodableRecords
    from minibroker.client.errors import UndeliveredRecords as UndeliveredRecords
    from minibroker.client.errors import UndeserializableRecord as UndeserializableRecord
    from minibroker.client.errors import UnknownProducerName as UnknownProducerName
    from minibroker.client.errors import UnknownTopicOrPartition as UnknownTopicOrPartition
    from minibroker.client.errors import WrongArguments as WrongArguments
    from minibroker.client.producer.deliveries import Deliveries as Deliveries
    from minibroker.client.producer.deliveries import Delivery as Delivery
    from minibroker.client.producer.deliveries import RecordMetadata as RecordMetadata
    from minibroker.client.producer.producer import Producer as Producer
    from minibroker.protocol.ids import TopicPartition as TopicPartition
    from minibroker.runtime.ports import Runtime

__version__ = "0.1.0"

_HOMES = {
    "AdminClient": "client.admin",
    "ConnectionState": "client.consumer.connection_state",
    "Consumer": "client.consumer.consumer",
    "Deliveries": "client.producer.deliveries",
    "Delivery": "client.producer.deliveries",
    "FetchAnswer": "client.consumer.fetch_answer",
    "NewTopic": "client.descriptions",
    "Producer": "client.producer.producer",
    "Record": "client.consumer.records",
    "RecordBatch": "client.consumer.records",
    "RecordMetadata": "client.producer.deliveries",
    "TopicPartition": "protocol.ids",
}
"""Where the names of `__all__` are defined; all others are errors."""

__all__ = [
    "AdminClient",
    "BrokerError",
    "BrokerUnreachable",
    "BufferTimedOut",
    "CallTimedOut",
    "ClientClosed",
    "ClusterUnreachable",
    "ConnectionState",
    "Consumer",
    "CorruptMessage",
    "CorruptRecords",
    "Deliveries",
    "Delivery",
    "DeliveryAborted",
    "DeliveryTimedOut",
    "FetchAnswer",
    "FlushTimedOut",
    "ForeignCaller",
    "InvalidCall",
    "InvalidConfig",
    "InvalidPartitions",
    "InvalidReplicationFactor",
    "InvalidTopic",
    "LeaderNotAvailable",
    "LogTruncated",
    "MinibrokerError",
    "MisplacedRecords",
    "NewTopic",
    "NotController",
    "NotEnoughReplicas",
    "NotEnoughReplicasAfterAppend",
    "NotLeaderOrFollower",
    "NotMinibroker",
    "OffsetNotAvailable",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "Producer",
    "ProducerFenced",
    "Record",
    "RecordBatch",
    "RecordMetadata",
    "RecordTooLarge",
    "SequenceError",
    "StorageError",
    "TopicAlreadyExists",
    "TopicMadeAgain",
    "TopicPartition",
    "UndecodableRecords",
    "UndeliveredRecords",
    "UndeserializableRecord",
    "UnknownProducerName",
    "UnknownTopicOrPartition",
    "WrongArguments",
]


def _real_runtime() -> "Runtime":
    """The ports of this machine, for clients that are given no runtime."""
    from minibroker.runtime.adapters.real import real_runtime

    return real_runtime()


def _note_process_id() -> None:
    _default_runtime.process_id = getpid()


_default_runtime.open_default = _real_runtime
_note_process_id()
register_at_fork(after_in_child=_note_process_id)


def __getattr__(name: str) -> object:
    if name not in __all__:
        advice = ""
        if name[:1].isupper():  # not the name of a submodule
            advice = import_module(f"{__name__}.client.argument_hints").advice_on_class(name, __all__)
        if advice and _getframe(1).f_code.co_name == "_handle_fromlist":  # `from minibroker import ..` hides the other
            raise ImportError(f"{__name__} has no {name!r}: {advice}", name=__name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{advice and f': {advice}'}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'client.errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
