"""Logs that records wait for their acknowledgement, and why: before delivery_timeout_ms nothing else reports it.

Owns: when to log it, and the wording. Leaves to others: what is done about it. For the consumer: `partition_watch`.
"""

import asyncio
from collections.abc import Callable

from minibroker.client.cluster import Cluster
from minibroker.client.consumer.partition_watch import LOG_AFTER_MS, LOOK_EVERY_MS, log_again_after_ms
from minibroker.client.errors import MinibrokerError
from minibroker.client.producer.accumulator import Accumulator
from minibroker.client.producer.batches import Batch
from minibroker.runtime.deadline import DeadlineTimer


class DeliveryWatch:
    """Checks a producer's oldest batch every second, from its first topic on."""

    def __init__(
        self, accumulator: Accumulator, cluster: Cluster, obstacle: Callable[[Batch], MinibrokerError | None]
    ) -> None:
        self._accumulator = accumulator
        self._cluster = cluster
        self._obstacle = obstacle
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
        if batch is None or now_ms - batch.created_ms < LOG_AFTER_MS:
            self._quiet_until_ms = 0.0  # the next problem is another one
            return
        if now_ms < self._quiet_until_ms:
            return
        self._cluster.request_refresh()  # a batch that waits for its producer id has no answer that would request it
        problem = self._obstacle(batch)
        if problem is not None:
            waited_ms = now_ms - batch.created_ms
            self._quiet_until_ms = now_ms + log_again_after_ms(waited_ms)
            partition = batch.topic_partition
            self._cluster.log.warning(
                "records for %s not acknowledged for %.0f s, still trying: %s", partition, waited_ms / 1000, problem
            )
