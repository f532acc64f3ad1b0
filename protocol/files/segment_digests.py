"""`digests`: what each segment of one partition held when it was closed (docs/FORMATS.md). Pure.

Owns: the text of the file. Leaves to others: the comparison. The file names its partition: next to the segments of
another one, every line of it would report damage.
"""

import re
from collections.abc import Mapping

import msgspec

from minibroker.protocol.files.checkpoints import (
    ENTRIES_MAX,
    CorruptCheckpoint,
    parse_number,
    require_version,
    text_under_checksum,
    with_checksum,
)
from minibroker.protocol.log_digest import format_digest

DIGESTS = "digests"
VERSION = 2
DIGESTS_FILE_BYTES_MAX = 96 * ENTRIES_MAX
_HEAD = re.compile(rf"version: {VERSION}\ntopic_id: ([A-Za-z0-9_-]{{1,64}})\npartition: (0|[1-9][0-9]{{0,9}})\n")
_DIGEST = re.compile(r"[0-9a-f]{32}")


class SegmentDigests(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    topic_id: str
    partition: int
    segments: Mapping[int, tuple[int, int, int]]
    """(end offset, leader epoch of the last batch, digest) of segments by their base offsets: closed ones, and after a
    clean stop the last one."""


def format_segment_digests(digests: SegmentDigests) -> bytes:
    lines = [f"version: {VERSION}", f"topic_id: {digests.topic_id}", f"partition: {digests.partition}"]
    for base, (end, epoch, value) in sorted(digests.segments.items()):
        lines.append(f"{base} {end} {epoch} {format_digest(value)}")
    return with_checksum("".join(f"{line}\n" for line in lines))


def parse_segment_digests(content: bytes) -> SegmentDigests:
    """Raises CorruptCheckpoint, of a sound file of another version OtherVersion."""
    text = text_under_checksum(content)
    match = _HEAD.match(text)
    if match is None:
        require_version(DIGESTS, text, VERSION)
        raise CorruptCheckpoint(f"not a {DIGESTS} file: {text!r:.200}")
    segments: dict[int, tuple[int, int, int]] = {}
    for line in text[match.end() :].split("\n")[:-1]:
        parts = line.split(" ")
        if len(parts) != 4 or _DIGEST.fullmatch(parts[3]) is None:
            raise CorruptCheckpoint(f"not 'base_offset end_offset last_epoch digest': {line!r:.200}")
        base, end, epoch = (parse_number(part, line) for part in parts[:3])
        if base > end or base in segments:
            raise CorruptCheckpoint(f"{DIGESTS}: {line!r:.200}")
        segments[base] = end, epoch, int(parts[3], 16)
    return SegmentDigests(topic_id=match[1], partition=int(match[2]), segments=segments)
