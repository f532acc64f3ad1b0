"""A consumer's functions that make objects of keys and values. Pure.

Owns: what happens to a record whose content such a function refuses. Leaves to others: where the consumer stops.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec.structs import replace

from minibroker.client.consumer.records import Record
from minibroker.client.errors import InvalidCall, UndeserializableRecord

Deserializer: TypeAlias = Callable[[bytes], Any]


class Deserializers:
    """None stays None: it is no content."""

    __slots__ = ("_key", "_value", "is_set")

    def __init__(self, key: Deserializer | None, value: Deserializer | None) -> None:
        for name, function in (("key_deserializer", key), ("value_deserializer", value)):
            if function is not None and not callable(function):
                raise InvalidCall(f"{name} is {function!r:.80}; it must be a function that takes bytes")
        self._key = key
        self._value = value
        self.is_set = key is not None or value is not None

    def __call__(self, records: list[Record]) -> tuple[list[Record], UndeserializableRecord | None]:
        """The records in front of the first that a function refuses, and the error for that one."""
        read: list[Record] = []
        for record in records:
            try:
                key = record.key if self._key is None or record.key is None else self._key(record.key)
                value = record.value if self._value is None or record.value is None else self._value(record.value)
            except Exception as error:
                problem = UndeserializableRecord(record, error)
                problem.__cause__ = error
                return read, problem
            read.append(replace(record, key=key, value=value))
        return read, None
