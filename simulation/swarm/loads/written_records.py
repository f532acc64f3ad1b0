"""What loads have written, in every field, to compare with what readers get.

Owns: a record's identity where its value is too short to name it, and the comparison. Pure.
"""

from collections.abc import Iterator

import msgspec

from minibroker.client.consumer.records import Record
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import Header

NAME_HEADER = "name"
"""Holds the name of a record whose value and key are too short for it."""


class WrittenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record as its producer gave it."""

    partition: TopicPartition
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp_ms: int


class WrittenRecords:
    """Of one run, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, WrittenRecord] = {}

    def add(self, name: str, record: WrittenRecord) -> None:
        self._by_name[name] = record

    def differences(self, name: str, found: Record) -> Iterator[str]:
        """What a reader got otherwise than it was written; nothing for a record of another client."""
        sent = self._by_name.get(name)
        if sent is None:
            return
        place = TopicPartition(found.topic, found.partition)
        pairs = (
            ("partition", sent.partition, place),
            ("key", sent.key, found.key),
            ("value", sent.value, found.value),
            ("headers", sent.headers, found.headers),
            ("timestamp", sent.timestamp_ms, found.timestamp_ms),
        )
        for field, written, read in pairs:
            if written != read:
                yield f"{field} {written!r:.60} was written, {read!r:.60} was read"


def name_of_record(record: Record) -> str:
    """Its header `name`; else the beginning of its value, the rest of which is padding; else its key."""
    for name, content in record.headers:
        if name == NAME_HEADER and content is not None:
            return content.decode()
    return ((record.value or b"").rstrip(b".") or record.key or b"").decode()
