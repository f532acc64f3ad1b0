"""minibroker: a small replicated log. The public API.

    from minibroker import Producer, Consumer, AdminClient, TopicPartition

Names are loaded when they are first used, so that `import minibroker` (every start of the command line) stays cheap.
"""

from importlib import import_module
from os import getpid
from typing import TYPE_CHECKING

from minibroker.client import default_runtime as _default_runtime

if TYPE_CHECKING:
    from minibroker.client.admin import AdminClient as AdminClient
    from minibroker.client.consumer.connection_state import ConnectionState as ConnectionState
    from minibroker.client.consumer.consumer import Consumer as Consumer
    from minibroker.client.consumer.records import Record as Record
    from minibroker.client.consumer.records import RecordBatch as RecordBatch
    from minibroker.client.descriptions import NewTopic as NewTopic
    from minibroker.client.errors import BufferTimedOut as BufferTimedOut
    from minibroker.client.errors import DeliveryTimedOut as DeliveryTimedOut
    from minibroker.client.errors import LogTruncated as LogTruncated
    from minibroker.client.errors import MinibrokerError as MinibrokerError
    from minibroker.client.producer.deliveries import Deliveries as Deliveries
    from minibroker.client.producer.deliveries import Delivery as Delivery
    from minibroker.client.producer.deliveries import RecordMetadata as RecordMetadata
    from minibroker.client.producer.producer import Producer as Producer
    from minibroker.protocol.ids import TopicPartition as TopicPartition
    from minibroker.runtime.ports import Runtime

__version__ = "0.1.0"

_HOMES = {
    "AdminClient": "client.admin",
    "BufferTimedOut": "client.errors",
    "ConnectionState": "client.consumer.connection_state",
    "Consumer": "client.consumer.consumer",
    "Deliveries": "client.producer.deliveries",
    "Delivery": "client.producer.deliveries",
    "DeliveryTimedOut": "client.errors",
    "LogTruncated": "client.errors",
    "MinibrokerError": "client.errors",
    "NewTopic": "client.descriptions",
    "Producer": "client.producer.producer",
    "Record": "client.consumer.records",
    "RecordBatch": "client.consumer.records",
    "RecordMetadata": "client.producer.deliveries",
    "TopicPartition": "protocol.ids",
}

__all__ = [
    "AdminClient",
    "BufferTimedOut",
    "ConnectionState",
    "Consumer",
    "Deliveries",
    "Delivery",
    "DeliveryTimedOut",
    "LogTruncated",
    "MinibrokerError",
    "NewTopic",
    "Producer",
    "Record",
    "RecordBatch",
    "RecordMetadata",
    "TopicPartition",
]


def _real_runtime() -> "Runtime":
    """The ports of this machine, for clients that are given no runtime."""
    from minibroker.runtime.adapters.real import real_runtime

    return real_runtime()


_default_runtime.open_default = _real_runtime
_default_runtime.process_id = getpid


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
