"""The parts of messages: numbers, texts and lists with their limits, and the three base classes.

Owns: the maximum length of any text, list or map of a message, and the legal values of a number or a name. Each has a
maximum, because decoded msgpack may grow seventy-fold (docs/FORMATS.md, Wire). Leaves to others: the single messages.

Orders of a controller accept only values that a correct controller sends: their names become directories, their hosts
are looked up, their epochs are trusted. Clients may ask for any text: the answer is that the topic is unknown.
"""

from typing import Annotated

from msgspec import Meta, Struct

from minibroker.protocol.ids import (
    HOST_MAX_LENGTH,
    HOST_PATTERN,
    IDENTIFIER_MAX_LENGTH,
    IDENTIFIER_PATTERN,
    MAX_INT32,
    MAX_OFFSET,
    TOPIC_NAME_MAX_LENGTH,
    TOPIC_NAME_PATTERN,
)

I16 = Annotated[int, Meta(ge=-(2**15), le=2**15 - 1)]
I32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
I64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

BrokerId = Annotated[int, Meta(ge=0, le=MAX_INT32)]
BrokerIdOrNone = Annotated[int, Meta(ge=-1, le=MAX_INT32)]
PartitionIndex = Annotated[int, Meta(ge=0, le=MAX_INT32)]
Epoch = Annotated[int, Meta(ge=0, le=MAX_INT32)]
"""Epoch of a leader, of a partition's state or of a controller."""
EpochOrNone = Annotated[int, Meta(ge=-1, le=MAX_INT32)]
BrokerEpoch = Annotated[int, Meta(ge=0, le=MAX_OFFSET)]
BrokerEpochOrNone = Annotated[int, Meta(ge=-1, le=MAX_OFFSET)]
Offset = Annotated[int, Meta(ge=0, le=MAX_OFFSET)]
OffsetOrNone = Annotated[int, Meta(ge=-1, le=MAX_OFFSET)]
Port = Annotated[int, Meta(ge=0, le=65_535)]

TOPICS_MAX = 10_000
"""Topics in one message. A broker of this size holds thousands of partitions, not millions."""
PARTITIONS_MAX = 10_000
"""Partitions of one topic in one message."""
PartitionCount = Annotated[int, Meta(ge=0, le=PARTITIONS_MAX)]
PRODUCES_IN_FLIGHT_MAX = 5
"""Produce requests of one idempotent producer that may be unanswered at a time (KIP-98)."""
PRODUCE_BATCHES_MAX = 8
"""Batches of one partition that a producer puts into one Produce. To recognize a repeated batch, a broker remembers
five such requests in flight (docs/decisions/0012)."""
PRODUCER_NAMES_MAX = 2_000
"""In one message. Brokers keep a thousand names (`NAMES_MAX`); twice as many leave room for nodes that others made."""
REPLICAS_MAX = 100
BROKERS_MAX = 1_000
LISTENERS_MAX = 16
CONFIGS_MAX = 500
NAME_MAX_LENGTH = 512
TEXT_MAX = 32_768
"""Longest free text (error messages, configuration values)."""

SENTENCE_MAX = 2_000
"""Of free text about a log or a directory: the contents of a file must not make a whole answer too large to decode."""

Topic = Annotated[str, Meta(max_length=TOPIC_NAME_MAX_LENGTH)]
"""As a client wrote it; it need not be a legal topic name."""
TopicName = Annotated[
    str, Meta(min_length=1, max_length=TOPIC_NAME_MAX_LENGTH, pattern=TOPIC_NAME_PATTERN, description="a topic's name")
]
Identifier = Annotated[str, Meta(max_length=IDENTIFIER_MAX_LENGTH, pattern=IDENTIFIER_PATTERN, description="base64url")]
"""Of a topic, a log directory or a process start; "": none."""
Name = Annotated[str, Meta(max_length=NAME_MAX_LENGTH)]
Host = Annotated[
    str, Meta(min_length=1, max_length=HOST_MAX_LENGTH, pattern=HOST_PATTERN, description="a host's name or address")
]
Text = Annotated[str, Meta(max_length=TEXT_MAX)]
PRODUCERS_BYTES_MAX = 512 * 1024
"""Producer state in one answer to a follower, when its log is reset: half of a frame without records."""
Snapshot = Annotated[bytes, Meta(max_length=PRODUCERS_BYTES_MAX)]
Replicas = Annotated[list[BrokerId], Meta(max_length=REPLICAS_MAX)]
Configs = Annotated[dict[Name, Text], Meta(max_length=CONFIGS_MAX)]


class Message(Struct, frozen=True, kw_only=True):
    """Base of all messages and their parts."""


class Request(Message, frozen=True, kw_only=True):
    """Body of a request."""


class Response(Message, frozen=True, kw_only=True):
    """Body of a response. The answer to a request that failed as a whole has only these two fields."""

    error_code: I16 = 0
    error_message: Text | None = None


def clipped(text: str) -> str:
    """Free text, cut to the length that an answer may carry."""
    return text if len(text) <= SENTENCE_MAX else f"{text[: SENTENCE_MAX - 1]}…"
