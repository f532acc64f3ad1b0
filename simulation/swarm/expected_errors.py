"""The errors that a client may meet within the promise, whatever faults there are.

Owns: that list. Leaves to others: to note errors (`history`), and which error a wrong request must get
(`loads.refused_caller`). It lists what may come, so that an error that was not foreseen is a finding.
"""

from minibroker.client.errors import (
    BrokerError,
    CallTimedOut,
    ClusterUnreachable,
    DeliveryAborted,
    OutcomeUnknown,
    RecordTooLarge,
    UndeliveredRecords,
)
from minibroker.protocol.errors import ErrorCode
from minibroker.runtime.request_channel import RequestFailed

OF_CALLS = (RequestFailed, TimeoutError)
KINDS = (
    CallTimedOut,
    ClusterUnreachable,
    DeliveryAborted,
    RecordTooLarge,
    OutcomeUnknown,
    UndeliveredRecords,
    RequestFailed,
    TimeoutError,
)
"""Errors of waits and of records, if their code is one of CODES."""
CODES = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""Faults, elections, deleted topics and small limits lead to these. Among those that never come: UNKNOWN_SERVER_ERROR
(a bug of a broker), CORRUPT_MESSAGE (no batch is damaged on its way), INVALID_PRODUCER_EPOCH (no two producers share an
identity)."""


def is_expected(error: Exception) -> bool:
    """Whether a client may meet this error within the promise."""
    code = getattr(error, "code", None)
    if code is ErrorCode.INVALID_REQUEST:  # some clients delete topics even where the run's settings forbid it
        return "delete.topic.enable is false" in str(error)
    return isinstance(error, (*KINDS, BrokerError)) and (code is None or code in CODES)
