"""Records that a reader gets are compared with what was written, in every field."""

import msgspec
import pytest

from minibroker.client.consumer.records import Record
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.swarm.loads.written_records import (
    NAME_HEADER,
    WrittenRecord,
    WrittenRecords,
    name_of_record,
)

READ = Record("load", 1, 7, 3, 99, b"key", b"one-...", (("kind", None),))


@pytest.mark.parametrize(
    ("field", "value"),
    [("partition", 0), ("key", None), ("value", b"one-.."), ("headers", ()), ("timestamp_ms", 98)],
)
def test_each_field_that_differs_is_named(field: str, value: object) -> None:
    written = WrittenRecords()
    place = TopicPartition("load", 1)
    written.add(
        "one-",
        WrittenRecord(partition=place, key=b"key", value=b"one-...", headers=(("kind", None),), timestamp_ms=99),
    )
    assert list(written.differences("one-", READ)) == []
    [difference] = written.differences("one-", msgspec.structs.replace(READ, **{field: value}))
    assert difference.startswith(field.removesuffix("_ms"))
    assert list(written.differences("of another client", READ)) == []


def test_record_is_named_by_header_value_or_key() -> None:
    named = ((NAME_HEADER, b"two-"),)
    assert name_of_record(READ) == "one-"
    assert name_of_record(msgspec.structs.replace(READ, headers=named)) == "two-"
    assert name_of_record(msgspec.structs.replace(READ, value=b"...")) == "key"
    assert name_of_record(msgspec.structs.replace(READ, value=None, key=None)) == ""
