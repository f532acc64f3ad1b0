"""Checkpoint texts, file names and index entries: exact bytes, round trips, and refusal of malformed input."""

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.protocol.checksum import crc32c
from minibroker.protocol.files import checkpoints
from minibroker.protocol.files.checkpoints import (
    CorruptCheckpoint,
    IndexEntry,
    LogStart,
    LogStartReason,
    OtherVersion,
    TimeIndexEntry,
)
from minibroker.protocol.files.meta_properties import MetaProperties, format_meta_properties, parse_meta_properties
from minibroker.protocol.files.partition_metadata import (
    PartitionMetadata,
    belongs_elsewhere,
    format_partition_metadata,
    parse_partition_metadata,
)
from minibroker.protocol.files.segment_digests import parse_segment_digests
from minibroker.protocol.ids import TopicPartition

TOPICS = st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True).filter(lambda name: name not in (".", ".."))
PARTITIONS = st.builds(TopicPartition, TOPICS, st.integers(0, 10_000))
OFFSETS = st.integers(0, 2**63 - 1)
METADATA = PartitionMetadata(topic_id="bGluZXM_-0", partition=12)
META = MetaProperties(broker_id=2, cluster_id="c1", directory_id="d1", boot_id="b1")
META_LINES = b"version=0\nbroker.id=2\ncluster.id=c1\ndirectory.id=d1\nboot.id=b1\n"


def with_checksum(text: bytes) -> bytes:
    return text + b"crc32c: %08x\n" % crc32c(text)


def test_offset_checkpoint_is_kafkas_text_and_a_checksum() -> None:
    offsets = {TopicPartition("lines", 1): 7, TopicPartition("a-b", 0): 2**40}
    text = with_checksum(b"1\n2\na-b 0 1099511627776\nlines 1 7\n")
    assert checkpoints.format_offset_checkpoint(offsets) == text
    assert checkpoints.parse_offset_checkpoint(text) == offsets


def test_epoch_checkpoint_is_kafkas_text_and_a_checksum() -> None:
    text = with_checksum(b"1\n2\n0 0\n3 120\n")
    assert checkpoints.format_epoch_checkpoint([(0, 0), (3, 120)]) == text
    assert checkpoints.parse_epoch_checkpoint(text) == [(0, 0), (3, 120)]


def test_epoch_checkpoint_names_the_owner_of_the_log() -> None:
    text = with_checksum(b"1\n1 topic-id 4\n3 120\n")
    assert checkpoints.format_epoch_checkpoint([(3, 120)], ("topic-id", 4)) == text
    assert checkpoints.parse_epochs_and_owner(text) == ([(3, 120)], ("topic-id", 4))
    assert checkpoints.parse_epoch_checkpoint(text) == [(3, 120)]


@pytest.mark.parametrize("owner", ["topic-id", "topic-id 4 5", "topic/id 4", "topic-id four"])
def test_an_owner_that_is_no_topic_id_and_partition_is_refused(owner: str) -> None:
    with pytest.raises(CorruptCheckpoint):
        checkpoints.parse_epochs_and_owner(with_checksum(f"1\n1 {owner}\n3 120\n".encode()))


def test_empty_checkpoints_have_no_entries() -> None:
    assert checkpoints.parse_offset_checkpoint(checkpoints.format_offset_checkpoint({})) == {}
    assert checkpoints.parse_epoch_checkpoint(checkpoints.format_epoch_checkpoint([])) == []


@given(st.dictionaries(PARTITIONS, OFFSETS, max_size=20))
def test_offset_checkpoint_survives_a_round_trip(offsets: dict[TopicPartition, int]) -> None:
    assert checkpoints.parse_offset_checkpoint(checkpoints.format_offset_checkpoint(offsets)) == offsets


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1\n",
        b"1\n0",
        b"2\n0\n",
        b"1\n1\n",
        b"1\n2\na 0 1\n",
        b"1\n1\na 0 1",
        b"1\n1\na 0 1\n\n",
        b"1\n1\na 0 -1\n",
        b"1\n1\na 0 1 2 3\n",
        b"1\n1\na 0 1 \n",
        b"1\n1\na 00 1\n",
        b"1\n1\na  0 1\n",
        b"1\n1\na/b 0 1\n",
        b"1\n1\na 0 9223372036854775808\n",
        b"1\n2\na 0 1\na 0 2\n",
        b"1\n99999999999999999999\n",
        b"1\n-1\n",
        b"\xff\n0\n",
        "1\n1\na 0 ٣\n".encode(),
    ],
)
def test_malformed_offset_checkpoint_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        checkpoints.parse_offset_checkpoint(with_checksum(content))
    with pytest.raises(CorruptCheckpoint):
        checkpoints.parse_offset_checkpoint(content)


@pytest.mark.parametrize(
    "content",
    [
        b"1\n1\n1\n",
        b"1\n1\n1 2 3\n",
        b"1\n1\n-1 0\n",
        b"1\n1\nx 0\n",
        b"1\n1\n2147483648 0\n",
        b"1\n1 t\n1 2\n",
        b"1\n1 t x\n1 2\n",
    ],
)
def test_malformed_epoch_checkpoint_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        checkpoints.parse_epoch_checkpoint(with_checksum(content))


@given(st.dictionaries(PARTITIONS, OFFSETS, min_size=1, max_size=3), st.data())
def test_a_checkpoint_with_a_flipped_bit_is_refused(offsets: dict[TopicPartition, int], data: st.DataObject) -> None:
    content = bytearray(checkpoints.format_offset_checkpoint(offsets))
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptCheckpoint):
        checkpoints.parse_offset_checkpoint(bytes(content))


START = LogStart(topic_id="t", partition=3, offset=7, reason=LogStartReason.RETENTION)
LATER = LogStart(topic_id="t", partition=3, offset=9, reason=LogStartReason.TRIM)


def test_a_log_start_is_the_newest_sound_slot() -> None:
    old, new = checkpoints.format_log_start(START, 3), checkpoints.format_log_start(LATER, 4)
    lines = b"version: 1\nchange: 3\ntopic_id: t\npartition: 3\nlog_start_offset: 7\nreason: retention\ncrc32c: "
    assert old.startswith(lines)
    assert len(old) == len(new) == checkpoints.LOG_START_SLOT_BYTES
    assert checkpoints.parse_log_start(old + new) == checkpoints.parse_log_start(new + old) == (LATER, 4)
    assert (
        checkpoints.parse_log_starts(old + new) == checkpoints.parse_log_starts(new + old) == [(LATER, 4), (START, 3)]
    )
    assert checkpoints.parse_log_starts(old + bytes(4_096)) == [(START, 3)]
    assert checkpoints.parse_log_start(old + bytes(4_096)) == checkpoints.parse_log_start(old) == (START, 3)
    with pytest.raises(CorruptCheckpoint):
        checkpoints.parse_log_start(bytes(8_192))


@pytest.mark.parametrize("position", range(checkpoints.format_log_start(START).index(b"crc32c") + 16))
def test_a_log_start_with_a_flipped_bit_is_ignored(position: int) -> None:
    old, new = checkpoints.format_log_start(START, 3), bytearray(checkpoints.format_log_start(LATER, 4))
    for bit in range(8):
        new[position] ^= 1 << bit
        assert checkpoints.parse_log_start(old + bytes(new)) == (START, 3)
        new[position] ^= 1 << bit


@pytest.mark.parametrize(
    "parse",
    [
        checkpoints.parse_offset_checkpoint,
        checkpoints.parse_epoch_checkpoint,
        checkpoints.parse_log_start,
        parse_meta_properties,
        parse_partition_metadata,
        checkpoints.parse_clean_shutdown,
        checkpoints.decode_index,
        checkpoints.decode_time_index,
    ],
)
@given(
    st.binary(max_size=60)
    | st.lists(st.sampled_from([b"0", b"1", b"2", b"-1", b" ", b"\n", b"a", b"=", b"{", b"}", b"version"])).map(
        b"".join
    )
)
def test_random_bytes_raise_only_corrupt_checkpoint(parse: Callable[[bytes], object], content: bytes) -> None:
    try:
        parse(content)
    except CorruptCheckpoint:
        pass


def test_meta_properties_survive_a_round_trip() -> None:
    text = format_meta_properties(META)
    assert text == META_LINES + b"crc32c=%08x\n" % crc32c(META_LINES)
    assert parse_meta_properties(text) == META


def test_meta_properties_without_a_checksum_are_read() -> None:
    """An operator wrote the file by hand, as the cure for a damaged one says."""
    assert parse_meta_properties(b"#Mon Jan 01\n\n" + META_LINES) == META


def test_no_flipped_bit_of_meta_properties_names_another_directory() -> None:
    whole = format_meta_properties(META)
    for position in range(len(whole)):
        for bit in range(8):
            rotten = bytearray(whole)
            rotten[position] ^= 1 << bit
            with contextlib.suppress(CorruptCheckpoint):
                assert parse_meta_properties(bytes(rotten)) == META, rotten


def test_a_corrupt_checksum_line_does_not_hide_another_corrupt_line() -> None:
    """Seed 17011169: it was read as a file without a checksum, and the broker registered under that id."""
    rotten = format_meta_properties(META).replace(b"crc32c", b"crc3<c").replace(b"directory.id=", b"directory.id=x")
    with pytest.raises(CorruptCheckpoint, match="an unknown line"):
        parse_meta_properties(rotten)


def test_a_directory_id_that_no_message_can_carry_is_refused() -> None:
    with pytest.raises(CorruptCheckpoint, match="no directory id"):
        parse_meta_properties(META_LINES.replace(b"directory.id=", b"directory.id=a b"))


@pytest.mark.parametrize(
    "content", [b"", b"version=0\n", b"version=1\nbroker.id=1\ncluster.id=c\ndirectory.id=d\n", b"novalue\n"]
)
def test_malformed_meta_properties_are_refused(content: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        parse_meta_properties(content)


def test_partition_metadata_survives_a_round_trip() -> None:
    text = format_partition_metadata(METADATA)
    assert text == with_checksum(b"version: 1\ntopic_id: bGluZXM_-0\npartition: 12\n")
    assert parse_partition_metadata(text) == METADATA


@pytest.mark.parametrize("position", range(len(format_partition_metadata(METADATA))))
def test_partition_metadata_with_a_flipped_bit_is_refused(position: int) -> None:
    content = bytearray(format_partition_metadata(METADATA))
    for bit in range(8):
        content[position] ^= 1 << bit
        with pytest.raises(CorruptCheckpoint) as caught:
            parse_partition_metadata(bytes(content))
        assert not isinstance(caught.value, OtherVersion)
        content[position] ^= 1 << bit


@pytest.mark.parametrize(
    ("content", "version"),
    [(b"version: 0\ntopic_id: t\n", 0), (with_checksum(b"version: 2\ntopic_id: t\npartition: 1\nroot: a\n"), 2)],
)
def test_partition_metadata_of_another_version_does_not_count_as_damage(content: bytes, version: int) -> None:
    with pytest.raises(OtherVersion, match=f"partition.metadata has version {version}, not 1: .* start that version"):
        parse_partition_metadata(content)


def test_a_log_start_of_another_version_does_not_count_as_damage() -> None:
    old = with_checksum(b"version: 0\nchange: 3\ntopic_id: t\nlog_start_offset: 7\nreason: retention\n")
    with pytest.raises(OtherVersion, match="log-start has version 0, not 1"):
        checkpoints.parse_log_start(old.ljust(4_096, b"\n") + b"\n" * 4_096)
    assert checkpoints.parse_log_start(old.ljust(4_096, b"\n") + checkpoints.format_log_start(LATER, 2)) == (LATER, 2)


@pytest.mark.parametrize("text", [b"version: %d\nchange: x\n", b"change: 3\n", b"version: 0", b""])
@pytest.mark.parametrize(
    ("parse", "version"), [(parse_partition_metadata, 1), (checkpoints.parse_log_start, 1), (parse_segment_digests, 2)]
)
def test_a_file_that_names_no_other_version_is_damaged(
    parse: Callable[[bytes], object], version: int, text: bytes
) -> None:
    """Its checksum is right: this release writes no such text, and another release would have named its version."""
    with pytest.raises(CorruptCheckpoint) as caught:
        parse(with_checksum(text.replace(b"%d", b"%d" % version)))
    assert not isinstance(caught.value, OtherVersion)


def test_either_file_reveals_a_directory_of_another_partition() -> None:
    own = PartitionMetadata(topic_id="t", partition=3)
    assert belongs_elsewhere(3, own, START) is None
    assert belongs_elsewhere(3, None, None) is None
    assert (
        belongs_elsewhere(4, None, START)
        == "log-start is of partition 3 of topic id t, in the directory of partition 4"
    )
    assert str(belongs_elsewhere(3, METADATA, START)).startswith("partition.metadata is of partition 12 of topic id")


@pytest.mark.parametrize("epoch", [None, 0, 4294967300])
def test_clean_shutdown_marker_survives_a_round_trip(epoch: int | None) -> None:
    assert checkpoints.parse_clean_shutdown(checkpoints.format_clean_shutdown(epoch)) == epoch


@pytest.mark.parametrize("version", [-1, 1])
def test_a_clean_shutdown_marker_of_another_version_is_refused(version: int) -> None:
    with pytest.raises(CorruptCheckpoint, match=f"has version {version}, not 0"):
        checkpoints.parse_clean_shutdown(b'{"version":%d,"brokerEpoch":17}' % version)


def test_clean_shutdown_marker_is_kafkas_json() -> None:
    assert checkpoints.format_clean_shutdown(17) == b'{"version":0,"brokerEpoch":17}'


# names


def test_segment_names_sort_as_their_offsets() -> None:
    assert checkpoints.segment_file_name(42) == "00000000000000000042.log"
    assert checkpoints.parse_segment_file_name("00000000000000000042.timeindex") == (42, ".timeindex")


@pytest.mark.parametrize(
    "name", ["42.log", "00000000000000000042.log.deleted", "0000000000000000004x.log", "9" * 20 + ".log"]
)
def test_other_files_are_no_segments(name: str) -> None:
    assert checkpoints.parse_segment_file_name(name) is None


@given(PARTITIONS)
def test_partition_directory_names_survive_a_round_trip(partition: TopicPartition) -> None:
    name = checkpoints.partition_directory_name(partition)
    assert checkpoints.parse_partition_directory_name(name) == partition


@given(PARTITIONS, st.from_regex(r"[0-9a-f]{8}", fullmatch=True))
def test_deleted_directories_are_recognized_and_are_no_partitions(partition: TopicPartition, unique: str) -> None:
    name = checkpoints.deleted_directory_name(partition, unique)
    assert checkpoints.is_deleted_directory_name(name)
    assert checkpoints.parse_partition_directory_name(name) is None


def test_a_number_that_no_message_can_carry_is_no_partition() -> None:
    assert checkpoints.parse_partition_directory_name("lines-2147483647") == TopicPartition("lines", 2**31 - 1)
    for name in ("lines-2147483648", "lines-4294967296", "lines-9999999999"):
        assert checkpoints.parse_partition_directory_name(name) is None
        assert not checkpoints.is_deleted_directory_name(f"{name}.0-delete")
        assert checkpoints.parse_damaged_directory_name(f"{name}.0-damaged") is None
        assert checkpoints.has_too_large_a_number(name)
    assert not checkpoints.has_too_large_a_number("lines-0")
    assert not checkpoints.has_too_large_a_number("lost+found")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_line_with_a_too_large_partition_number_is_skipped_and_no_other(place: int) -> None:
    lines = [b"lines 0 7\n", b"lines 1 8\n"]
    lines.insert(place, b"lines 4294967296 9\n")
    content = with_checksum(b"1\n3\n" + b"".join(lines))
    offsets = {TopicPartition("lines", 0): 7, TopicPartition("lines", 1): 8}
    assert checkpoints.parse_offset_checkpoint(content) == offsets


def test_a_bad_line_behind_a_skipped_one_is_refused() -> None:
    with pytest.raises(CorruptCheckpoint, match="not 'topic partition offset"):
        checkpoints.parse_offset_checkpoint(with_checksum(b"1\n2\nlines 4294967296 9\nlines 0\n"))


@pytest.mark.parametrize("name", ["lost+found", "lines", "lines-", "-0", "lines-01", "..-0", "a b-0", "lines--1x"])
def test_other_directories_are_no_partitions(name: str) -> None:
    assert checkpoints.parse_partition_directory_name(name) is None


# index entries


def test_index_entries_are_big_endian_pairs() -> None:
    content = checkpoints.encode_index_entry(1, 2) + checkpoints.encode_index_entry(2**32 - 1, 7)
    assert content[:8] == bytes([0, 0, 0, 1, 0, 0, 0, 2])
    assert checkpoints.decode_index(content) == [IndexEntry(1, 2), IndexEntry(2**32 - 1, 7)]


def test_time_index_entries_are_timestamp_and_offset() -> None:
    content = checkpoints.encode_time_index_entry(-5, 3)
    assert content == bytes([255] * 7 + [251, 0, 0, 0, 3])
    assert checkpoints.decode_time_index(content) == [TimeIndexEntry(-5, 3)]


def test_half_an_index_entry_is_refused() -> None:
    with pytest.raises(CorruptCheckpoint, match="not a whole number"):
        checkpoints.decode_index(b"\x00" * 9)
    with pytest.raises(CorruptCheckpoint, match="not a whole number"):
        checkpoints.decode_time_index(b"\x00" * 8)
