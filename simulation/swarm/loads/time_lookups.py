"""Answers to look-ups by time, judged at the end by all records that the log has held.

Owns: the judgement. An answer is the first record, at or behind the log's start, whose timestamp is not below the one
that was asked for. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from minibroker.protocol.ids import TopicPartition

KEPT_MAX = 2_000
"""Questions remembered in a run."""


class TimeLookup(msgspec.Struct, frozen=True, kw_only=True):
    """A question and its answer."""

    partition: TopicPartition
    timestamp_ms: int
    beginning: int
    """The log's start before the question."""
    end: int
    """Its end before the question: everything below it had to be considered."""
    offset: int | None
    told_ms: int | None


class TimeLookups:
    """Of one run."""

    def __init__(self) -> None:
        self._asked: list[TimeLookup] = []

    def add(
        self,
        partition: TopicPartition,
        timestamp_ms: int,
        beginning: int,
        end: int,
        offset: int | None,
        told_ms: int | None,
    ) -> None:
        if len(self._asked) < KEPT_MAX:
            asked = TimeLookup(
                partition=partition,
                timestamp_ms=timestamp_ms,
                beginning=beginning,
                end=end,
                offset=offset,
                told_ms=told_ms,
            )
            self._asked.append(asked)

    def wrong(
        self, timestamps_ms: Mapping[tuple[TopicPartition, int], int], deleting_topics: Iterable[str]
    ) -> Iterator[tuple[TimeLookup, str]]:
        """Each wrong answer and why. `timestamps_ms`: of every record that any reader saw. Where retention deletes, the
        log may have started later when it answered than when its start was asked for."""
        deleting = frozenset(deleting_topics)
        for asked in self._asked:
            why = _why_wrong(asked, timestamps_ms, asked.partition.topic in deleting)
            if why is not None:
                yield asked, why


def _why_wrong(
    asked: TimeLookup, timestamps_ms: Mapping[tuple[TopicPartition, int], int], is_deleting: bool
) -> str | None:
    if asked.offset is not None:
        real_ms = timestamps_ms.get((asked.partition, asked.offset))
        if asked.told_ms is None or asked.told_ms < asked.timestamp_ms:
            return f"the answer is older: {asked.told_ms}"
        if real_ms is not None and real_ms != asked.told_ms:
            return f"offset {asked.offset} has timestamp {real_ms}, not {asked.told_ms}"
    if is_deleting:
        return None
    stop = asked.end if asked.offset is None else asked.offset
    for offset in range(asked.beginning, stop):
        found_ms = timestamps_ms.get((asked.partition, offset))
        if found_ms is not None and found_ms >= asked.timestamp_ms:
            return f"offset {offset} has timestamp {found_ms}, and is in front of the answer"
    return None
