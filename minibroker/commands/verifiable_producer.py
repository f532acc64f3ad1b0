"""`minibroker verifiable-producer`: numbered records, one JSON event per line, like Kafka's tool of that name."""

import time
from collections import deque
from typing import TYPE_CHECKING, Any

import click

from minibroker.command_line import (
    EXIT_COULD_NOT,
    EXIT_FINE,
    CommandFailed,
    bootstrap_option,
    json_option,
    run_async,
    timeout_option,
    topics_option,
)
from minibroker.records.verifiable_output import print_event

if TYPE_CHECKING:
    import asyncio

    from minibroker.client.producer.deliveries import Delivery
    from minibroker.client.producer.producer import Producer


@click.command()
@bootstrap_option
@topics_option(one=True)
@click.option("-n", "--max-messages", type=int, default=-1, help="[default: until Ctrl-C]")
@click.option("--throughput", type=int, default=-1, help="Records per second.  [default: as fast as possible]")
@click.option("--acks", type=click.Choice(["all", "-1", "1", "0"]), default="all", show_default=True)
@click.option("--value-prefix", type=int, help="Values are PREFIX.NUMBER instead of NUMBER.")
@click.option("--repeating-keys", type=click.IntRange(1), help="Keys 0 to N-1, repeated.  [default: none]")
@timeout_option(120, "Time for each record to be acknowledged.")
@json_option
def verifiable_producer(
    bootstrap_servers: str,
    topics: tuple[str, ...],
    max_messages: int,
    throughput: int,
    acks: str,
    value_prefix: int | None,
    repeating_keys: int | None,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Write numbered records; one JSON event per line.

    Events: startup_complete, producer_send_success, producer_send_error, shutdown_complete, tool_data. The output is
    always JSON. Ctrl-C ends it cleanly. Exit code 1 unless every record was acknowledged.
    """
    source = _Records(max_messages, throughput, value_prefix, repeating_keys)
    run = _Run(topics[0], source)
    try:
        run_async(run.whole(bootstrap_servers, acks, timeout_s), fast_loop=True)
    except KeyboardInterrupt:
        pass  # the normal end of an endless run
    print_event("shutdown_complete")
    run.print_tool_data(throughput)
    return EXIT_FINE if run.acknowledged == run.sent else EXIT_COULD_NOT


class _Records:
    """The records to write, and when."""

    def __init__(self, limit: int, throughput: int, prefix: int | None, repeating_keys: int | None) -> None:
        self._limit = limit
        self._throughput = throughput
        self._prefix = "" if prefix is None else f"{prefix}."
        self._keys = repeating_keys
        self._number = 0

    def next(self) -> tuple[str | None, str] | None:
        if self._limit >= 0 and self._number >= self._limit:
            return None
        number, self._number = self._number, self._number + 1
        key = None if self._keys is None else str(number % self._keys)
        return key, f"{self._prefix}{number}"

    def wait_s(self, elapsed_s: float) -> float:
        return 0.0 if self._throughput <= 0 else max(0.0, self._number / self._throughput - elapsed_s)


class _Run:
    """Sends records, and prints the outcome of each in the order of sending."""

    def __init__(self, topic: str, records: _Records) -> None:
        self.sent = 0
        self.acknowledged = 0
        self._topic = topic
        self._records = records
        self._started = time.monotonic()
        self._waiting: deque[tuple[Delivery, str | None, str]] = deque()

    async def whole(self, servers: str, acks: str, timeout_s: float) -> None:
        import asyncio

        from minibroker.client.errors import MinibrokerError
        from minibroker.client.producer.producer import Producer
        from minibroker.opened_client import opened

        timeout_ms = max(1, round(timeout_s * 1000))
        producer = Producer(
            bootstrap_servers=servers,
            client_id="minibroker-verifiable-producer",
            acks=0 if acks == "0" else 1 if acks == "1" else "all",
            delivery_timeout_ms=timeout_ms,
            max_block_ms=timeout_ms,
            linger_ms=min(5, timeout_ms),
            bootstrap_timeout_ms=min(10_000, timeout_ms),
        )
        try:
            async with opened(producer, servers):
                print_event("startup_complete")
                printing = asyncio.create_task(self._print_regularly())
                try:
                    await self._send(producer, printing)
                finally:
                    printing.cancel()
                    await self._finish(producer)
        except MinibrokerError as error:
            raise CommandFailed(str(error)) from None

    async def _send(self, producer: "Producer", printing: "asyncio.Task[None]") -> None:
        import asyncio

        from minibroker.client.errors import MinibrokerError

        self._started = time.monotonic()
        while (record := self._records.next()) is not None:
            if printing.done():
                await printing  # raises why: the reader of the output has ended, or its disk is full
            key, value = record
            try:
                delivery = await producer.send(self._topic, value.encode(), None if key is None else key.encode())
            except MinibrokerError as error:
                self.sent += 1
                self._print_error(key, value, error)
                continue
            self.sent += 1
            self._waiting.append((delivery, key, value))
            pause_s = self._records.wait_s(time.monotonic() - self._started)
            if pause_s:
                await asyncio.sleep(pause_s)

    async def _print_regularly(self) -> None:
        import asyncio

        while True:
            self._print_outcomes()
            await asyncio.sleep(0.02)

    async def _finish(self, producer: "Producer") -> None:
        """Wait for the outcomes; after Ctrl-C for one second at most."""
        import asyncio

        from minibroker.client.errors import MinibrokerError

        task = asyncio.current_task()
        stopping = task is not None and task.cancelling() > 0
        try:
            await producer.flush(1_000 if stopping else None)
        except MinibrokerError:
            pass  # each record prints its own error
        self._print_outcomes()

    def _print_outcomes(self) -> None:
        from minibroker.client.errors import MinibrokerError

        while self._waiting and self._waiting[0][0].done:
            delivery, key, value = self._waiting.popleft()
            try:
                metadata = delivery.result()
            except MinibrokerError as error:
                self._print_error(key, value, error)
                continue
            self.acknowledged += 1
            place = {"topic": metadata.topic, "partition": metadata.partition, "offset": metadata.offset}
            print_event("producer_send_success", **place, key=key, value=value)

    def _print_error(self, key: str | None, value: str, error: Exception) -> None:
        facts: dict[str, Any] = {"exception": type(error).__name__, "message": str(error)}
        print_event("producer_send_error", topic=self._topic, key=key, value=value, **facts)

    def print_tool_data(self, throughput: int) -> None:
        seconds = max(time.monotonic() - self._started, 1e-9)
        average = round(self.acknowledged / seconds, 3)
        totals = {"sent": self.sent, "acked": self.acknowledged}
        print_event("tool_data", **totals, target_throughput=throughput, avg_throughput=average)
