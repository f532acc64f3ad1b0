"""Logs that records wait for their acknowledgement, and why: before delivery_timeout_ms nothing else reports it.

Owns: when to log it, and the wording. Leaves to others: what is done about it. For the consumer: `partition_watch`.
"""

import asyncio

from minibroker.client.cluster import Cluster
from minibroker.client.consumer.partition_watch import LOG_AFTER_MS, LOG_AGAIN_AFTER_MS, LOOK_EVERY_MS
from minibroker.client.errors import MinibrokerError
from minibroker.client.producer.accumulator import Accumulator
from minibroker.client.producer.batches import Batch
from minibroker.runtime.deadline import DeadlineTimer


class DeliveryWatch:
    """Checks a producer's oldest batch every second, from its first topic on."""

    def __init__(self, accumulator: Accumulator, cluster: Cluster) -> None:
        self._accumulator = accumulator
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._timer = DeadlineTimer(self._look)
        self._quiet_until_ms = 0.0

    def start(self) -> None:
        """Starting twice is fine."""
        self._timer.set_after(LOOK_EVERY_MS / 1000)

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        self.start()
        now_ms = self._loop.time() * 1000
        batch = self._accumulator.oldest()
        if batch is None or now_ms - batch.created_ms < LOG_AFTER_MS or now_ms < self._quiet_until_ms:
            return
        problem = self._problem(batch)
        if problem is not None:
            self._quiet_until_ms = now_ms + LOG_AGAIN_AFTER_MS
            waited = (now_ms - batch.created_ms) / 1000
            partition = batch.topic_partition
            self._cluster.log.warning(
                "records for %s not acknowledged for %.0f s, still trying: %s", partition, waited, problem
            )

    def _problem(self, batch: Batch) -> MinibrokerError | None:
        """None: the batch still collects records, or its answer is pending without a known error."""
        leader = batch.queue.leader
        if leader is None or not self._cluster.is_connected(leader):
            return self._cluster.leader_problem(batch.topic_partition)
        return batch.last_error
