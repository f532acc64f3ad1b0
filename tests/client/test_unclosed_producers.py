"""A producer that a program forgets to close: what it had taken may be lost, so it says so when it is collected."""

from __future__ import annotations

import gc
import logging

import pytest

from minibroker.client import default_runtime
from minibroker.client.producer.producer import Producer
from minibroker.runtime.ports import Runtime
from tests.client.fake_cluster import FakeCluster


def collected(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, *, records: int, closed: bool = False, forked: bool = False
) -> None:
    """A program that takes records, ends, and is collected."""

    async def main(runtime: Runtime) -> None:
        producer = Producer(bootstrap_servers=cluster.bootstrap, client_id="billing", linger_ms=5_000)
        with monkeypatch.context() as patch:
            patch.setattr(default_runtime, "open_default", lambda: runtime)
            await producer.start()
        for _ in range(records):
            await producer.send("t", b"v")
        if closed:
            await producer.close()
        if forked:
            monkeypatch.setattr(default_runtime, "process_id", -1)

    cluster.run(main)
    vars(cluster).clear()
    gc.collect()


@pytest.mark.parametrize(
    ("records", "told"), [(1, "1 record that it had taken has"), (2, "2 records that it had taken have")]
)
def test_records_that_may_be_lost_are_told(
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    records: int,
    told: str,
) -> None:
    """They went without a word, with exit code 0."""
    with pytest.warns(ResourceWarning, match="billing: a producer was never closed: use `async with"):
        collected(cluster, monkeypatch, records=records)
    (line,) = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert line.startswith("billing: a producer was never closed")
    assert f"; {told} no outcome, and may be lost" in line


def test_one_that_holds_nothing_is_a_warning_for_developers_only(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.warns(ResourceWarning, match="never closed"):
        collected(cluster, monkeypatch, records=0)
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.parametrize(("closed", "forked"), [(True, False), (False, True)])
@pytest.mark.filterwarnings("error::ResourceWarning")
def test_one_that_was_closed_and_the_copy_of_a_forked_process_are_silent(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, *, closed: bool, forked: bool
) -> None:
    collected(cluster, monkeypatch, records=1, closed=closed, forked=forked)


@pytest.mark.filterwarnings("error::ResourceWarning")
def test_one_that_never_began_is_silent() -> None:
    Producer()
    with pytest.raises(TypeError):
        Producer(nonsense=1)  # type: ignore[arg-type]  # as untyped programs do
    gc.collect()
