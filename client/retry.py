"""What to do after a failure, and when. Pure.

Owns: the classes of error codes as a client sees them (replication rules, section 10) and the back-off. Leaves to
others: what is retried. Randomness is passed in as a number, so that one seed gives one run.
"""

from enum import Enum

from minibroker.protocol.errors import RETRIABLE, ErrorCode

JITTER = 0.2
"""A fifth up or down: clients that failed together should not return together (as in Kafka)."""


class ProduceDecision(Enum):
    """What to do after the answer to a produced batch."""

    WRITTEN = "it is in the log, and the answer has its offset"
    RETRY = "try again: it may succeed later"
    SPLIT = "too large as a whole, perhaps not in parts"
    NEW_PRODUCER_EPOCH = "the broker does not know this producer's last sequence: a new producer epoch is needed"
    FENCED = "this producer's identity belongs to another producer"
    FAIL = "it will never succeed"


def decide_produce(code: ErrorCode, record_count: int) -> ProduceDecision:
    """What to do with one batch. A duplicate without an offset (46) does not prove that it was written: FAIL, outcome
    unknown."""
    if code is ErrorCode.NONE:
        return ProduceDecision.WRITTEN
    if code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID):
        return ProduceDecision.NEW_PRODUCER_EPOCH
    if code is ErrorCode.INVALID_PRODUCER_EPOCH:
        return ProduceDecision.FENCED
    if code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        return ProduceDecision.SPLIT if record_count > 1 else ProduceDecision.FAIL
    return ProduceDecision.RETRY if code in RETRIABLE else ProduceDecision.FAIL


MAYBE_WRITTEN_AFTER = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""After these codes a produced batch may be in some log all the same. NOT_LEADER_OR_FOLLOWER is among them: a deposed
leader answers with it after it has appended."""


def backoff_ms(attempt: int, base_ms: float, max_ms: float, unit_random: float) -> float:
    """Pause before the attempt after `attempt` failed ones (1 is the first): doubled each time, bounded, jittered.

    `unit_random` is in [0, 1).
    """
    assert attempt >= 1
    pause = min(max_ms, base_ms * 2.0 ** min(attempt - 1, 30))
    return pause * (1.0 - JITTER + 2.0 * JITTER * unit_random)


def poll_pause_ms(waited_ms: float, base_ms: float, max_ms: float, unit_random: float) -> float:
    """Pause before the next request for something that should appear soon: a quarter of the time waited so far. So it
    is found at most a quarter later than possible, and a long search still costs little. Bounded and jittered."""
    pause = min(max_ms, max(base_ms, waited_ms / 4))
    return pause * (1.0 - JITTER + 2.0 * JITTER * unit_random)
