"""The leader's limit up to which a replica on a full disk may delete."""

import pytest

from minibroker.broker.disk_faults.full_disk import reported_low_watermark
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import ListOffsetsPartitionResponse


@pytest.mark.parametrize(
    ("start", "low_watermark", "error", "expected"),
    [
        (100, 60, ErrorCode.NONE, 60),
        (100, 100, ErrorCode.NONE, 100),
        (100, 101, ErrorCode.NONE, None),
        (100, -1, ErrorCode.NONE, None),
        (100, 60, ErrorCode.NOT_LEADER_OR_FOLLOWER, None),
    ],
)
def test_a_low_watermark_above_the_start_in_the_same_answer_is_ignored(
    start: int, low_watermark: int, error: ErrorCode, expected: int | None
) -> None:
    answer = ListOffsetsPartitionResponse(
        partition_index=0, error_code=error, offset=start, low_watermark=low_watermark
    )
    assert reported_low_watermark(answer) == expected
