"""What a leader told in one answer to a fetch, beside the records: public."""

from collections.abc import Callable

import msgspec

from minibroker.protocol.ids import BrokerId, LeaderEpoch, Offset, TopicPartition


class FetchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer about one partition that the consumer accepted."""

    topic_partition: TopicPartition
    broker: BrokerId
    leader_epoch: LeaderEpoch | None
    """The epoch in which that broker answered as the leader: any other fetch is refused. None if the consumer did not
    know it yet."""
    high_watermark: Offset
    base_offset: Offset
    """Where the records of this answer begin."""
    end_offset: Offset
    """Behind the last one; `base_offset` if it brought none."""


AnswerCallback = Callable[[FetchAnswer], object]
