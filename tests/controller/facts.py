"""Short builders of a controller's state, for tests of its pure parts."""

from __future__ import annotations

from typing import Any

from minibroker.controller.core.controller_state import (
    ControllerSettings,
    ControllerState,
    Leadership,
    RegisteredBroker,
    ReplicaLog,
    Topic,
)
from minibroker.controller.core.events import ContinueWith, ControllerEffect, ControllerEvent
from minibroker.controller.core.steps import step
from minibroker.protocol.ids import TopicPartition

T0 = TopicPartition("lines", 0)


def broker(
    broker_id: int, epoch: int | None = None, incarnation: str | None = None, directory: str | None = None
) -> RegisteredBroker:
    """By default, broker 2 has epoch 20, incarnation i2 and log directory d2."""
    return RegisteredBroker(
        broker_id=broker_id,
        broker_epoch=10 * broker_id if epoch is None else epoch,
        incarnation_id=incarnation or f"i{broker_id}",
        directory_id=directory or f"d{broker_id}",
        listeners=(("INTERNAL", f"broker{broker_id}", 9092),),
    )


def leadership(
    leader: int | None,
    *isr: int,
    epoch: int = 5,
    version: int = 7,
    incarnations: dict[int, str] | None = None,
    is_recovering: bool = False,
) -> Leadership:
    found = {each: f"i{each}" for each in isr} if incarnations is None else incarnations
    return Leadership(
        leader=leader,
        leader_epoch=epoch,
        in_sync_replicas=isr,
        incarnations=tuple(found.items()),
        directories=tuple((each, f"d{each}") for each in isr),
        controller_epoch=1,
        partition_epoch=version,
        is_recovering=is_recovering,
    )


def log(end: int = 0, epoch: int = 5, whole_since: tuple[str, ...] = (), **others: Any) -> ReplicaLog:
    """A broker's report of its log of the partition."""
    return ReplicaLog(whole_since=frozenset(whole_since), last_epoch=epoch, log_end_offset=end, topic_id="t1", **others)


def cluster_state(
    *live: int | RegisteredBroker,
    replicas: tuple[int, ...] = (1, 2, 3),
    now: Leadership | None = None,
    unclean: bool = False,
    shutting_down: tuple[int, ...] = (),
    configs: dict[str, str] | None = None,
    logs: dict[int, ReplicaLog] | None = None,
) -> ControllerState:
    """One topic `lines` with one partition, and these live brokers, which have reported these logs."""
    brokers = [broker(each) if isinstance(each, int) else each for each in live]
    return ControllerState(
        settings=ControllerSettings(controller_id=1, unclean_leader_election=unclean),
        controller_epoch=2,
        brokers={each.broker_id: each for each in brokers},
        shutting_down=frozenset(shutting_down),
        topics={"lines": Topic(topic_id="t1", assignment={0: replicas}, configs=configs or {})},
        leaderships={} if now is None else {T0: now},
        logs={each: {T0: found} for each, found in (logs or {}).items()},
    )


def all_effects(state: ControllerState, event: ControllerEvent) -> list[ControllerEffect]:
    """Of this event and of what it continues with, where nothing is written in between."""
    found: list[ControllerEffect] = []
    for effect in step(state, event):
        found += all_effects(state, effect.event) if isinstance(effect, ContinueWith) else [effect]
    return found
