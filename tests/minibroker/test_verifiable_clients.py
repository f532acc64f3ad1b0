"""`minibroker verifiable-producer` and `verifiable-consumer`: what they say on stderr, without a cluster."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
