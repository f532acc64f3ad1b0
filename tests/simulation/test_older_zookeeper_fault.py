"""The swarm's fault that puts in an older copy of ZooKeeper's data: what it may do, and what its judge sees."""

import asyncio
import random
from collections.abc import Callable

import msgspec
import pytest

from minibroker.broker.membership.noted_changes import NotedChanges
from minibroker.simulation.swarm.choices import NOTHING_DRAWN, is_drawn
from minibroker.simulation.swarm.faults import older_zookeeper
from minibroker.simulation.swarm.faults.fault_injector import FaultInjector
from minibroker.simulation.swarm.faults.older_zookeeper import OlderZooKeeper
from minibroker.simulation.swarm.options import (
    ALL_HAVE_NOTED,
    DISK_THREADS_SHARE,
    OLDER_ZOOKEEPER,
    OLDER_ZOOKEEPER_SHARE,
    ONE_WAS_DOWN,
)
from minibroker.simulation.swarm.run import run_seed
from tests.simulation.test_disk_faults import whole
from tests.simulation.test_promise import PARTITION, under_faults

SEEDS = range(6)
"""Of the sequence: both kinds come."""


async def nothing(*_: object) -> None:
    """In place of what a mutant leaves out."""


def play(seed: int, look: Callable[[FaultInjector], None]) -> None:
    """The sequence in a whole cluster under load, after a copy was made and a broker was killed and started."""

    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        working = asyncio.create_task(injector.workload.run())
        sequence = OlderZooKeeper(injector, random.Random(seed))
        sequence._copy()
        leader = injector.leader(PARTITION)
        assert leader is not None
        injector.bounce(leader)
        await whole(injector)
        await sequence.play()
        look(injector)
        await whole(injector)
        working.cancel()

    under_faults(case)


def test_no_broker_that_has_noted_a_change_starts_on_a_copy_without_it() -> None:
    kinds: set[str] = set()

    def look(injector: FaultInjector) -> None:
        assert injector.reference.findings == []
        assert not injector.world.crashes
        for kind in injector.injected:  # none where two brokers may know of no change
            kinds.add(kind)
            refusals = injector.counts["refuses the older copy"]
            assert refusals >= {f"cluster {ALL_HAVE_NOTED}": 3, f"cluster {ONE_WAS_DOWN}": 2}[kind]

    for seed in SEEDS:
        play(seed, look)
    assert kinds == {f"cluster {each}" for each in OLDER_ZOOKEEPER}


def test_broker_that_starts_on_the_copy_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NotedChanges, "require_known", nothing)

    def look(injector: FaultInjector) -> None:
        found = injector.reference.findings[0]
        assert found.invariant == "I3"
        assert "starts on a copy of ZooKeeper's data that lacks changes which it has noted" in found.text
        injector.reference.findings.clear()

    play(1, look)


def test_broker_that_notes_nothing_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NotedChanges, "_count_changes", nothing)

    def look(injector: FaultInjector) -> None:
        texts = [found.text for found in injector.reference.findings]
        assert any("has seen a change that the copy lacks, and has not noted it" in text for text in texts)
        assert not injector.injected, "nothing is promised where no broker knows"

    play(1, look)


def test_killed_broker_that_noted_no_change_while_it_ran_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clean stop notes them still, so not every run shows it."""

    async def wait(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(NotedChanges, "keep", wait)
    texts: list[str] = []

    def look(injector: FaultInjector) -> None:
        texts.extend(found.text for found in injector.reference.findings)

    for seed in SEEDS:
        play(seed, look)
    assert any("has seen a change that the copy lacks, and has not noted it" in text for text in texts)


def test_broker_that_stops_before_it_is_back_in_zookeeper_need_not_have_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 17480827. Its marker of a clean stop proves nothing then (decision 0032)."""
    monkeypatch.setattr(older_zookeeper, "ONE_WAS_DOWN_SHARE", 0.0)
    monkeypatch.setattr(older_zookeeper, "BEFORE_THE_END", (0.0,))
    stopped: list[int] = []

    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        await asyncio.sleep(older_zookeeper.NOTED_SECONDS)
        sequence = OlderZooKeeper(injector, random.Random(1))
        sequence._copy()
        injector.zookeeper.stop()
        await asyncio.sleep(4.0)  # all are fenced by then
        injector.zookeeper.start()
        await sequence.play()
        assert injector.reference.findings == []
        stopped.extend(sequence._clean)
        await whole(injector)

    under_faults(case)
    assert stopped


def test_broker_that_a_slow_disk_held_need_not_have_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call to a disk that was slow when it began lasts on after the faults, and nothing of its process runs."""
    monkeypatch.setattr(older_zookeeper, "ONE_WAS_DOWN_SHARE", 0.0)
    monkeypatch.setattr(older_zookeeper, "BEFORE_THE_END", (4.0,))

    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        await asyncio.sleep(older_zookeeper.NOTED_SECONDS)
        sequence, leader = OlderZooKeeper(injector, random.Random(1)), injector.leader(PARTITION)
        sequence._copy()
        assert leader is not None
        held = next(b for b in injector.others(leader) if b != injector.cluster.controller())
        loop = injector.world.loop
        loop.call_soon(loop.charge, 20.0, context=injector.world.process(f"broker-{held}").context)
        await asyncio.sleep(0.1)
        injector.bounce(leader)
        await asyncio.sleep(0.5)
        await sequence.play()
        assert injector.reference.findings == []

    under_faults(case)


def test_leader_on_the_copy_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond what is promised: no broker knows of a change that the copy lacks."""
    monkeypatch.setattr(NotedChanges, "require_known", nothing)
    monkeypatch.setattr(OlderZooKeeper, "_judge_notes", lambda self, older: {1, 2, 3})
    monkeypatch.setattr(OlderZooKeeper, "_is_promised", lambda self, older, unaware: True)

    def look(injector: FaultInjector) -> None:
        assert any("a broker leads on an older copy" in found.text for found in injector.reference.findings)

    play(1, look)


def test_states_of_a_copy_follow_no_others() -> None:
    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        copy, before = injector.zookeeper.copied_data(), injector.state(PARTITION)
        assert before is not None
        injector.kill(before.leader)
        await injector.wait(lambda: injector.leader(PARTITION) not in (None, before.leader), 10.0)
        for broker_id in injector.cluster.alive():
            injector.kill(broker_id)
        elections = injector.reference.elections
        injector.zookeeper.put_in(copy)
        after = injector.state(PARTITION)
        assert after is not None
        assert (after.leader, after.leader_epoch, after.version) == (before.leader, before.leader_epoch, before.version)
        assert injector.reference.elections == elections
        assert injector.reference.findings == []

    under_faults(case)


@pytest.mark.parametrize("share", [OLDER_ZOOKEEPER_SHARE, DISK_THREADS_SHARE])
def test_a_share_of_the_seeds_draws_it_unless_the_caller_chooses(share: float) -> None:
    drawn = sum(is_drawn(random.Random(seed), share, None) for seed in range(2_000))
    assert 0.7 < drawn / 2_000 / share < 1.3
    assert is_drawn(random.Random(1), share, True)
    assert not is_drawn(random.Random(1), share, False)


def test_seed_is_one_run_and_another_one_with_an_older_copy() -> None:
    def hash_of(older_zookeeper: bool | None) -> str:
        choices = msgspec.structs.replace(NOTHING_DRAWN, older_zookeeper=older_zookeeper)
        return run_seed(4, choices=choices).trace_hash

    with_copy = hash_of(True)
    assert with_copy == hash_of(True)
    assert with_copy != hash_of(False)
    assert hash_of(None) == hash_of(False), "a seed that does not draw it"
