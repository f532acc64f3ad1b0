"""What messages are made of: numbers, texts and lists with their limits, and the three bases.

Owns: how long any text, list or map of a message may be. Each has a maximum, because decoded msgpack may grow
seventy-fold (docs/FORMATS.md, Wire). Refuses to know any single message.
"""

from typing import Annotated

from msgspec import Meta, Struct

I16 = Annotated[int, Meta(ge=-(2**15), le=2**15 - 1)]
I32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
I64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

TOPIC_NAME_MAX_LENGTH = 249
"""As in Kafka: the name must fit in a directory name beside '-' and the partition number."""
TOPICS_MAX = 10_000
"""Topics in one message. A broker of this size holds thousands of partitions, not millions."""
PARTITIONS_MAX = 10_000
"""Partitions of one topic in one message."""
PRODUCES_IN_FLIGHT_MAX = 5
"""Produce requests of one idempotent producer that may be in doubt at a time (KIP-98)."""
PRODUCE_BATCHES_MAX = 8
"""Batches of one partition that a producer puts into one Produce: five such requests in flight are what a broker
remembers of it, to know a repeated batch again (docs/decisions/0012)."""
REPLICAS_MAX = 100
BROKERS_MAX = 1_000
TEXT_MAX = 32_768
"""Longest free text (error messages, configuration values)."""

SENTENCE_MAX = 2_000
"""Of free text that is told of a log or a directory: what a file holds must not make a whole answer unreadable."""

Topic = Annotated[str, Meta(max_length=TOPIC_NAME_MAX_LENGTH)]
Name = Annotated[str, Meta(max_length=512)]
Host = Annotated[str, Meta(max_length=255)]
Text = Annotated[str, Meta(max_length=TEXT_MAX)]
PRODUCERS_BYTES_MAX = 512 * 1024
"""What one answer tells a follower of producers, when its log starts anew: half of a frame without records."""
Snapshot = Annotated[bytes, Meta(max_length=PRODUCERS_BYTES_MAX)]
Replicas = Annotated[list[I32], Meta(max_length=REPLICAS_MAX)]
Configs = Annotated[dict[Name, Text], Meta(max_length=500)]


class Message(Struct, frozen=True, kw_only=True):
    """Base of everything that travels."""


class Request(Message, frozen=True, kw_only=True):
    """Body of a request."""


class Response(Message, frozen=True, kw_only=True):
    """Body of a response. A request that failed as a whole is answered with these two fields alone."""

    error_code: I16 = 0
    error_message: Text | None = None


def clipped(text: str) -> str:
    """Free text as an answer may carry it."""
    return text if len(text) <= SENTENCE_MAX else f"{text[: SENTENCE_MAX - 1]}…"
