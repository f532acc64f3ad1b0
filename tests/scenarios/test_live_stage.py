"""How the live stage reads ZooKeeper's state when a scenario has ended."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from minibroker.protocol.znodes import PartitionState
from minibroker.runtime.ports import Coordination, CoordinationUnavailable, Stat
from minibroker.scenarios.catalogue import find_scenario
from minibroker.scenarios.live import stage as live_stage
from minibroker.scenarios.live.stage import LiveStage
from minibroker.scenarios.staging.scenario import LEADER_EPOCH

STATE = PartitionState(leader=1, leader_epoch=2, controller_epoch=1, isr=[1, 2])


class ReconnectingObserver:
    """Has no connection for the first `refusals` requests."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals

    async def get(self, path: str) -> tuple[bytes, Stat | None]:
        if self.refusals:
            self.refusals -= 1
            raise CoordinationUnavailable(f"get {path}: no connection to ZooKeeper")
        return STATE.encode(), None


def stage_of(directory: Path, refusals: int) -> LiveStage:
    variant = find_scenario("two-rounds").variants[0]
    stage = LiveStage(variant.setup, LEADER_EPOCH, cast(Any, lambda step: None), directory, lambda words: None)
    stage.poll_seconds = 0
    stage._observer = cast(Coordination, ReconnectingObserver(refusals))
    return stage


def test_the_state_at_the_end_waits_for_an_observer_that_reconnects(tmp_path: Path) -> None:
    """After a scenario that stops ZooKeeper the observer was once still reconnecting, and the audit had no state."""
    assert asyncio.run(stage_of(tmp_path, refusals=3).state_at_the_end()) == STATE


def test_an_observer_that_does_not_reconnect_ends_the_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_stage, "RECONNECTED_WITHIN_SECONDS", 0.0)
    with pytest.raises(CoordinationUnavailable):
        asyncio.run(stage_of(tmp_path, refusals=1_000_000).state_at_the_end())
