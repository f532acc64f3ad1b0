"""What a server allows its peers, each number with its reason (docs/FORMATS.md, Wire).

Costs (`.._COST`) measure time of the event loop in bytes: a request without records costs as many as it has.
"""

import msgspec

KIB = 1024
MIB = 1024 * KIB

SWEEP_INTERVAL_MS = 2_000
"""How often the deadlines of all connections are checked; one timer for all of them."""
ITERATION_COST = 64 * KIB
"""What clients may request within one loop iteration, in bytes of requests without records: some 20 ms of work."""
TURN_COST = KIB
"""What one connection may request in a row while others wait: at least one request, and not many small ones."""
HANDSHAKES_PER_ITERATION = 32
"""Steps of authentications handled in an iteration whose allowance for clients is used up: a broker counts as a client
until it is authenticated, and must not wait behind a flood. Each step takes some microseconds."""
HANDSHAKE_MAX_BYTES = 2_048
"""Frame size of such a step."""
REQUEST_LOOP_COST = 256
"""Loop time of any request, however small, in the units of ITERATION_COST; about 50 us."""
PARTITION_LOOP_COST = 26
"""Loop time of one partition of a Produce: its smallest size in requests without records."""
RECORDS_PER_COST = 64
"""Bytes of records that cost as much as one byte of a request without records."""
REQUESTS_IN_FLIGHT_MAX = 1_000
"""Requests of one connection that may wait for an answer; at this number the connection is not read."""
LIGHT_REQUEST_MAX_BYTES = 4 * KIB
"""A request that fits in the buffer that every connection has anyway is handled as it comes."""
HEAVY_BYTES_PER_SECOND = 4 * MIB
"""Larger requests are handled one at a time. After each the next one waits for as long as the first one took, and at
least for the time that this rate gives: so at least half of the loop's time is left for everything else."""
HEAVY_OLDEST_EVERY = 16
"""One of so many heavy requests is the one that has waited longest. The others are the smallest: a flood of small ones
would keep a large one waiting for ever."""
HEAVY_WAITING_MAX_BYTES = 8 * MIB
"""Bytes of heavy requests that may wait; beyond it the connection with the largest is closed. Two seconds' worth."""
HEAVY_RETRY_MS = 20
"""While memory is short, how often the next heavy request is considered again."""

REQUEST_MEMORY_BYTES = 2 * KIB
"""Memory of a request that waits for its answer: its objects, its timer, its place in the queues."""
PARTITION_MEMORY_BYTES = 250
"""Memory of one partition listed in a request that waits: its struct, and its place in the partition's queue."""
DECODED_GROWTH = 20
"""Measured: the worst typed request takes this many times the memory of its bytes (lists of two-letter texts)."""
SMALL_WAIT_BYTES = 8 * KIB
"""This much may wait for each connection whatever else waits: a fetch of thirty partitions."""
LARGE_WAIT_BYTES = 64 * KIB
"""A request that would take more while it waits is refused if too much waits already."""

UNREAD_ALLOWED_BYTES = 32 * KIB
"""Unread reply bytes above which a connection's next requests wait; a broker's limit is BROKER_UNREAD_ALLOWED_BYTES."""
BROKER_UNREAD_ALLOWED_BYTES = MIB
HELD_REPLY_MAX_BYTES = 4 * KIB
"""A reply up to this size waits for the end of its step, and is sent with the others of its connection."""
STUCK_READER_MS = 1_000
"""While replies take too much memory, a connection whose peer has not read a byte for this long is closed."""
STUCK_FRAME_MS = 1_000
"""While receive buffers take too much memory, a connection that takes longer than this for one frame is closed."""
PROBATION_MS = 2_000
"""A broker's first requests come within a few round trips; a fetcher asks where an epoch ended before it fetches."""
BROKER_PLACES = 32
"""Twice the number that connect at once when a cluster of sixteen brokers recovers."""
EVICT_IDLE_AFTER_MS = 5_000
"""While too many connections are open, one that has sent no request for this long may be closed for a new one."""


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one server allows. All clients together cost it at most about 64 MiB: 24 for receive buffers, 16 for one
    request that is being decoded, 6 for unread replies, 4 for waiting requests, 8 for one small request and 4 for the
    first buffer of each of 1,000 connections."""

    frame_max_bytes: int = 16 * MIB
    """socket.request.max.bytes: Kafka allows 100 MiB; a quarter of a broker's memory is enough here."""
    receive_budget_bytes: int = 48 * MIB
    """queued.max.request.bytes: receive buffers of all connections together."""
    broker_reserve_bytes: int = 24 * MIB
    """Part of the budget that only broker-to-broker connections may use: replication survives a flood."""
    waiting_max_bytes: int = 4 * MIB
    """Estimated memory of decoded requests that wait for their answer, over all clients' connections, without one small
    request of each."""
    unread_replies_max_bytes: int = 6 * MIB
    """Replies that were sent and not read yet, over all clients' connections."""
    connections_max: int = 1_000
    broker_places: int = 0
    """Connections beyond `connections_max`, for brokers: a connection in such a place is closed unless it proves within
    PROBATION_MS that it is a broker."""
    frame_deadline_ms: int = 30_000
    """A frame, once begun, must be complete within this."""
    idle_deadline_ms: int = 600_000
    """connections.max.idle.ms."""
    write_deadline_ms: int = 30_000
    """A connection whose peer does not read its replies for this long is closed."""
