"""The order of rounds, the handling of failed ones, and that clusters are stopped whatever happens."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from minibroker.bench.case import Case, CaseFailed, Measurement, ProcessCost, Round
from minibroker.bench.document import Document
from minibroker.bench.peers.peer import Peer
from minibroker.bench.runner import Runner, RunPlan


class FakePeer:
    """A cluster that only records the calls."""

    version = "1"

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    async def make_topic(self, name: str) -> None: ...

    async def delete_topic(self, name: str) -> None: ...

    async def start(self) -> None:
        self.log.append(f"start {self.name}")

    async def stop(self, *, wipe: bool = True) -> None:
        self.log.append(f"stop {self.name}")

    def pids(self) -> dict[str, int]:
        return {}

    def configuration(self) -> dict[str, str]:
        return {}


class Stage:
    """A runner of one case that `play` runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log: list[str] = []
        self.told: list[str] = []
        self.failing: set[str] = set()
        self.runner: Runner

    async def play(self, peer: Peer, round: Round) -> Measurement:
        self.log.append(f"{peer.name} {round.label}")
        assert round.directory.is_dir()
        if f"{peer.name} {round.label}" in self.failing:
            raise CaseFailed("a record was lost")
        return Measurement({"mb_s": 1.0})

    async def run(
        self,
        alternations: int = 2,
        warm: bool = False,
        own_cluster: bool = False,
        peers: tuple[str, ...] = ("minibroker", "kafka"),
    ) -> Document:
        played = Case(
            name="case",
            title="a case",
            figure="mb_s",
            unit="MB/s",
            higher_is_better=True,
            about_s=1,
            run=self.play,
            own_cluster=own_cluster,
        )
        plan = RunPlan(
            cases=[played],
            peers=peers,
            alternations=alternations,
            volume=1.0,
            warm=warm,
            directory=self.directory,
        )
        self.runner = Runner(plan, self.make_peer, self.told.append, settle=lambda: None)
        await self.runner.run(lambda document: None)
        return self.runner.document()

    def make_peer(self, name: str, directory: Path) -> Peer:
        return cast(Peer, FakePeer(name, self.log))


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    for name in ("IDLE_SECONDS", "REST_SECONDS"):
        monkeypatch.setattr(f"minibroker.bench.runner.{name}", 0.001)
    return Stage(tmp_path)


async def test_the_first_peer_changes_with_every_alternation(stage: Stage) -> None:
    await stage.run()
    assert stage.log[2:6] == ["minibroker 0-0", "kafka 0-0", "kafka 1-0", "minibroker 1-0"]


async def test_a_failed_round_is_repeated_under_its_number_and_reported(stage: Stage) -> None:
    stage.failing = {"kafka 0-0"}
    document = await stage.run(alternations=1)
    (case,) = document.cases
    assert stage.log[2:5] == ["minibroker 0-0", "kafka 0-0", "kafka 0-1"]
    assert case.values("kafka") == {0: 1.0}
    assert [(failed.peer, failed.reason) for failed in case.failures] == [("kafka", "a record was lost")]


async def test_an_alternation_may_lack_a_peer(stage: Stage) -> None:
    stage.failing = {"kafka 0-0", "kafka 0-1"}
    (case,) = (await stage.run()).cases
    assert case.values("kafka") == {1: 1.0}
    assert case.values("minibroker") == {0: 1.0, 1: 1.0}


async def test_shared_clusters_run_for_the_whole_run(stage: Stage) -> None:
    await stage.run()
    assert stage.log[:2] == ["start minibroker", "start kafka"]
    assert sorted(stage.log[6:]) == ["stop kafka", "stop minibroker"]


async def test_a_case_starts_its_own_cluster_and_the_runner_stops_it(stage: Stage) -> None:
    await stage.run(alternations=1, own_cluster=True)
    assert stage.log == ["minibroker 0-0", "stop minibroker", "kafka 0-0", "stop kafka"]


@pytest.fixture
def busy_clusters(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """CPU seconds that the meters report for both clusters, one after the other; then none. Warming costs none."""
    spent: list[float] = []

    class FakeMeter:
        def __init__(self, pids: dict[str, int]) -> None: ...

        def read(self) -> list[ProcessCost]:
            stage.log.append("look")
            return [ProcessCost("broker", spent.pop(0) if spent else 0.0, 1.0)]

    async def no_load(*what: object, **parameters: object) -> None: ...

    monkeypatch.setattr("minibroker.bench.runner.Meter", FakeMeter)
    monkeypatch.setattr("minibroker.bench.runner.run_load", no_load)
    monkeypatch.setattr("minibroker.bench.runner.WARM_SECONDS_MAX", 0.0)
    return spent


async def test_a_round_begins_when_both_clusters_are_at_rest(stage: Stage, busy_clusters: list[float]) -> None:
    """A JVM that still compiles what its last round called would slow down the other peer."""
    for_idle = [0.0] * 4  # once until they are at rest, and once as the figure
    busy_clusters += [*for_idle, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    await stage.run(alternations=1, warm=True)
    played = [what for what in stage.log if not what.startswith("st")]
    assert played == ["look"] * (4 + 6) + ["minibroker 0-0", "look", "look", "kafka 0-0"]


async def test_one_cluster_is_not_called_both(stage: Stage, busy_clusters: list[float]) -> None:
    """`bench` alone said "waiting until both are at rest" and "stopping and minibroker"."""
    await stage.run(alternations=1, warm=True, peers=("minibroker",))
    assert "idle: waiting until minibroker is at rest" in stage.told
    assert "stopping minibroker" in stage.told


async def test_the_wait_for_a_cluster_that_never_rests_is_limited(
    stage: Stage, busy_clusters: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibroker.bench.runner.REST_SECONDS_MAX", 0.0)
    busy_clusters += [1.0] * 1_000
    document = await stage.run(alternations=1, warm=True)
    assert document.cases[0].values("kafka") == {0: 1.0}


async def test_clusters_are_stopped_when_the_run_is_cancelled(stage: Stage) -> None:
    hangs = asyncio.Event()

    async def hang(peer: Peer, round: Round) -> Measurement:
        hangs.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    stage.play = hang  # type: ignore[method-assign]
    running = asyncio.create_task(stage.run())
    async with asyncio.timeout(10):
        await hangs.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(stage.log[2:]) == ["stop kafka", "stop minibroker"]
