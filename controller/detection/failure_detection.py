"""When a broker is declared failed before its ZooKeeper session ends. Pure.

Owns: what the controller concludes from liveness connections that break (`liveness_connection`) and from confirmations
(`failure_inquiry`). Leaves to others: elections. A failed broker is unregistered, and everything else follows from
its registration being gone, exactly as when its session ends (`steps`).

Theory (docs/decisions/0011). Leader epochs alone do not make an early election safe: an old leader that is alive would
go on acknowledging acks=1, serving stale reads and naming itself leader. So the registration is removed *before* any
election; a broker serves only while it is registered, and its own watch reports the removal. The conditions are a
liveness connection that was held and broke, an address that refuses, and a second broker that is refused, too. The
mistake to fear is a fault of our own network, which breaks every connection at once: so a controller that loses most of
its liveness connections within a moment suspects no broker.
"""

from minibroker.controller.core.controller_state import ControllerState
from minibroker.controller.core.events import (
    BrokerRefused,
    ConfirmFailure,
    ControllerEffect,
    FailureConfirmed,
    FailureUnconfirmed,
    LivenessConnectionHeld,
    LivenessConnectionLost,
    Report,
    Unregister,
)
from minibroker.protocol.events.controller_events import (
    BrokerFailureConfirmed,
    BrokerFailureNotConfirmed,
    ControllerDoubtsNetwork,
)
from minibroker.protocol.ids import BrokerId

DOUBT_WINDOW_SECONDS = 2.0
"""Connections lost within this time count as lost together: longer than one machine needs to end its processes one
after the other, shorter than the time between unrelated failures."""
CONFIRMERS_MAX = 3
"""Asked at once; others are asked when none of these confirms. One confirmation is enough."""


def on_liveness_connection_lost(state: ControllerState, event: LivenessConnectionLost) -> list[ControllerEffect]:
    """Note the loss, and report it if this controller now doubts its own network."""
    if not state.is_registered_as(event.broker_id, event.broker_epoch):
        return []
    had_doubts = doubts_itself(state)
    state.lost_connections = {**state.lost_connections, event.broker_id: event.at_seconds}
    if had_doubts or not doubts_itself(state):
        return []
    return [Report(event=ControllerDoubtsNetwork(brokers=sorted(state.lost_connections), seconds=DOUBT_WINDOW_SECONDS))]


def on_liveness_connection_held(state: ControllerState, event: LivenessConnectionHeld) -> list[ControllerEffect]:
    """The broker is alive: it is no longer suspected."""
    if state.is_registered_as(event.broker_id, event.broker_epoch):
        state.lost_connections = {each: at for each, at in state.lost_connections.items() if each != event.broker_id}
    return []


def on_broker_refused(state: ControllerState, event: BrokerRefused) -> list[ControllerEffect]:
    """Ask other brokers, unless this one is stopping, or this controller doubts its own network."""
    if not _is_suspected(state, event.broker_id, event.broker_epoch):
        return []
    others = [each for each in _others(state) if each != event.broker_id and each not in state.lost_connections]
    if not others:
        report = Report(event=BrokerFailureNotConfirmed(broker=event.broker_id))
        return [report] if event.attempt == 1 else []
    confirmers = tuple(state.brokers[each] for each in choose_confirmers(others, event.attempt))
    return [ConfirmFailure(broker=state.brokers[event.broker_id], confirmers=confirmers, attempt=event.attempt)]


def on_failure_confirmed(state: ControllerState, event: FailureConfirmed) -> list[ControllerEffect]:
    """Fence the broker: remove its registration, if it is still the suspected one."""
    if not _is_suspected(state, event.broker_id, event.broker_epoch):
        return []
    failure = BrokerFailureConfirmed(
        broker=event.broker_id, confirmer=event.confirmer_id, address=event.address, took_ms=event.took_ms
    )
    report = Report(event=failure)
    return [report, Unregister(broker_id=event.broker_id, broker_epoch=event.broker_epoch)]


def on_failure_unconfirmed(state: ControllerState, event: FailureUnconfirmed) -> list[ControllerEffect]:
    """Report it once; the liveness connection reports further refusals."""
    if event.attempt > 1 or not _is_suspected(state, event.broker_id, event.broker_epoch):
        return []
    return [Report(event=BrokerFailureNotConfirmed(broker=event.broker_id, is_asked_again=True))]


def choose_confirmers(candidates: list[BrokerId], attempt: int) -> list[BrokerId]:
    """A few of these, others at each attempt (from 1), so that one paused broker does not block the rest."""
    if not candidates:
        return []
    ordered = sorted(candidates)
    at = (attempt - 1) * CONFIRMERS_MAX % len(ordered)
    return [*ordered[at:], *ordered[:at]][:CONFIRMERS_MAX]


def doubts_itself(state: ControllerState) -> bool:
    """Whether more than half of the liveness connections were lost within one window, and are still lost."""
    others = _others(state)
    lost_at = sorted(state.lost_connections[each] for each in others if each in state.lost_connections)
    together = (sum(0 <= other - first <= DOUBT_WINDOW_SECONDS for other in lost_at) for first in lost_at)
    return 2 * max(together, default=0) > len(others)


def _is_suspected(state: ControllerState, broker_id: BrokerId, broker_epoch: int) -> bool:
    """This registration's connection is lost, the broker is not shutting down, and our network is not in doubt."""
    return (
        state.is_registered_as(broker_id, broker_epoch)
        and broker_id in state.lost_connections
        and broker_id not in state.shutting_down
        and not doubts_itself(state)
    )


def _others(state: ControllerState) -> list[BrokerId]:
    """Brokers whose liveness connections count: not our own, and none that is stopping."""
    excluded = {state.settings.controller_id, *state.shutting_down}
    return [each for each in sorted(state.brokers) if each not in excluded]
