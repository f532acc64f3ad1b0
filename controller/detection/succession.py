"""Failure detection of the active controller by a candidate: hold a connection to it, and succeed it when it fails.

Owns: the conditions under which the controller's process counts as failed, for one candidate. Leaves to others: the
multi that deposes it (`controller_election.succeed`), and the work of the new controller.

Theory (docs/decisions/0011). Nothing supervises the controller, so every candidate watches it as the controller watches
brokers: a connection that was held and broke, an address that refuses, another live broker that is refused, too. The
znodes are read again after the refusal, /controller_epoch first: this deposes exactly the controller whose connection
broke. Several candidates may try; the version of /controller_epoch lets one of them win.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from minibroker.controller.controller_election import Candidate, CurrentController
from minibroker.controller.detection.failure_detection import choose_confirmers
from minibroker.controller.detection.failure_inquiry import ConfirmerAddress, first_to_confirm
from minibroker.controller.detection.liveness_connection import LivenessEvents, hold_liveness_connection
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.events.controller_events import BrokerFailureConfirmed, BrokerFailureNotConfirmed
from minibroker.protocol.znodes import (
    BROKER_IDS,
    CONTROLLER,
    CONTROLLER_EPOCH,
    BrokerRegistration,
    ControllerNode,
    broker_path,
    parse_id,
    parse_number,
)
from minibroker.runtime.broker_dialer import BrokerDialer
from minibroker.runtime.observer import Observer
from minibroker.runtime.ports import Coordination, CoordinationUnavailable, NoNode

READ_AGAIN_SECONDS = 1.0
"""Pause while there is no controller to connect to: it is between two registrations."""
RETRY_SECONDS = 0.1
"""Pause while ZooKeeper cannot be asked."""

logger = logging.getLogger("minibroker.controller")


class Succession:
    """One per candidacy. The connection and its count of refusals survive repeated waits for the same controller."""

    def __init__(
        self,
        coordination: Coordination,
        dialer: BrokerDialer,
        candidate: Candidate,
        listener_name: str,
        on_refused: Callable[[int, int], None],
        observer: Observer,
    ) -> None:
        self._observer = observer
        self._coordination = coordination
        self._dialer = dialer
        self._candidate = candidate
        self._listener_name = listener_name
        self._on_refused = on_refused
        self._client_id = f"candidate-{candidate.broker_id}"
        self._current: CurrentController | None = None
        self._liveness: asyncio.Task[None] | None = None
        self._refusals = 0
        """Since the connection was lost; 0 while it is held."""
        self._refused = asyncio.Event()

    async def failure_of_active_controller(self) -> CurrentController:
        """Wait, without a limit, until the failure of the controller is confirmed. Raises SessionExpired."""
        while True:
            current = await self._current_controller()
            self._hold_connection_to(current)
            if current is None:
                await asyncio.sleep(READ_AGAIN_SECONDS)
                continue
            await self._refused.wait()
            self._refused.clear()
            found, others = await asyncio.gather(self._current_controller(), self._read_others(current))
            if found == current and self._refusals and await self._is_confirmed(current, others, self._refusals):
                return current

    def release(self) -> None:
        """Close the connection."""
        self._hold_connection_to(None)

    def _hold_connection_to(self, current: CurrentController | None) -> None:
        if current == self._current:
            return
        self._current = current
        self._refusals = 0
        if self._liveness is not None:
            self._liveness.cancel()
            self._liveness = None
        if current is not None:
            events = LivenessEvents(
                on_held=lambda: self._count(0), on_refused=partial(self._is_refused, current), on_silent=self._count
            )
            liveness = hold_liveness_connection(self._dialer.network, current.address, self._client_id, events)
            self._liveness = asyncio.create_task(liveness, name=f"liveness-of-controller-{current.broker_id}")

    def _is_refused(self, current: CurrentController, refusals: int) -> None:
        self._on_refused(current.broker_id, current.broker_epoch)
        self._count(refusals)

    def _count(self, refusals: int) -> None:
        self._refusals = refusals
        if refusals:
            self._refused.set()

    async def _is_confirmed(
        self, current: CurrentController, others: dict[int, ConfirmerAddress], attempt: int
    ) -> bool:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        asked = [others[each] for each in choose_confirmers(sorted(others), attempt)]
        host, port = current.address
        confirmer_id = await first_to_confirm(
            self._dialer, self._client_id, asked, current.broker_id, current.broker_epoch
        )
        if confirmer_id is None:
            if attempt == 1:
                self._observer.notify(BrokerFailureNotConfirmed(broker=current.broker_id, is_controller=True))
            return False
        self._observer.notify(
            BrokerFailureConfirmed(
                broker=current.broker_id,
                confirmer=confirmer_id,
                address=f"{host}:{port}",
                took_ms=round((loop.time() - begun) * 1000),
                is_controller=True,
            )
        )
        return True

    # ------------------------------------------------------------------------------------------------------ reading
    async def _current_controller(self) -> CurrentController | None:
        """The controller; None if there is none, or its znodes are of two sessions. Waits for ZooKeeper."""
        while True:
            try:
                return await self._read()
            except CoordinationUnavailable:
                await asyncio.sleep(RETRY_SECONDS)

    async def _read(self) -> CurrentController | None:
        coordination = self._coordination
        try:
            epoch, epoch_stat = await coordination.get(CONTROLLER_EPOCH)  # first: see `controller_election`
            content, stat = await coordination.get(CONTROLLER)
            broker_id = ControllerNode.decode(content).brokerid
            node, node_stat = await coordination.get(broker_path(broker_id))
            listeners = BrokerRegistration.decode(node).listeners()
            controller_epoch = parse_number(epoch)
        except (NoNode, ProtocolError):
            return None
        if self._listener_name not in listeners or stat.ephemeral_owner != node_stat.ephemeral_owner:
            return None
        return CurrentController(
            broker_id=broker_id,
            broker_epoch=node_stat.czxid,
            address=listeners[self._listener_name],
            controller_epoch=controller_epoch,
            epoch_version=epoch_stat.version,
            controller_version=stat.version,
            registration_version=node_stat.version,
        )

    async def _read_others(self, current: CurrentController) -> dict[int, ConfirmerAddress]:
        """Registered brokers except ourselves and the controller, by id; none if ZooKeeper cannot be asked."""
        excluded = (current.broker_id, self._candidate.broker_id)
        try:
            names = await self._coordination.get_children(BROKER_IDS)
            asked = [name for name in names if name not in map(str, excluded)]
            found = await asyncio.gather(*(self._read_confirmer(name) for name in asked))
        except CoordinationUnavailable as error:
            logger.info("cannot find confirmers: %s", error)
            return {}
        return {confirmer.broker_id: confirmer for confirmer in found if confirmer is not None}

    async def _read_confirmer(self, name: str) -> ConfirmerAddress | None:
        """None also for a znode that is no registration: it must not hide the others."""
        try:
            broker_id = parse_id(name)
            content, _ = await self._coordination.get(broker_path(broker_id))
            address = BrokerRegistration.decode(content).listeners().get(self._listener_name)
        except (NoNode, ProtocolError):
            return None
        return None if address is None else ConfirmerAddress(broker_id=broker_id, address=address)
