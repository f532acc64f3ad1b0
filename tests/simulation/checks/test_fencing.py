"""The judge of hardening rule 11, over a cluster in which one thing is done that no broker would do."""

import asyncio
import re
from collections.abc import Awaitable, Callable

import pytest

from minibroker.protocol.znodes import CONTROLLER, broker_path
from minibroker.runtime.ports import DeleteOp
from minibroker.simulation.checks.fencing import RULE, FencingJudge
from minibroker.simulation.checks.truth import Truth
from minibroker.simulation.cluster import SimulatedCluster

OLD_SECONDS = 5.0
"""Nobody acts any more on what was so before the brokers registered."""


class Life:
    """Three brokers and no topic; clients see nothing of it."""

    def __init__(self) -> None:
        self.cluster = SimulatedCluster(1, settings={"zookeeper.session.timeout.ms": "10000"})
        self.truth = Truth(self.cluster, {})
        self.judge = FencingJudge(self.cluster, self.truth)
        self.told: list[str] = []
        self.judge.listeners.append(self.told.append)

    def run(self, act: Callable[["Life"], Awaitable[None]]) -> list[str]:
        """What was found, each as its first line."""
        self.cluster.world.run(self._live(act), seconds_max=120)
        assert {each.invariant for each in self.truth.findings} <= {RULE}
        return [each.text for each in self.truth.findings]

    async def _live(self, act: Callable[["Life"], Awaitable[None]]) -> None:
        with self.judge.listening():
            self.cluster.start_all()
            await self.cluster.until_ready()
            await asyncio.sleep(OLD_SECONDS)
            await act(self)

    @property
    def controller(self) -> int:
        found = self.cluster.controller()
        assert found is not None
        return found

    def others(self, *broker_ids: int) -> list[int]:
        return [b for b in self.cluster.broker_ids if b not in broker_ids]

    def write(self, writer: int, *paths: str) -> None:
        """As if that broker had removed these nodes, in one multi."""
        [session] = self.cluster.world.zookeeper.sessions_of(f"broker-{writer}")
        self.cluster.world.zookeeper.tree.transact([DeleteOp(path=path) for path in paths], session)

    def reject(self, victim: int, *others: int) -> None:
        for other in others:
            self.cluster.world.network.reject(f"broker-{other}", f"broker-{victim}")


async def _a_whim(life: Life) -> None:
    victim = life.others(life.controller)[0]
    life.write(life.controller, broker_path(victim))


async def _one_refusal(life: Life) -> None:
    controller = life.controller
    victim = life.others(controller)[0]
    life.reject(victim, controller)
    await asyncio.sleep(0.5)
    life.write(controller, broker_path(victim))


async def _a_vacated_office(life: Life) -> None:
    life.write(life.others(life.controller)[0], CONTROLLER)


@pytest.mark.parametrize(
    ("act", "found"),
    [
        (_a_whim, ["one removed the registration of another and was not refused by it"]),
        (_one_refusal, ["one removed the registration of another, and nobody confirmed it"]),
        (
            _a_vacated_office,
            ["one took the office of another in pieces", "one deposed another and was not refused by it"],
        ),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_nobody_is_fenced_or_deposed_without_evidence(act: Callable[[Life], Awaitable[None]], found: list[str]) -> None:
    texts = [re.sub(r"^broker-\d", "one", re.sub(r" broker-\d", " another", text)) for text in Life().run(act)]
    assert texts == found


async def _killed_broker(life: Life) -> None:
    victim = life.others(life.controller)[0]
    life.cluster.kill(victim)
    await life.cluster.until(lambda: life.judge.counts["broker fenced by evidence"] == 1, 1, "its end")


async def _killed_controller(life: Life) -> None:
    life.cluster.kill(life.controller)
    await life.cluster.until(lambda: life.judge.counts["controller succeeded by evidence"] == 1, 1, "its successor")


async def _accused_broker(life: Life) -> None:
    victim = life.others(life.controller)[0]
    life.reject(victim, *life.others(victim))
    await life.cluster.until(lambda: life.judge.counts["broker fenced falsely: it lives"] == 1, 1, "its removal")
    await life.cluster.until(
        lambda: broker_path(victim) in life.cluster.world.zookeeper.tree.nodes, 5, "its new registration"
    )


async def _silent_broker(life: Life) -> None:
    victim = life.others(life.controller)[0]
    life.cluster.world.network.isolate(f"broker-{victim}")
    await asyncio.sleep(5)
    assert not life.judge.counts


@pytest.mark.parametrize("act", [_killed_broker, _killed_controller, _accused_broker, _silent_broker])
def test_what_the_cluster_does_on_evidence_true_and_false_is_counted_and_no_finding(
    act: Callable[[Life], Awaitable[None]],
) -> None:
    life = Life()
    assert life.run(act) == []
    assert bool(life.told) == bool(life.judge.counts)
