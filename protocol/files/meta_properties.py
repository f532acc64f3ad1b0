"""`meta.properties`: the owner of a log directory (docs/FORMATS.md). Pure: bytes in, values out.

Owns: the text of the file. Leaves to others: any comparison.

Its last line is a checksum of the lines before it: with one wrong digit it would name another broker or directory. A
file without that line, written by hand or by an earlier version, is accepted as well.
"""

from collections.abc import Mapping

import msgspec

from minibroker.protocol.checksum import crc32c
from minibroker.protocol.files.checkpoints import META_PROPERTIES, CorruptCheckpoint, parse_number, utf8_text
from minibroker.protocol.ids import is_identifier

CHECKSUM = b"crc32c="


class MetaProperties(msgspec.Struct, frozen=True, kw_only=True):
    """`meta.properties` of a log directory: its owner."""

    broker_id: int
    cluster_id: str
    directory_id: str
    boot_id: str
    """The kernel's boot id at the last start: distinguishes a killed process from a lost machine (hardening rule 1)."""
    version: int = 0


KEYS = {"version", "broker.id", "cluster.id", "directory.id", "boot.id"}


def format_meta_properties(meta: MetaProperties) -> bytes:
    lines = _format_properties(
        {
            "version": str(meta.version),
            "broker.id": str(meta.broker_id),
            "cluster.id": meta.cluster_id,
            "directory.id": meta.directory_id,
            "boot.id": meta.boot_id,
        }
    )
    return lines + CHECKSUM + f"{crc32c(lines):08x}\n".encode()


def parse_meta_properties(content: bytes) -> MetaProperties:
    properties = _parse_properties(_lines_under_checksum(content))
    try:
        meta = MetaProperties(
            version=parse_number(properties["version"], "version"),
            broker_id=parse_number(properties["broker.id"], "broker.id"),
            cluster_id=properties["cluster.id"],
            directory_id=properties["directory.id"],
            boot_id=properties.get("boot.id", ""),
        )
    except KeyError as error:
        raise CorruptCheckpoint(f"{META_PROPERTIES} lacks {error.args[0]}") from None
    if meta.version != 0:
        raise CorruptCheckpoint(f"{META_PROPERTIES} has version {meta.version}, not 0")
    unknown = sorted(properties.keys() - KEYS)
    if unknown:  # the checksum's own line may be corrupted: then it is no file of an earlier version
        raise CorruptCheckpoint(f"{META_PROPERTIES} has an unknown line: {unknown[0]!r:.80}")
    if not is_identifier(meta.directory_id):
        raise CorruptCheckpoint(f"{META_PROPERTIES} has no directory id: {meta.directory_id!r:.80}")
    return meta


def _format_properties(properties: Mapping[str, str]) -> bytes:
    return "".join(f"{key}={value}\n" for key, value in properties.items()).encode()


def _lines_under_checksum(content: bytes) -> bytes:
    lines, found, checksum = content.partition(CHECKSUM)
    if found and checksum != f"{crc32c(lines):08x}\n".encode():
        raise CorruptCheckpoint(f"{META_PROPERTIES} does not match its checksum: some byte of it has changed")
    return lines


def _parse_properties(content: bytes) -> dict[str, str]:
    properties: dict[str, str] = {}
    for line in utf8_text(content).split("\n"):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        key, equals, value = stripped.partition("=")
        if not equals or key.strip() in properties:
            raise CorruptCheckpoint(f"not 'key=value', or given twice: {line!r:.200}")
        properties[key.strip()] = value.strip()
    return properties
