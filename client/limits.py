"""Every limit of the client that is not a parameter of its public classes, with its reason; and parameter checks.

Owns: numbers, deadlines, and the checks of what users pass in. Leaves to others: the network.
"""

import asyncio
import math
import re
from collections.abc import Iterable, Sequence

from minibroker.client.errors import InvalidCall
from minibroker.client.metadata_cache import Address
from minibroker.protocol.ids import MAX_INT32, TOPIC_NAME_MAX_LENGTH, TopicPartition
from minibroker.protocol.record_batch import TIMESTAMP_MAX, TIMESTAMP_MIN

DEFAULT_PORT = 9092
BOOTSTRAP_SERVERS_MAX = 100
NO_HOST = re.compile(r"[\s,;/@?#\[\]]")
"""No name or address of a host has these; they come from other ways to write a list or a URL."""
CONNECT_TIMEOUT_MS = 5_000
"""For a host that does not even refuse: the next server is tried after this."""
METADATA_TIMEOUT_MS = 2_000
"""A paused broker must not delay the search for the new leader: the next broker is asked after this."""
METADATA_BACKOFF_MAX_MS = 400
"""While a leader is missing, metadata is requested at least this often: this bounds how long writes stall after an
election, and costs a broker next to nothing."""
LEADER_CHANGE_BACKOFF_MS = 20
"""First pause after an answer that a leader has changed, doubled like any other, and the shortest pause between two
rounds of metadata. Elections take some tens of milliseconds, and brokers learn of them one after the other."""
LOG_WAIT_AFTER_MS = 1_000.0
"""A call that still waits logs for what: the name may be wrong, or the cluster slow."""
UNKNOWN_TOPIC_GRACE_MS = 5_000
"""A topic that was just created reaches all brokers within this; after it an unknown topic is an error."""
BOOTSTRAP_TIMEOUT_MS = 10_000
"""How long start() looks for a first broker."""
REFUSALS_MS = 200
"""A command asks again for this long where every server refuses connections: more than one attempt, and not enough for
its user to notice."""
LOG_START_AFTER_MS = 2_000
"""A start that finds no broker logs it after this, if it goes on looking for at least as long again."""
TIMER_SLACK_MS = 0.5
"""Loops count in whole milliseconds: a timer may fire this much too early."""
CALL_TIMEOUT_MS = 30_000
"""Deadline of a call without a given one."""
FLUSH_SLACK_MS = 1_000
"""flush() without a timeout waits this much longer than records do: each of them ends with its own error first."""
CANCELLED_CLOSE_MS = 1_000
"""Leaving `async with` because of Ctrl-C or a cancelled task: buffered records get this long, and no time if
one has met an error and waited for longer than this already."""
BATCH_SIZE_MAX = 8 * 1024 * 1024
"""Half of what one frame may hold."""
BATCH_MEMORY_STEP_BYTES = 4 * 1024
"""A batch gets this much of buffer_memory when it is opened, and doubles it as it fills: a thousand partitions with a
few records each do not use up what a few full batches may."""
BUFFER_ROOM_BYTES = 128 * 1024
"""A call that waits for buffer_memory continues when this is free: a wait costs as much as sending 100 records."""
YIELD_BYTES = 64 * 1024
"""After batches of this size the loop has to run before the next one is begun, so that a caller that never waits does
not starve the sender."""
NUMBER_MAX = 2**63 - 1
"""A message has 64 bits for an offset."""
FAILURES_REMEMBERED = 1_000
"""Failed batches that flush() can still report in detail; beyond it they are only counted."""


class Deadline:
    """One time budget for all steps of a call."""

    __slots__ = ("_at", "_loop", "timeout_ms")

    def __init__(self, timeout_ms: float) -> None:
        check_at_least(0, timeout_ms=timeout_ms)
        self._loop = asyncio.get_running_loop()
        self.timeout_ms = timeout_ms
        self._at = self._loop.time() + timeout_ms / 1000

    def remaining_ms(self) -> int:
        """Whole milliseconds left, rounded up, at least 0: never 0 before the deadline."""
        return max(0, math.ceil((self._at - self._loop.time()) * 1000))

    def waited_ms(self) -> float:
        """Since the call began."""
        return (self._loop.time() - self._at) * 1000 + self.timeout_ms

    @property
    def passed(self) -> bool:
        return self._loop.time() >= self._at

    def at_most(self, limit_ms: float) -> int:
        """The smaller of what is left and a limit for one step; at least 1, so that a step may be tried."""
        return max(1, min(self.remaining_ms(), round(limit_ms)))

    async def pause(self, duration_ms: float) -> bool:
        """Sleep, but not past the deadline; returns whether time is left."""
        await asyncio.sleep(min(duration_ms, self.remaining_ms()) / 1000)
        return not self.passed


def parse_servers(servers: str | Sequence[str]) -> list[Address]:
    """`"host:port,host:port"` or a list of such; IPv6 as `[::1]:9092`; the port defaults to 9092."""
    texts = servers.split(",") if isinstance(servers, str) else servers
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise InvalidCall(f"bootstrap_servers is {servers!r:.80}; give HOST:PORT[,HOST:PORT]..")
    addresses = [_parse_server(text.strip()) for text in texts if text.strip()]
    if not addresses:
        raise InvalidCall("bootstrap_servers is empty; give HOST:PORT[,HOST:PORT]..")
    if len(addresses) > BOOTSTRAP_SERVERS_MAX:
        raise InvalidCall(f"{len(addresses)} bootstrap servers; at most {BOOTSTRAP_SERVERS_MAX} make sense")
    return list(dict.fromkeys(addresses))


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65_536


def _parse_server(text: str) -> Address:
    if "://" in text:
        raise InvalidCall(f"bootstrap server {text!r} is a URL: give HOST:PORT alone, such as localhost:9092")
    host, separator, port_text = text.rpartition(":")
    if not separator or text.endswith("]"):
        host, port_text = text, str(DEFAULT_PORT)
    elif ":" in host and not host.startswith("["):
        host, port_text = text, str(DEFAULT_PORT)  # a bare IPv6 address
    host = host.strip("[]")
    if not host or not _is_port(port_text) or NO_HOST.search(host):
        raise InvalidCall(f"bootstrap server {text!r:.200} is not HOST:PORT: commas separate servers")
    return Address(host, int(port_text))


def check_at_least(minimum: float, **values: float) -> None:
    """Each named parameter must be a number of at least `minimum`, which clocks and messages can hold."""
    for name, value in values.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not minimum <= value <= NUMBER_MAX:  # so nan is refused, too
            what = f"a number of at least {minimum}" if not is_number or not value > minimum else "below 2**63"
            raise InvalidCall(f"{name} is {value!r:.80}; it must be {what}")


def check_whole(minimum: int, **values: int) -> None:
    """Each named parameter must be a whole number of at least `minimum`: brokers refuse a request with a fraction."""
    for name, value in values.items():
        if isinstance(value, float):
            raise InvalidCall(f"{name} is {value!r:.80}; it must be a whole number")
    check_at_least(minimum, **values)


def check_names(names: Iterable[str]) -> list[str]:
    """Each name once. A text alone, whose letters would be taken for names, is refused."""
    if isinstance(names, str):
        raise InvalidCall(f"{names!r:.80} is one name: give a list of names")
    return list(dict.fromkeys(names))


def check_topic(name: object) -> None:
    """A name that a request can carry: otherwise no metadata would come for any other topic of this client."""
    if not isinstance(name, str) or not 0 < len(name) <= TOPIC_NAME_MAX_LENGTH or not is_utf8(name):
        raise InvalidCall(f"{name!r:.300} is not a topic name: give text of 1 to {TOPIC_NAME_MAX_LENGTH} characters")
    if ":" in name:
        raise InvalidCall(
            f"{name!r} is not a topic name: it looks like the address of a server, which is given as"
            f" bootstrap_servers={name!r}"
        )


def check_partition(partition: TopicPartition) -> TopicPartition:
    """The partition, if a request can name it."""
    check_topic(partition.topic)
    index = partition.partition
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index <= MAX_INT32:
        raise InvalidCall(f"{index!r:.80} is not a partition number of topic {partition.topic!r}")
    return partition


def as_partition(pair: TopicPartition | tuple[str, int]) -> TopicPartition:
    """A topic and a number as a partition. Raises InvalidCall for what is no such pair, e.g. a topic's name alone."""
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise InvalidCall(
            f"{pair!r:.80} is not a partition: give [TopicPartition(topic, number), ..]; topics alone are given to "
            "Consumer(..)"
        )
    return TopicPartition(*pair)


def is_utf8(text: str) -> bool:
    """False for text with half of a surrogate pair, as file names and arguments of other encodings have."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_timestamp(timestamp_ms: int | None) -> None:
    """Batches and messages have 64 bits for it; None: the producer's clock decides."""
    if timestamp_ms is None:
        return
    if not isinstance(timestamp_ms, int) or not TIMESTAMP_MIN <= timestamp_ms <= TIMESTAMP_MAX:
        raise InvalidCall(f"timestamp_ms is {timestamp_ms!r}; it must be a whole number of ms that fits into 64 bits")
