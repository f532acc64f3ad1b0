"""The producers and the consumer of a scenario: the real client, on the ports of the stage.

Owns: records in flight, acknowledgements, and the notes about them. Leaves to others: what the brokers run on.
"""

import asyncio
from collections.abc import Callable

from minibroker.client.consumer.consumer import Consumer
from minibroker.client.errors import MinibrokerError
from minibroker.client.producer.deliveries import Delivery
from minibroker.client.producer.producer import Producer
from minibroker.protocol.files.acked_list import record_checksum
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.ports import Runtime
from minibroker.scenarios.staging.rows import shortened
from minibroker.scenarios.staging.scenario import TOPIC, Setup
from minibroker.scenarios.staging.stage import Acks, ScenarioFailed, SentBatch

PARTITION = TopicPartition(TOPIC, 0)
PRODUCER_REQUEST_TIMEOUT_MS = 30_000
READ_WITHIN_SECONDS = 30.0
POLL_SECONDS = 0.05


class StageClients:
    """`servers` returns the bootstrap servers of a new client, `runtime` its ports (None: the real ones)."""

    def __init__(
        self,
        setup: Setup,
        note: Callable[[str], None],
        servers: Callable[[], list[str]],
        runtime: Callable[[], Runtime | None],
    ) -> None:
        self.acknowledged: list[tuple[int, int]] = []
        """(offset, checksum of the whole record) of records acknowledged with acks=all."""
        self._setup = setup
        self._note = note
        self._servers = servers
        self._runtime = runtime
        self._producers: dict[Acks, Producer] = {}
        self._waiting: list[asyncio.Task[None]] = []

    async def open_producer(self, acks: Acks) -> None:
        """From now on this producer sends the records with these acks."""
        producer = Producer(
            bootstrap_servers=self._servers(),
            acks=acks,
            linger_ms=0,
            delivery_timeout_ms=self._setup.delivery_timeout_ms,
            request_timeout_ms=min(PRODUCER_REQUEST_TIMEOUT_MS, self._setup.delivery_timeout_ms),
            metadata_max_age_ms=self._setup.metadata_max_age_ms,
            runtime=self._runtime(),
        )
        await producer.start()
        self._producers[acks] = producer
        await producer.partitions_for(TOPIC)

    async def stop_waiting(self) -> None:
        """Cancel the waits for answers that will not come any more."""
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)

    async def produce(self, values: tuple[str, ...], acks: Acks, quietly: bool) -> SentBatch:
        """Send one batch; see Stage.produce."""
        producer, sending = self._producers[acks], SentBatch(values)
        deliveries = [await producer.send(TOPIC, value.encode(), partition=0) for value in values]
        self._waiting.append(asyncio.create_task(self._await_answers(sending, deliveries, acks, quietly)))
        return sending

    async def _await_answers(self, sending: SentBatch, deliveries: list[Delivery], acks: Acks, quietly: bool) -> None:
        try:
            found = [await delivery for delivery in deliveries]
        except MinibrokerError as error:
            sending.error = "no answer in time" if error.code is None else error.code.name
            self._note(f"producer: {sending.name} failed: {sending.error}")
            return
        assert found[0].offset is not None
        sending.offset = found[0].offset
        if acks == "all":
            self.acknowledged += [
                (sending.offset + i, record_checksum(each.timestamp_ms, None, value.encode(), ()))
                for i, (each, value) in enumerate(zip(found, sending.values, strict=True))
            ]
        at = f"offset {sending.offset}" if len(found) == 1 else f"offsets {sending.offset} to {found[-1].offset}"
        if not quietly:
            self._note(f"producer: {sending.name} acknowledged at {at} (acks={acks})")

    async def settled(self, sending: SentBatch, within_seconds: float) -> SentBatch:
        """Raises ScenarioFailed."""
        try:
            async with asyncio.timeout(within_seconds):
                while not sending.is_settled:  # noqa: ASYNC110  (polled like everything else on a stage)
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise ScenarioFailed(f"the producer has no answer for {sending.name} after {within_seconds:g} s") from None
        return sending

    async def read(self) -> list[str]:
        """All records that a consumer reads, from the beginning to the high watermark."""
        values: list[str] = []
        async with (
            asyncio.timeout(READ_WITHIN_SECONDS),
            Consumer(
                bootstrap_servers=self._servers(), auto_offset_reset="earliest", runtime=self._runtime()
            ) as consumer,
        ):
            consumer.assign([PARTITION])
            end = (await consumer.end_offsets([PARTITION]))[PARTITION]
            position = (await consumer.beginning_offsets([PARTITION]))[PARTITION]
            while position < end:
                for record in (await consumer.getmany(timeout_ms=500)).get(PARTITION, ()):
                    values.append((record.value or b"").decode())
                    position = record.offset + 1
        self._note(f"consumer: reads {shortened(values) or 'nothing'}")
        return values
