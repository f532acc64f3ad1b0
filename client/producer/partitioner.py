"""Which partition a record goes to. Pure.

Keyed records: Kafka's murmur2 of the key, made positive, modulo the number of partitions, so that a Kafka client would
choose the same partition for the key. Keyless records: sticky, one batch after the other (KIP-480); the producer makes
that choice, because it depends on the batches that wait.
"""

from collections.abc import Callable

Partitioner = Callable[[bytes, int], int]
"""(key, number of partitions) -> partition, for records with a key."""

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 (`Utils.murmur2`), as an unsigned number."""
    length = len(data)
    value = (_SEED ^ length) & _MASK
    whole = length & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little")
        word = (word * _M) & _MASK
        word ^= word >> 24
        word = (word * _M) & _MASK
        value = ((value * _M) & _MASK) ^ word
    if length > whole:
        value ^= int.from_bytes(data[whole:], "little")
        value = (value * _M) & _MASK
    value ^= value >> 13
    value = (value * _M) & _MASK
    return value ^ (value >> 15)


def positive_murmur2(key: bytes) -> int:
    """The hash without its sign bit (`Utils.toPositive`)."""
    return murmur2(key) & 0x7FFFFFFF


def murmur2_partitioner(key: bytes, partition_count: int) -> int:
    """Kafka's default for keyed records."""
    return positive_murmur2(key) % partition_count
