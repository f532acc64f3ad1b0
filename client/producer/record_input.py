"""What users may pass to a producer as key, value, headers and time, and its size. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import add
from typing import Any, TypeAlias

from minibroker.client.errors import InvalidCall
from minibroker.client.limits import is_utf8
from minibroker.client.producer.batches import PartitionQueue
from minibroker.client.producer.producer_topic import ProducerTopic
from minibroker.protocol.record_batch import (
    EMPTY_BATCH_BYTES,
    EXTEND_VALUE_BYTES,
    Header,
    record_bytes_max,
)

RecordBytes = bytes | bytearray | memoryview | None
"""A key or a value; None is allowed for both."""
Headers = Sequence[Header] | Mapping[str, bytes | None]
"""Pairs of a name and bytes (or None), or a dict of them."""
Serializer: TypeAlias = Callable[[Any], bytes | None]
RecordRow: TypeAlias = tuple[PartitionQueue | None, bytes | None, bytes | None]
ROWS_PER_COPY = 4_096
"""Rows copied at a time where records are taken one by one: a call that resumes after waiting copies no more than these
again."""


class Serializers:
    """The functions that make bytes of what a program sends. None stays None: it is no content."""

    __slots__ = ("_key", "_value", "is_set")

    def __init__(self, key: Serializer | None, value: Serializer | None) -> None:
        for name, function in (("key_serializer", key), ("value_serializer", value)):
            if function is not None and not callable(function):
                raise InvalidCall(f"{name} is {function!r:.80}; it must be a function that returns bytes")
        self._key = key
        self._value = value
        self.is_set = key is not None or value is not None

    def __call__(self, value: Any, key: Any) -> tuple[Any, Any]:
        if self._value is not None and value is not None:
            value = self._value(value)
        if self._key is not None and key is not None:
            key = self._key(key)
        return value, key

    def values(self, values: Iterable[Any]) -> Iterable[Any]:
        return values if self._value is None else [self(value, None)[0] for value in values]

    def keys(self, keys: Iterable[Any]) -> Iterable[Any]:
        return keys if self._key is None else [self(None, key)[1] for key in keys]


def as_bytes(name: str, value: object) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidCall(f"{name} is {type(value).__name__}; it must be bytes or None (encode text first)")


def checked_headers(headers: Headers) -> tuple[Header, ...]:
    headers = tuple(headers.items() if isinstance(headers, Mapping) else headers)
    for header in headers:
        if len(header) != 2 or not isinstance(header[0], str) or not isinstance(header[1], bytes | None):
            raise InvalidCall(f"header {header!r} is not a pair of str and bytes (or None)")
        if not is_utf8(header[0]):
            raise InvalidCall(f"the name of header {header!r} is not text that can be written as UTF-8")
    return tuple((name, content) for name, content in headers)


def record_size(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
    """Upper bound of a batch that holds only this record."""
    member_bytes = (len(key) if key is not None else 0) + (len(value) if value is not None else 0)
    return EMPTY_BATCH_BYTES + record_bytes_max(member_bytes, headers)


class RecordColumns:
    """The records of one `send_many`, checked before the first of them is taken."""

    __slots__ = ("_keys", "_queues", "_values", "headers", "largest_bytes", "partition", "plain")

    def __init__(
        self,
        values: Iterable[RecordBytes],
        keys: Iterable[RecordBytes] | None,
        partition: int | None,
        headers: Headers,
    ) -> None:
        """Raises InvalidCall."""
        self._values, plain = _column("value", values)
        self._keys = None if keys is None else _column("key", keys)[0]
        self.partition = partition
        self.headers = checked_headers(headers)
        self.plain: list[bytes] | None = None
        """The values, if records have nothing else and many may be taken at once."""
        if self._keys is None and plain is not None:
            longest = max(map(len, plain), default=0)
            if longest < EXTEND_VALUE_BYTES and not self.headers:
                self.plain = plain
        else:
            if self._keys is not None and len(self._keys) != len(self._values):
                raise InvalidCall(f"{len(self._values)} values, but {len(self._keys)} keys")
            keys_ = self._keys if self._keys is not None else repeat(None)
            longest = max(map(add, map(_length, keys_), map(_length, self._values)), default=0)
        self.largest_bytes = EMPTY_BATCH_BYTES + record_bytes_max(longest, self.headers)
        """Upper bound of a batch that holds only the largest record."""
        self._queues: list[PartitionQueue | None] | None = None

    def __len__(self) -> int:
        return len(self._values)

    def choose_partitions(self, topic: ProducerTopic) -> None:
        """Choose the queue of each record with a key. All at once, so that a partitioner that raises does so before any
        record is taken."""
        if self._queues is None and self._keys is not None and self.partition is None:
            known, choose = topic.queue_of_key.get, topic.choose_queue
            self._queues = [None if key is None else known(key) or choose(key) for key in self._keys]

    def rows(self, topic: ProducerTopic, start: int) -> Iterator[RecordRow]:
        """Some of the records from `start` on: queue (None: the one for keyless records), key, value."""
        end = start + ROWS_PER_COPY
        fixed = None if self.partition is None else topic.queues[self.partition]
        queues = repeat(fixed) if self._queues is None else self._queues[start:end]
        keys = repeat(None) if self._keys is None else self._keys[start:end]
        return zip(queues, keys, self._values[start:end], strict=False)


def _column(name: str, members: Iterable[RecordBytes]) -> tuple[list[bytes | None], list[bytes] | None]:
    """A copy, which the caller cannot change meanwhile; the same list again if all members are bytes, else None."""
    if isinstance(members, bytes | bytearray | memoryview | str):
        raise InvalidCall(f"{name}s is one {name}: give a list, or `send` one record")
    given: list[Any] = list(members)
    if set(map(type, given)) <= {bytes}:
        return given, given
    return [None if member is None else as_bytes(name, member) for member in given], None


def _length(member: bytes | None) -> int:
    return 0 if member is None else len(member)
