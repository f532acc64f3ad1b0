"""What a program sends and gets instead of bytes, if it has serializers.

Owns: the objects, and the functions between them and bytes. Leaves to others: when they are used (`record_writer`,
`record_reader`).
"""

import zlib

import msgspec

REFUSED_SHARE = 16
"""One of so many contents is refused by `pack_most`."""


class Parcel(msgspec.Struct, frozen=True):
    """An object with the bytes of a key or a value."""

    content: bytes


class ContentRefused(ValueError):
    """What `pack_most` raises."""


def unpack(parcel: Parcel) -> bytes:
    """A serializer."""
    return parcel.content


def pack(content: bytes) -> Parcel:
    """A deserializer."""
    return Parcel(content)


def pack_most(content: bytes) -> Parcel:
    """A deserializer that refuses some contents, always the same. Raises ContentRefused."""
    if zlib.crc32(content) % REFUSED_SHARE == 0:
        raise ContentRefused
    return Parcel(content)
