"""Names and text formats of the files in a log directory (Kafka's; docs/FORMATS.md). Pure: bytes in, values out.

Owns: the names of files and partition directories, the checkpoint texts, the clean-shutdown marker, and the entries of
the two indexes. Leaves to others: durable writes (the log), and the owner of a directory (`meta_properties`,
`partition_metadata`).

A checkpoint has four parts: line 1 the version `1`, line 2 the number of entries, then one entry a line, and last the
CRC-32C of all that, because a corrupted digit must never be trusted. A file that does not read exactly so is a
CorruptCheckpoint: a broker rebuilds such a file, it never guesses.
"""

import re
import struct
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeAlias

import msgspec

from minibroker.protocol.checksum import crc32c
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.ids import MAX_OFFSET, MAX_PARTITION, TopicPartition, is_topic_name
from minibroker.protocol.json_text import decode_json

CHECKPOINT_VERSION = 1
ENTRIES_MAX = 1_000_000
"""More entries than a log directory or an epoch history ever holds; a larger count is refused before parsing."""

# Maximum sizes of these files. A larger one is a mistake, which must not fill the memory of a reader.
SMALL_FILE_BYTES_MAX = 64 * 1024
"""`meta.properties`, the clean marker, `noted-changes`, `partition.metadata`, `log-start`, the note of damage:
some lines, at most eight KiB."""
OFFSETS_FILE_BYTES_MAX = 64 * ENTRIES_MAX
"""An offset checkpoint and `whole-since` have a line for each log: some sixty bytes with a usual name. With the longest
names 180,000 logs fit."""
EPOCHS_FILE_BYTES_MAX = 40 * ENTRIES_MAX
"""`leader-epoch-checkpoint` has one line for each epoch: two numbers of at most 19 digits."""
INDEX_FILE_BYTES_MAX = 32 * 1024 * 1024
"""A segment is closed when its `.index` reaches 10 MiB; its `.timeindex` is half as large again."""

META_PROPERTIES = "meta.properties"
LOCK = ".lock"
CLEAN_SHUTDOWN = ".clean_shutdown"
WHOLE_SINCE = "whole-since"
NOTED_CHANGES = "noted-changes"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
TOP_FILES = (
    META_PROPERTIES,
    CLEAN_SHUTDOWN,
    WHOLE_SINCE,
    NOTED_CHANGES,
    RECOVERY_POINT_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
)
"""What a broker reads at the top of a log directory, in this order."""
LOG_START = "log-start"
EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
DAMAGE_NOTE = "damage"

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
TEMPORARY_SUFFIX = ".tmp"
DELETE_DIRECTORY_SUFFIX = "-delete"
DAMAGED_DIRECTORY_SUFFIX = "-damaged"

CHECKSUM_LINE_BYTES = len("crc32c: 01234567\n")
_CHECKSUM_LINE = re.compile(rb"crc32c: [0-9a-f]{8}\n")
_VERSION_LINE = re.compile(r"version: ([0-9]{1,9})\n")
LOG_START_VERSION = 1
LOG_START_SLOTS = 2
LOG_START_SLOT_BYTES = 4_096
"""A page, so that a torn write of one slot does not touch the other."""
_LOG_START = re.compile(
    rf"version: {LOG_START_VERSION}\nchange: ([0-9]{{1,18}})\n"
    r"topic_id: ([A-Za-z0-9_-]{1,64})\npartition: (0|[1-9][0-9]{0,9})\nlog_start_offset: ([0-9]{1,19})\n"
    r"reason: (created|reset|retention|trim|copied-from-leader)\n"
)

EPOCH_MAX = 2**31 - 1
"""A larger one fits neither in a batch nor in a message."""
EpochEntry: TypeAlias = tuple[int, int]
"""A leader epoch and the offset at which it began."""
LogOwner: TypeAlias = tuple[str, int]
"""Topic id and partition."""


class CorruptCheckpoint(ProtocolError):
    """A file of a log directory that does not match its format."""


class OtherVersion(CorruptCheckpoint):
    """A sound file in the format of another version."""

    def __init__(self, name: str, found: str, expected: int) -> None:
        super().__init__(
            f"{name} has version {found}, not {expected}: another version of minibroker wrote it; start that version"
            " here, or give the broker an empty log.dirs"
        )


# names

MAX_SEGMENT_OFFSET = MAX_OFFSET - 2**32
"""A file with a larger name has no room for its records: this program never writes it."""
_DIGITS_FILE_NAME = re.compile(r"([0-9]{20})(\.log|\.index|\.timeindex|\.snapshot)")
_PARTITION_DIRECTORY = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})")
_DAMAGED_DIRECTORY = re.compile(r"(.+)\.([0-9a-zA-Z_]{1,64})" + DAMAGED_DIRECTORY_SUFFIX)
_DELETED_DIRECTORY = re.compile(r"(.+)\.([0-9a-zA-Z_]{1,64})" + DELETE_DIRECTORY_SUFFIX)


def segment_file_name(base_offset: int, suffix: str = LOG_SUFFIX) -> str:
    """`00000000000000000042.log`: twenty digits, so that names sort like offsets."""
    return f"{base_offset:020d}{suffix}"


def parse_segment_file_name(name: str) -> tuple[int, str] | None:
    """Offset and suffix of a segment, an index or a producer snapshot; None for any other file."""
    match = _DIGITS_FILE_NAME.fullmatch(name)
    if match is None or int(match[1]) > MAX_SEGMENT_OFFSET:
        return None
    return int(match[1]), match[2]


def partition_directory_name(partition: TopicPartition) -> str:
    """The directory's name, which cannot escape its parent. Input is checked where it arrives; an illegal name here is
    a bug of this program."""
    assert is_topic_name(partition.topic) and 0 <= partition.partition <= MAX_PARTITION, f"{partition!r:.300}"
    return str(partition)


def parse_partition_directory_name(name: str) -> TopicPartition | None:
    """The partition of a directory such as `my-topic-0`; None for any other directory, also for one being deleted."""
    match = _PARTITION_DIRECTORY.fullmatch(name)
    if match is None or not is_topic_name(match[1]) or int(match[2]) > MAX_PARTITION:
        return None
    return TopicPartition(match[1], int(match[2]))


def has_too_large_a_number(name: str) -> bool:
    """Whether it looks like a partition's name, but with a number that no message can carry."""
    match = _PARTITION_DIRECTORY.fullmatch(name)
    return match is not None and int(match[2]) > MAX_PARTITION


def deleted_directory_name(partition: TopicPartition, unique: str) -> str:
    """New name of a partition's directory before its files are removed; `unique` distinguishes re-creations."""
    return f"{partition}.{unique}{DELETE_DIRECTORY_SUFFIX}"


def is_deleted_directory_name(name: str) -> bool:
    match = _DELETED_DIRECTORY.fullmatch(name)
    return match is not None and parse_partition_directory_name(match[1]) is not None


def damaged_directory_name(partition: TopicPartition, unique: str) -> str:
    """New name of a damaged replica's directory, which is kept until the replica is in sync again."""
    return f"{partition}.{unique}{DAMAGED_DIRECTORY_SUFFIX}"


def parse_damaged_directory_name(name: str) -> TopicPartition | None:
    """The partition of a damaged log that was set aside; None for any other directory."""
    match = _DAMAGED_DIRECTORY.fullmatch(name)
    return None if match is None else parse_partition_directory_name(match[1])


# checkpoints


def format_offset_checkpoint(
    offsets: Mapping[TopicPartition, int], topic_ids: Mapping[TopicPartition, str] | None = None
) -> bytes:
    """One line `topic partition offset` each, followed by the topic's id where it is given: a later topic may have the
    same name, and the offset does not apply to it."""
    ids = topic_ids or {}
    lines = [
        f"{partition.topic} {partition.partition} {offset}" + (f" {ids[partition]}" if partition in ids else "")
        for partition, offset in sorted(offsets.items())
    ]
    return _format_checkpoint(lines)


def parse_offset_checkpoint(content: bytes) -> dict[TopicPartition, int]:
    return _parse_offsets(_checkpoint_entries(content))


def parse_checkpoint_topic_ids(content: bytes) -> dict[TopicPartition, str]:
    """The topic ids in an offset checkpoint, from the lines that have one."""
    lines = [line.split(" ") for line in _checkpoint_entries(content)]
    return {TopicPartition(parts[0], int(parts[1])): parts[3] for parts in lines if len(parts) > 3}


def _parse_offsets(lines: Sequence[str]) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for line in lines:
        parts = line.split(" ")
        has_id = len(parts) == 4 and _TOPIC_ID.fullmatch(parts[3]) is not None
        partition = parse_partition_directory_name("-".join(parts[:2]))
        if has_too_large_a_number("-".join(parts[:2])):
            continue  # written by a broker that took such a directory for a partition's
        if not (len(parts) == 3 or has_id) or partition is None:
            raise CorruptCheckpoint(f"not 'topic partition offset [topic-id]': {line!r:.200}")
        if partition in offsets:
            raise CorruptCheckpoint(f"{partition} is listed twice")
        offsets[partition] = parse_number(parts[2], line)
    return offsets


def format_epoch_checkpoint(entries: Sequence[EpochEntry], owner: LogOwner | None = None) -> bytes:
    """The owner of the log stands behind the number of entries: nothing in the entries names it."""
    name = "" if owner is None else f" {owner[0]} {owner[1]}"
    return _format_checkpoint([f"{epoch} {start_offset}" for epoch, start_offset in entries], name)


def parse_epoch_checkpoint(content: bytes) -> list[EpochEntry]:
    """The entries in the file's order. That both columns rise is a rule of the epoch history, not of the format."""
    return parse_epochs_and_owner(content)[0]


def parse_epochs_and_owner(content: bytes) -> tuple[list[EpochEntry], LogOwner | None]:
    """The entries and the owner of the log; None: the file does not name it."""
    lines = _checkpoint_lines(content)
    count, *name = lines[0].split(" ")
    owner = None
    if name:
        if len(name) != 2 or _TOPIC_ID.fullmatch(name[0]) is None:
            raise CorruptCheckpoint(f"not 'entries [topic-id partition]': {lines[0]!r:.200}")
        owner = name[0], parse_number(name[1], lines[0])
    entries: list[EpochEntry] = []
    for line in _counted([count, *lines[1:]]):
        parts = line.split(" ")
        if len(parts) != 2:
            raise CorruptCheckpoint(f"not 'epoch start_offset': {line!r:.200}")
        epoch = parse_number(parts[0], line)
        if epoch > EPOCH_MAX:
            raise CorruptCheckpoint(f"no leader epoch in {line!r:.200}")
        entries.append((epoch, parse_number(parts[1], line)))
    return entries, owner


def _format_checkpoint(lines: Sequence[str], name: str = "") -> bytes:
    return with_checksum("".join(f"{line}\n" for line in (str(CHECKPOINT_VERSION), f"{len(lines)}{name}", *lines)))


def _checkpoint_entries(content: bytes) -> list[str]:
    return _counted(_checkpoint_lines(content))


def _checkpoint_lines(content: bytes) -> list[str]:
    """The lines behind the version."""
    lines = text_under_checksum(content).split("\n")[:-1]
    if len(lines) < 2 or lines[0] != str(CHECKPOINT_VERSION):
        raise CorruptCheckpoint(f"version is {lines[0] if lines else ''!r:.40}, not '{CHECKPOINT_VERSION}'")
    return lines[1:]


def _counted(lines: list[str]) -> list[str]:
    """All but the first line, which holds their number."""
    count = parse_number(lines[0], lines[0])
    if count > ENTRIES_MAX or count != len(lines) - 1:
        raise CorruptCheckpoint(f"{count} entries are claimed, {len(lines) - 1} are there")
    return lines[1:]


def parse_number(text: str, line: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= MAX_OFFSET):
        raise CorruptCheckpoint(f"not a number in {line!r:.200}")
    return int(text)


def with_checksum(text: str) -> bytes:
    content = text.encode()
    return content + f"crc32c: {crc32c(content):08x}\n".encode()


def text_under_checksum(content: bytes) -> str:
    """All lines but the last, which must be their checksum."""
    text, checksum = content[:-CHECKSUM_LINE_BYTES], content[-CHECKSUM_LINE_BYTES:]
    if not content.endswith(b"\n"):
        raise CorruptCheckpoint("the last line does not end: the file is cut")
    if _CHECKSUM_LINE.fullmatch(checksum) is None or (text and not text.endswith(b"\n")):
        raise CorruptCheckpoint("the last line is not a checksum")
    expected = f"{crc32c(text):08x}"
    if checksum[-9:-1] != expected.encode():
        raise CorruptCheckpoint(f"the checksum is {expected}, not {checksum[-9:-1].decode()}")
    return utf8_text(text)


def utf8_text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise CorruptCheckpoint("not UTF-8 text") from None


# log starts


class LogStartReason(StrEnum):
    """Why a log starts where it does."""

    CREATED = "created"
    """The log began empty."""
    RESET = "reset"
    """The log began empty in place of another one, of which some data may remain on the disk."""
    RETENTION = "retention"
    """For the leader, the records below were too old or too many."""
    TRIM = "trim"
    """An operator ordered it at the leader."""
    COPIED = "copied-from-leader"


class LogStart(msgspec.Struct, frozen=True, kw_only=True):
    """The records below `offset` were removed on purpose, and no others."""

    topic_id: str
    partition: int
    """Its number distinguishes the logs of one topic."""
    offset: int
    reason: LogStartReason


def format_log_start(start: LogStart, change: int = 0) -> bytes:
    """One slot of `log-start`. The file has two, and the older one is overwritten in place: that needs no room on a
    full disk, and a torn write leaves the other intact."""
    lines = (
        f"version: {LOG_START_VERSION}",
        f"change: {change}",
        f"topic_id: {start.topic_id}",
        f"partition: {start.partition}",
        f"log_start_offset: {start.offset}",
        f"reason: {start.reason}",
    )
    return with_checksum("".join(f"{line}\n" for line in lines)).ljust(LOG_START_SLOT_BYTES, b"\n")


def parse_log_start(content: bytes) -> tuple[LogStart, int]:
    """The newest sound slot, and the number of its change. Raises CorruptCheckpoint if none is sound."""
    return parse_log_starts(content)[0]


def parse_log_starts(content: bytes) -> list[tuple[LogStart, int]]:
    """All sound slots and the numbers of their changes, the newest first. Raises CorruptCheckpoint if none is sound."""
    sound: list[tuple[LogStart, int]] = []
    damage = CorruptCheckpoint("there is no slot")
    for at in range(0, LOG_START_SLOTS * LOG_START_SLOT_BYTES, LOG_START_SLOT_BYTES):
        try:
            sound.append(_parse_slot(content[at : at + LOG_START_SLOT_BYTES]))
        except CorruptCheckpoint as error:
            damage = damage if isinstance(damage, OtherVersion) else error
    if not sound:
        raise damage
    return sorted(sound, key=lambda slot: slot[1], reverse=True)


def _parse_slot(slot: bytes) -> tuple[LogStart, int]:
    text = text_under_checksum(slot.rstrip(b"\n") + b"\n")
    match = _LOG_START.fullmatch(text)
    if match is None:
        require_version(LOG_START, text, LOG_START_VERSION)
        raise CorruptCheckpoint(f"not a {LOG_START}: {text!r:.200}")
    change, topic_id, partition, offset, reason = match.groups()
    if parse_number(offset, offset) > MAX_SEGMENT_OFFSET:
        raise CorruptCheckpoint(f"no log can start at {offset}")
    start = LogStart(
        topic_id=topic_id,
        partition=int(partition),
        offset=parse_number(offset, offset),
        reason=LogStartReason(reason),
    )
    return start, int(change)


def require_version(name: str, text: str, expected: int) -> None:
    """Raises OtherVersion if the first line names another version."""
    match = _VERSION_LINE.match(text)
    if match is not None and match[1] != str(expected):
        raise OtherVersion(name, match[1], expected)


# markers of a whole directory


class _CleanShutdown(msgspec.Struct, frozen=True, rename={"broker_epoch": "brokerEpoch"}):
    version: int
    broker_epoch: int


def format_clean_shutdown(broker_epoch: int | None) -> bytes:
    """The marker of a clean stop; it carries the broker epoch that ended (-1: never registered)."""
    return msgspec.json.encode(_CleanShutdown(0, -1 if broker_epoch is None else broker_epoch))


def parse_clean_shutdown(content: bytes) -> int | None:
    """The broker epoch that ended cleanly."""
    marker = decode_json(content, _CleanShutdown, CLEAN_SHUTDOWN, CorruptCheckpoint)
    if marker.version != 0:
        raise CorruptCheckpoint(f"{CLEAN_SHUTDOWN} has version {marker.version}, not 0")
    return None if marker.broker_epoch < 0 else marker.broker_epoch


class WholeSince(msgspec.Struct, frozen=True, kw_only=True):
    """`whole-since`: the starts since which the logs of a directory have lost nothing, as far as is known."""

    incarnations: tuple[str, ...]
    """Starts since which no loss was observed. Oldest first, the last one is that of the broker that wrote it."""
    proven: int = 1
    """This many of the last ones are joined by clean stops after which each log ended where it had ended before."""
    log_ends: dict[TopicPartition, int] | None = None
    """Where each log ended at a clean stop; None while the broker runs."""


_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_INCARNATION = re.compile(r"[0-9A-Za-z_-]{1,64}")


def format_whole_since(whole_since: WholeSince) -> bytes:
    """Line 1 the version, line 2 the CRC-32C of what follows, in hex; then the number of incarnations, the
    incarnations, how many of them are proven, and after a clean stop the number of log ends and the log ends."""
    lines = [str(len(whole_since.incarnations)), *whole_since.incarnations, str(whole_since.proven)]
    if whole_since.log_ends is not None:
        ends = sorted(whole_since.log_ends.items())
        lines += [str(len(ends)), *(f"{topic} {partition} {end}" for (topic, partition), end in ends)]
    body = "".join(f"{line}\n" for line in lines).encode()
    return f"{CHECKPOINT_VERSION}\n{crc32c(body):08x}\n".encode() + body


def parse_whole_since(content: bytes) -> WholeSince:
    head, body = content[:11], content[11:]
    if head != f"{CHECKPOINT_VERSION}\n{crc32c(body):08x}\n".encode():
        raise CorruptCheckpoint(f"{WHOLE_SINCE}: the version or the checksum is wrong: {head!r}")
    lines = utf8_text(body).split("\n")[:-1]
    count = parse_number(lines[0] if lines else "", WHOLE_SINCE)
    incarnations, rest = lines[1 : 1 + count], lines[1 + count :]
    if len(incarnations) != count or not all(_INCARNATION.fullmatch(each) for each in incarnations):
        raise CorruptCheckpoint(f"{WHOLE_SINCE}: not {count} incarnations")
    proven = parse_number(rest[0] if rest else "", WHOLE_SINCE)
    if proven > count:
        raise CorruptCheckpoint(f"{WHOLE_SINCE}: {proven} of {count} incarnations are proven")
    ends = _parse_offsets(_counted(rest[1:])) if len(rest) > 1 else None
    return WholeSince(incarnations=tuple(incarnations), proven=proven, log_ends=ends)


# index entries

INDEX_ENTRY_BYTES = 8
TIME_INDEX_ENTRY_BYTES = 12
_INDEX_ENTRY = struct.Struct(">II")
_TIME_INDEX_ENTRY = struct.Struct(">qI")


class IndexEntry(msgspec.Struct, frozen=True, gc=False):
    """`.index`: the position in the segment at which the search for an offset begins."""

    relative_offset: int
    """The LAST offset of a batch, minus the segment's base offset."""
    position: int
    """Position in the `.log` file at which that batch begins."""


class TimeIndexEntry(msgspec.Struct, frozen=True, gc=False):
    """`.timeindex`: the largest timestamp of the segment up to an offset."""

    timestamp_ms: int
    relative_offset: int


def encode_index_entry(relative_offset: int, position: int) -> bytes:
    return _INDEX_ENTRY.pack(relative_offset, position)


def encode_time_index_entry(timestamp_ms: int, relative_offset: int) -> bytes:
    return _TIME_INDEX_ENTRY.pack(timestamp_ms, relative_offset)


def decode_index(content: bytes) -> list[IndexEntry]:
    """All entries of an `.index`; a length that is no multiple of an entry is corrupt."""
    if len(content) % INDEX_ENTRY_BYTES:
        raise CorruptCheckpoint(f"{len(content)} bytes are not a whole number of {INDEX_ENTRY_BYTES}-byte entries")
    return [IndexEntry(*entry) for entry in _INDEX_ENTRY.iter_unpack(content)]


def decode_time_index(content: bytes) -> list[TimeIndexEntry]:
    """All entries of a `.timeindex`; a length that is no multiple of an entry is corrupt."""
    if len(content) % TIME_INDEX_ENTRY_BYTES:
        raise CorruptCheckpoint(f"{len(content)} bytes are not a whole number of {TIME_INDEX_ENTRY_BYTES}-byte entries")
    return [TimeIndexEntry(*entry) for entry in _TIME_INDEX_ENTRY.iter_unpack(content)]
