"""Resolves a consumer's positions: resets by time, and validation after an election. Part of the consumer's shell.

Owns: the task that sends ListOffsets and OffsetForLeaderEpoch, and its back-off. Leaves to others: what an answer means
for a position (`cursor`).
"""

import asyncio
from collections.abc import Callable, Mapping

from minibroker.client.cluster import Cluster
from minibroker.client.consumer.cursor import Cursor, EpochQuestion
from minibroker.client.errors import MinibrokerError, broker_error
from minibroker.client.limits import Deadline
from minibroker.client.offsets import ask_offsets
from minibroker.protocol.ids import BrokerId, TopicPartition
from minibroker.protocol.wire.messages import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

RESET_TIMEOUT_MS = 5_000
"""One attempt to resolve positions. It is repeated until the consumer closes; `cursor.error` has the last error."""


class PositionResolver:
    """Started and closed by the fetcher that owns it."""

    def __init__(
        self,
        cluster: Cluster,
        cursors: Callable[[], Mapping[TopicPartition, Cursor]],
        *,
        request_timeout_ms: int,
        halt_on_truncation: bool,
        pause_seconds: Callable[[int], float],
        on_settled: Callable[[], None],
        on_moved: Callable[[Cursor], None],
    ) -> None:
        """`pause_seconds`: the pause after that many failures. `on_moved`: a position moved because the log changed."""
        self._cluster = cluster
        self._cursors = cursors
        self._request_timeout_ms = request_timeout_ms
        self._halt_on_truncation = halt_on_truncation
        self._pause_seconds = pause_seconds
        self._on_settled = on_settled
        self._on_moved = on_moved
        self._wanted = asyncio.Event()
        self._leader_moved = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        """A waiting consumer checks whether a bug ended this task."""

    def _now_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000

    def start(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    def want(self) -> None:
        """Some position is not known, or has to be validated."""
        self._wanted.set()

    def leader_moved(self) -> None:
        """A partition that is not fetched yet has a new leader or leader epoch: ask that leader at once."""
        self._leader_moved.set()

    async def _run(self) -> None:
        """Resets and validations, as they become necessary. A failure is followed by a pause, which a new leader
        ends."""
        failures = 0
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            self._leader_moved.clear()
            resets = [cursor for cursor in self._cursors().values() if cursor.needs_reset]
            settled = await self._reset(resets) if resets else True
            unvalidated = [  # chosen after the await, during which a partition may have lost its leader
                cursor for cursor in self._cursors().values() if cursor.needs_validation and cursor.leader is not None
            ]
            settled = (await self._validate(unvalidated) if unvalidated else True) and settled
            self._on_settled()
            if settled:
                failures = 0
                continue
            failures += 1
            self._cluster.request_refresh()
            try:
                async with asyncio.timeout(self._pause_seconds(failures)):
                    await self._leader_moved.wait()
                failures = 0
            except TimeoutError:
                pass
            self._wanted.set()

    async def _reset(self, cursors: list[Cursor]) -> bool:
        generations = {cursor.topic_partition: cursor.generation for cursor in cursors}
        wanted = {c.topic_partition: c.reset_timestamp for c in cursors if c.reset_timestamp is not None}
        answers = await ask_offsets(self._cluster, wanted, Deadline(RESET_TIMEOUT_MS))
        settled = True
        for cursor in cursors:
            answer = answers[cursor.topic_partition]
            if cursor.generation != generations[cursor.topic_partition]:
                continue  # the user has sought meanwhile
            if isinstance(answer, MinibrokerError):
                cursor.refused(answer, self._now_ms())
                settled = False
                if not answer.retriable:
                    cursor.halted = answer
            else:
                assert answer.offset is not None, "each log has a beginning and an end"
                cursor.settle_reset(generations[cursor.topic_partition], answer.offset, answer.leader_epoch)
        return settled

    async def _validate(self, cursors: list[Cursor]) -> bool:
        """Ask the new leaders for the end offsets of the epochs of the last records fetched. All questions are made
        before any task begins: the user may seek meanwhile, and a position that was sought has no epoch to ask for."""
        by_leader: dict[BrokerId, list[tuple[Cursor, EpochQuestion]]] = {}
        for cursor in cursors:
            assert cursor.leader is not None
            by_leader.setdefault(cursor.leader, []).append((cursor, cursor.ask_epoch_end()))
        asked = (self._validate_at(leader, part) for leader, part in by_leader.items())
        return all(await asyncio.gather(*asked))

    async def _validate_at(self, leader: BrokerId, questions: list[tuple[Cursor, EpochQuestion]]) -> bool:
        topics: dict[tuple[str, str], list[OffsetForLeaderPartition]] = {}
        asked: dict[TopicPartition, tuple[Cursor, EpochQuestion]] = {}
        for cursor, question in questions:
            topic, index = cursor.topic_partition
            one = OffsetForLeaderPartition(
                partition=index, current_leader_epoch=question.leader_epoch, leader_epoch=question.epoch
            )
            topics.setdefault((topic, cursor.topic_id or ""), []).append(one)
            asked[cursor.topic_partition] = (cursor, question)
        request = OffsetForLeaderEpochRequest(
            topics=[
                OffsetForLeaderTopic(topic=name, topic_id=topic_id, partitions=partitions)
                for (name, topic_id), partitions in topics.items()
            ]
        )
        deadline = Deadline(min(RESET_TIMEOUT_MS, self._request_timeout_ms))
        try:
            reply = await self._cluster.ask(leader, request, OffsetForLeaderEpochResponse, deadline)
        except MinibrokerError as error:
            for cursor, _ in questions:
                cursor.error = error
            return False
        settled = 0
        for topic_answer in reply.topics:
            for answer in topic_answer.partitions:
                entry = asked.get(TopicPartition(topic_answer.topic, answer.partition))
                if entry is None:
                    continue
                cursor, question = entry
                if answer.error_code:
                    where = self._cluster.where(cursor.topic_partition, leader)
                    cursor.refused(broker_error(answer.error_code, where), self._now_ms())
                    continue
                settled += 1
                if self._cursors().get(cursor.topic_partition) is cursor:
                    end = EpochEndOffset(epoch=answer.leader_epoch, end_offset=answer.end_offset)
                    self._on_validated(leader, cursor, question, end)
        return settled == len(questions)

    def _on_validated(self, leader: BrokerId, cursor: Cursor, question: EpochQuestion, end: EpochEndOffset) -> None:
        where, generation = self._cluster.where(cursor.topic_partition, leader), cursor.generation
        problem = cursor.validated(question, end, halt=self._halt_on_truncation, where=where)
        if cursor.generation != generation:
            self._on_moved(cursor)
        if problem is not None:
            cursor.error = problem
            self._cluster.log.warning("%s", problem)
