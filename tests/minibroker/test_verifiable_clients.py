"""`minibroker verifiable-producer` and `verifiable-consumer`: what they say on stderr, without a cluster."""

import asyncio
import errno
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from minibroker.client.errors import ClusterUnreachable
from minibroker.commands.verifiable_consumer import verifiable_consumer
from minibroker.commands.verifiable_producer import verifiable_producer


@pytest.mark.parametrize(("command", "client"), [(verifiable_producer, "Producer"), (verifiable_consumer, "Consumer")])
def test_a_warning_of_the_client_goes_to_stderr(monkeypatch: pytest.MonkeyPatch, command: Any, client: str) -> None:
    """They were silent for ten seconds without a cluster; their stdout is for events."""

    @asynccontextmanager
    async def unreachable(**_: object) -> AsyncIterator[None]:
        logging.getLogger("minibroker.client").warning("looking for a broker")
        raise ClusterUnreachable("no broker answered")
        yield

    monkeypatch.setattr(f"minibroker.client.{client.lower()}.{client.lower()}.{client}", unreachable)
    run = CliRunner().invoke(command, ["lines"])
    assert run.stderr == "warning: looking for a broker\nerror: no broker answered\n"
    assert (run.stdout, run.exit_code) == ("", 1)


RECORDS_MAX = 300_000


class EndlessProducer:
    """Acknowledges at once; ends the run itself, long after the first outcomes were to be printed."""

    taken = 0

    def __init__(self, **_: object) -> None:
        EndlessProducer.taken = 0

    async def __aenter__(self) -> "EndlessProducer":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def send(self, topic: str, *_: object) -> Any:
        await asyncio.sleep(0)
        EndlessProducer.taken += 1
        if EndlessProducer.taken == RECORDS_MAX:
            raise KeyboardInterrupt
        metadata = SimpleNamespace(topic=topic, partition=0, offset=self.taken)
        return SimpleNamespace(done=True, result=lambda: metadata)

    async def flush(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ENOSPC])
def test_a_producer_whose_output_fails_writes_no_more(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """`verifiable-producer lines | head -1` filled the cluster and its own memory, without a word."""

    def fails(name: str, **_: object) -> None:
        if name == "producer_send_success":
            raise OSError(number, "the output fails")

    monkeypatch.setattr("minibroker.client.producer.producer.Producer", EndlessProducer)
    monkeypatch.setattr("minibroker.commands.verifiable_producer.print_event", fails)
    run = CliRunner().invoke(verifiable_producer, ["lines"])  # run_command_line makes 0 of a closed pipe
    assert run.exit_code == 1
    assert EndlessProducer.taken < RECORDS_MAX
