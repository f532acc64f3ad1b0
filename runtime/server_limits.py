"""What a server allows its peers, each number with its reason (docs/FORMATS.md, Wire)."""

import msgspec

KIB = 1024
MIB = 1024 * KIB

SWEEP_INTERVAL_MS = 2_000
"""How often all connections are looked at for deadlines; one timer for all of them."""
ITERATION_COST = 64 * KIB
"""What clients may ask for within one turn of the loop, in bytes of requests without records: some 20 ms of work."""
HANDSHAKES_PER_ITERATION = 32
"""Steps of an authentication that are taken in a turn in which nothing else is left for clients: a broker is one of
them until it has proven itself, and must not wait behind a flood. Each takes some microseconds."""
HANDSHAKE_MAX_BYTES = 2_048
"""Of a frame of such a step."""
REQUEST_COST = 256
"""Of any request, however small; about 50 us."""
PARTITION_COST = 26
"""Of one partition of a Produce: what it takes at least in requests without records."""
RECORDS_PER_COST = 64
"""Bytes of records that cost as much as one byte of a request without."""
REQUESTS_IN_FLIGHT_MAX = 1_000
"""Requests of one connection that may wait for an answer; above it the connection is not read."""
LIGHT_REQUEST_MAX_BYTES = 4 * KIB
"""A request that fits in the buffer which every connection has anyway is handled as it comes."""
HEAVY_BYTES_PER_SECOND = 4 * MIB
"""Larger requests are handled one at a time; after each the next one waits for as long as it took, and at least for
the time this rate gives: so at least half of the loop's time is left for everybody else."""
HEAVY_WAITING_MAX_BYTES = 8 * MIB
"""Large requests that wait for their turn; beyond it the largest is closed. Two seconds' worth."""
HEAVY_RETRY_MS = 20
"""While memory is short, how often the next large request is considered again."""

REQUEST_COST_BYTES = 2 * KIB
"""A request that waits for its answer: its objects, its timer, its place in the queues."""
PARTITION_COST_BYTES = 250
"""One partition listed in a request that waits: its struct, and its place among those who wait for the partition."""
DECODED_GROWTH = 20
"""Measured: the worst typed request takes so many times the memory of its bytes (lists of two-letter texts)."""
SMALL_WAIT_BYTES = 8 * KIB
"""So much may wait for each connection whatever else waits: a fetch of thirty partitions."""
LARGE_WAIT_BYTES = 64 * KIB
"""A request that would take more while it waits is refused where too much waits already."""

UNREAD_ALLOWED_BYTES = 32 * KIB
"""Unread reply bytes above which a connection's next requests wait; a broker's may have BROKER_UNREAD_ALLOWED_BYTES."""
BROKER_UNREAD_ALLOWED_BYTES = MIB
HELD_REPLY_MAX_BYTES = 4 * KIB
"""A reply up to this waits for the end of the step that it belongs to, and leaves with the others of its connection."""
STUCK_READER_MS = 1_000
"""While replies take too much memory, who has not read a byte for so long makes room."""
STUCK_FRAME_MS = 1_000
"""While receive buffers take too much memory, who needs longer than this for one frame makes room."""
PROBATION_MS = 2_000
"""A broker's first requests come within a few round trips; a fetcher asks where an epoch ended before it fetches."""
BROKER_PLACES = 32
"""As many connect at once when a cluster of sixteen brokers heals, twice."""
IDLE_VICTIM_MS = 5_000
"""While too many connections are open, who has asked nothing for so long makes room."""


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one server allows. All clients together cost it at most 64 MiB: receive buffers 24, one request that is
    decoded 16, unread replies 6, waiting requests 4 and 10 for one small one of each connection."""

    frame_max_bytes: int = 16 * MIB
    """socket.request.max.bytes: Kafka allows 100 MiB; a quarter of a broker's memory is enough here."""
    receive_budget_bytes: int = 48 * MIB
    """queued.max.request.bytes: receive buffers of all connections together."""
    broker_reserve_bytes: int = 24 * MIB
    """Part of the budget only broker-to-broker connections may use: replication outlives a flood."""
    waiting_max_bytes: int = 4 * MIB
    """Estimated memory of decoded requests that wait for their answer, over all connections but brokers', and but for
    one small request of each."""
    unread_replies_max_bytes: int = 6 * MIB
    """Replies that were sent and not read yet, over all connections but brokers'."""
    connections_max: int = 1_000
    broker_places: int = 0
    """Connections beyond `connections_max`, for brokers: whoever takes one and does not show in PROBATION_MS that it is
    a broker is closed."""
    frame_deadline_ms: int = 30_000
    """A frame once begun must end within this."""
    idle_deadline_ms: int = 600_000
    """connections.max.idle.ms."""
    write_deadline_ms: int = 30_000
    """A peer that does not read its replies for so long is closed."""
