"""A partition whose replicas are well must acknowledge in bounded time: the checker, told of sends by hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from minibroker.chaos.history.client_history import EventLog, Sent
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.history.acknowledging import AcknowledgingChecker, acknowledging_seconds

A = TopicPartition("a", 0)
SETTINGS = {
    "zookeeper.session.timeout.ms": "1000",
    "request.timeout.ms": "1000",
    "replica.lag.time.max.ms": "1000",
}
BOUND_SECONDS = acknowledging_seconds(SETTINGS)
SAMPLE_SECONDS = 0.05


class Case:
    """One broker that is well all the time, and leads the only partition."""

    def __init__(self) -> None:
        self.loop = SimpleNamespace(elapsed=0.0)
        self.found: list[str] = []
        self.stability: Any = SimpleNamespace(since=0.0, fit={1})
        self.events = EventLog()
        cluster: Any = SimpleNamespace(
            world=SimpleNamespace(loop=self.loop), broker_ids=(1,), alive=lambda: [1], assignments=lambda: {A: (1,)}
        )
        reference: Any = SimpleNamespace(
            states=lambda: [SimpleNamespace(partition=A, members=(1,))],
            has_sound_member=lambda actual, fit: True,
            find=lambda invariant, *facts: self.found.append(invariant),
        )
        wanted: Any = SimpleNamespace(possible=lambda *asked: {"1"})
        stability: Any = self.stability
        self.checker = AcknowledgingChecker(cluster, reference, stability, self.events, wanted, SETTINGS)

    def send(self) -> int:
        return self.events.invoke(self.loop.elapsed, "all-1 acks=all", "send", (Sent(str(A), f"{len(self.found)}"),))

    def fail(self, operation: int) -> None:
        self.events.complete(self.loop.elapsed, operation, "info", error="given up")

    def pass_time(self, seconds: float) -> None:
        end = self.loop.elapsed + seconds
        while self.loop.elapsed < end:
            self.loop.elapsed += SAMPLE_SECONDS
            self.checker.sample()


@pytest.mark.invariant("I37")
@pytest.mark.parametrize(("seconds", "found"), [(BOUND_SECONDS - 1, []), (BOUND_SECONDS + 1, ["I37"])])
def test_a_send_must_be_acknowledged_in_time(seconds: float, found: list[str]) -> None:
    case = Case()
    case.send()
    case.pass_time(seconds)
    assert case.found == found


@pytest.mark.invariant("I37")
def test_nothing_waits_for_a_send_that_failed_at_once() -> None:
    """No sample may see it open: a record that is too large, or a producer that is closed with a timeout of 0."""
    case = Case()
    case.fail(case.send())
    case.pass_time(BOUND_SECONDS + 1)
    assert case.found == []


@pytest.mark.invariant("I37")
def test_the_bound_counts_from_the_last_fault() -> None:
    """A reset or a lost reply is over before the next sample, and what it leaves behind takes time."""
    case = Case()
    case.send()
    case.pass_time(BOUND_SECONDS - 1)
    case.stability.since = case.loop.elapsed
    case.pass_time(BOUND_SECONDS - 1)
    assert case.found == []
    case.pass_time(2)
    assert case.found == ["I37"]
