"""What a user can do about an error code that a broker answers.

Owns: these sentences. Leaves to others: the rest of the message (`errors`).
"""

from minibroker.protocol.errors import ErrorCode, error_code

ADVICE: dict[ErrorCode, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "check the name, or create it: minibroker topic create -t TOPIC",
    ErrorCode.LEADER_NOT_AVAILABLE: "no replica may lead now; `minibroker replicas --check` says why",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "the leader moved; the client asks the new one (`minibroker replicas` names"
    " the leader, if this lasts)",
    ErrorCode.NOT_ENOUGH_REPLICAS: "start the missing brokers (`minibroker cluster resume` lets one"
    " that is paused go on), or repair their disks (`minibroker replicas` says what is wrong), or lower"
    " min.insync.replicas",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "it is in the leader's log, not committed; see `minibroker replicas`",
    ErrorCode.KAFKA_STORAGE_ERROR: "a log directory failed or its disk is full; see that broker's log",
    ErrorCode.MESSAGE_TOO_LARGE: "raise max.message.bytes of the topic or send less at once",
    ErrorCode.OFFSET_OUT_OF_RANGE: "seek to an offset of the log, or set auto_offset_reset",
    ErrorCode.NOT_CONTROLLER: "it moved, or there is none; if this lasts, `minibroker replicas --check` says why",
    ErrorCode.INVALID_REPLICATION_FACTOR: "start the brokers that are down, or ask for fewer replicas"
    " (--replication-factor)",
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: "read the partition to see whether the record is there",
}

ADVICE_OF_PARTITIONS: dict[ErrorCode, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "`minibroker topic list -l` shows all topics and numbers of partitions",
    ErrorCode.REQUEST_TIMED_OUT: "the in-sync replicas are slow; see `minibroker replicas`",
}
"""For errors of one partition, instead of those above; for a topic the broker's own message says what it waits for."""


def advice_for(code: int, *, of_partition: bool) -> str | None:
    """The advice, if there is any."""
    advice = ADVICE_OF_PARTITIONS.get(error_code(code)) if of_partition else None
    return advice or ADVICE.get(error_code(code))
