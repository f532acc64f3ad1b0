"""The controller candidate in every broker process: contest, serve as active controller, contest again.

Owns: the time between registration and the end of a session, and the entry point for requests. Leaves to others: how
this broker is registered (its owner reports it), and what happens inside an active controller.

Theory (replication rules, section 9; hardening rule 8). Being controller is bound to the ZooKeeper session, and the
owner of a session is the last to learn that it is over. So `is_active` also checks our own clock: past the deadline up
to which ZooKeeper certainly keeps the session, this controller answers NOT_CONTROLLER and sends nothing, even if it
does not know yet that it was deposed. The fence refuses what it might still write.
"""

import asyncio
import contextlib
import logging
import random
from typing import Protocol

import msgspec
from msgspec.structs import replace

from minibroker.controller.active_controller import ActiveController, ActiveControllerSettings
from minibroker.controller.administration import Administration
from minibroker.controller.cluster_reader import Deposed, Resigned
from minibroker.controller.controller_channels import ChannelSettings
from minibroker.controller.controller_election import Candidate, ControllerFence, contest, resign, succeed
from minibroker.controller.core.controller_state import ControllerSettings
from minibroker.controller.core.deletion import deletion_texts
from minibroker.controller.core.topic_creation import AcceptValue
from minibroker.controller.detection.succession import Succession
from minibroker.controller.operator_elections import elect_leaders
from minibroker.protocol.errors import ErrorCode, ProtocolError
from minibroker.protocol.events.controller_events import ControllerResigned
from minibroker.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch
from minibroker.protocol.wire.messages import (
    AlterPartitionRequest,
    ControlledShutdownRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    Request,
    Response,
)
from minibroker.runtime.broker_dialer import BrokerDialer
from minibroker.runtime.observer import UNOBSERVED, Observer
from minibroker.runtime.ports import Clock, Coordination, CoordinationError, SessionExpired

RETRY_SECONDS = 1.0
"""Pause after ZooKeeper gave an unexpected answer, or holds what cannot be parsed: an operator may be needed."""

RESIGNED_SECONDS = 2.0
"""A controller that has resigned lets others try first; they contest at once when the znode is gone."""

logger = logging.getLogger("minibroker.controller")


class ControllerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the broker's configuration that concerns its controller."""

    broker_id: int
    inter_broker_listener_name: str
    unclean_leader_election_enable: bool = False
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: int = 300
    leader_imbalance_per_broker_percentage: int = 10
    default_replication_factor: int = 1
    num_partitions: int = 1
    default_min_insync_replicas: int = 1
    request_timeout_ms: int = 30_000
    delete_topic_enable: bool = True
    answer_timeout_ms: int = 6_000
    """A leader that answers no order for this long is replaced: as long as a session, and at least six seconds."""
    detects_lost_connections: bool = True
    """broker.failure.detection=connection: do not wait for the session of a broker after a confirmed failure."""


def _any_value(name: str, value: str) -> str:
    return value


class OwnBroker(Protocol):
    """The broker of a candidate's process, as the candidate sees it."""

    def count_broker_failure(self) -> None:
        """A broker was unregistered before its session ended."""

    def note_refusal(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> None:
        """A watched controller, of this broker id and broker epoch, refused us."""

    def observe_removal(self) -> None:
        """A read of all registrations found that this broker's own is gone."""

    def highest_controller_epoch(self) -> ControllerEpoch:
        """The highest controller epoch in an order to this broker."""


class ControllerService:
    """One per broker process. The composer owns `run`; the other calls come from the same event loop."""

    def __init__(
        self,
        config: ControllerConfig,
        coordination: Coordination,
        dialer: BrokerDialer,
        own_broker: OwnBroker,
        clock: Clock,
        random: random.Random,
        accept_topic_value: AcceptValue,
        accept_broker_value: AcceptValue = _any_value,
        observer: Observer = UNOBSERVED,
    ) -> None:
        self._observer = observer
        self._config = config
        self._coordination = coordination
        self._dialer = dialer
        self._clock = clock
        self._random = random
        self._accept_topic_value = accept_topic_value
        self._accept_broker_value = accept_broker_value
        self._own_broker = own_broker
        self._candidate: Candidate | None = None
        self._candidacy_changed = asyncio.Event()
        self._campaign: asyncio.Task[None] | None = None
        self._fence: ControllerFence | None = None
        self._active: ActiveController | None = None
        self._administration: Administration | None = None

    # ------------------------------------------------------------------------------------------------ for the owner
    def registered(self, broker_epoch: int, incarnation_id: str) -> None:
        """This process's broker is registered (again, under a new session): contest now."""
        self._candidate = Candidate(
            broker_id=self._config.broker_id,
            incarnation_id=incarnation_id,
            highest_epoch=self._own_broker.highest_controller_epoch,
        )
        logger.debug("candidate with broker epoch %d", broker_epoch)
        self._candidacy_changed.set()

    def session_lost(self) -> None:
        """The session expired, or the registration was removed: resign at once."""
        if self._fence is not None:
            epoch = self._fence.controller_epoch
            reason = "this broker's registration is over"
            self._observer.notify(ControllerResigned(controller_epoch=epoch, reason=reason))
        self._candidate = None
        self._fence = None
        self._stop_serving()
        if self._campaign is not None:
            self._campaign.cancel()

    @property
    def is_active(self) -> bool:
        """Whether this is the active controller, as far as our own clock can tell."""
        return self._active is not None and asyncio.get_running_loop().time() < self._coordination.session_deadline

    @property
    def controller_epoch(self) -> int | None:
        """The epoch of the active controller in this process, if any."""
        return None if self._fence is None else self._fence.controller_epoch

    def ignored_nodes(self) -> dict[str, str]:
        """Znodes that this controller leaves alone, and why; none unless it is active."""
        return self._active.store.ignored_nodes.nodes() if self._active is not None and self.is_active else {}

    def topic_deletions(self) -> dict[str, str]:
        """Topics that are marked for deletion, each with a sentence about that; none unless this one is active."""
        return deletion_texts(self._active.state) if self._active is not None and self.is_active else {}

    async def run(self) -> None:
        """Run until cancelled. Raises only for bugs."""
        try:
            while True:
                await self._candidacy_changed.wait()
                self._candidacy_changed.clear()
                if self._candidate is None:
                    continue
                self._campaign = asyncio.create_task(self._contest_and_serve(self._candidate), name="controller")
                await asyncio.wait([self._campaign])
                if not self._campaign.cancelled():
                    self._campaign.result()
        finally:
            await self._end_cleanly()

    async def _end_cleanly(self) -> None:
        fence, self._fence = self._fence, None
        self._stop_serving()
        if self._campaign is not None:
            self._campaign.cancel()
            await asyncio.wait([self._campaign])
            error = None if self._campaign.cancelled() else self._campaign.exception()
            if error is not None:  # raised by `run`, unless that is being cancelled at this very moment
                logger.critical("the controller ended because of a bug", exc_info=error)
        if fence is not None:
            await resign(self._coordination, fence)

    def _stop_serving(self) -> None:
        self._active = None
        self._administration = None

    # ----------------------------------------------------------------------------------------------------- campaign
    async def _contest_and_serve(self, candidate: Candidate) -> None:
        """Run until the session is over; then the owner registers and calls `registered` again."""
        listener = self._config.inter_broker_listener_name
        succession = Succession(
            self._coordination, self._dialer, candidate, listener, self._own_broker.note_refusal, self._observer
        )
        try:
            while True:
                fence = await self._become_active(candidate, succession)
                succession.release()
                try:
                    await self._serve(fence)
                except* Deposed as deposed:
                    why = deposed.exceptions[0]
                    self._observer.notify(ControllerResigned(controller_epoch=fence.controller_epoch, reason=str(why)))
                self._fence = None
                self._stop_serving()
                if isinstance(why, Resigned):
                    await resign(self._coordination, fence)
                    await asyncio.sleep(RESIGNED_SECONDS)
        except SessionExpired:
            return
        finally:
            succession.release()

    async def _become_active(self, candidate: Candidate, succession: Succession) -> ControllerFence:
        """Wait, without a limit, until an election is won. Raises SessionExpired."""
        while True:
            changed = asyncio.Event()
            try:
                fence = await contest(self._coordination, self._clock, candidate, changed.set)
                if fence is None:
                    fence = await self._await_vacancy(candidate, succession, changed)
            except SessionExpired:
                raise
            except (ProtocolError, CoordinationError) as error:
                logger.error("cannot contest, trying again: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if fence is not None:
                return fence

    async def _await_vacancy(
        self, candidate: Candidate, succession: Succession, changed: asyncio.Event
    ) -> ControllerFence | None:
        """Wait until /controller may have changed, or its holder has failed and we have succeeded it."""
        if not self._config.detects_lost_connections:
            await changed.wait()
            return None
        change = asyncio.create_task(changed.wait(), name="controller-changed")
        failure = asyncio.create_task(succession.failure_of_active_controller(), name="failure-of-controller")
        try:
            await asyncio.wait([change, failure], return_when=asyncio.FIRST_COMPLETED)
            if changed.is_set():
                return None
            fence = await succeed(self._coordination, self._clock, candidate, failure.result())
            if fence is not None:
                self._own_broker.count_broker_failure()
            return fence
        finally:
            for task in (change, failure):
                task.cancel()
            await asyncio.gather(change, failure, return_exceptions=True)

    async def _serve(self, fence: ControllerFence) -> None:
        config = self._config
        settings = ControllerSettings(
            controller_id=config.broker_id,
            unclean_leader_election=config.unclean_leader_election_enable,
            leader_imbalance_percentage=config.leader_imbalance_per_broker_percentage,
            default_replication_factor=config.default_replication_factor,
            default_partitions=config.num_partitions,
            delete_topics=config.delete_topic_enable,
            answer_seconds_max=config.answer_timeout_ms / 1000,
        )
        interval = config.leader_imbalance_check_interval_seconds
        active_settings = ActiveControllerSettings(
            channels=ChannelSettings(
                inter_broker_listener=config.inter_broker_listener_name,
                request_timeout_ms=config.request_timeout_ms,
                detects_lost_connections=config.detects_lost_connections,
            ),
            rebalance_interval_seconds=interval if config.auto_leader_rebalance_enable else None,
            default_min_insync_replicas=config.default_min_insync_replicas,
        )
        active = ActiveController(
            fence,
            settings,
            active_settings,
            self._coordination,
            self._dialer,
            lambda: self._is_served(active),
            self._observer,
            on_broker_failure=self._own_broker.count_broker_failure,
            on_broker_gone=self._broker_gone,
        )
        self._fence, self._active = fence, active
        self._administration = Administration(active, self._random, self._accept_topic_value, self._accept_broker_value)
        await active.run()

    def _broker_gone(self, name: str) -> None:
        if name == str(self._config.broker_id):
            self._own_broker.observe_removal()

    def _is_served(self, active: ActiveController) -> bool:
        return self._active is active and self.is_active

    # ----------------------------------------------------------------------------------------------------- requests
    async def handle(self, request: Request) -> Response:
        """Answer one request; NOT_CONTROLLER when not active, REQUEST_TIMED_OUT when it took too long."""
        if not self.is_active:
            return Response(error_code=ErrorCode.NOT_CONTROLLER)
        timeout_ms = self._config.request_timeout_ms
        if isinstance(request, CreateTopicsRequest | DeleteTopicsRequest | ElectLeadersRequest):
            request = replace(request, timeout_ms=max(0, min(request.timeout_ms, TIMEOUT_MS_MAX)))
            timeout_ms = request.timeout_ms + ANSWER_GRACE_MS
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                response = await self._dispatch(request)
        except TimeoutError:
            text = "the controller did not get to it in time; it may still be done"
            return Response(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=text)
        return response

    async def _hand_over(self, active: ActiveController, request: ControlledShutdownRequest) -> Response:
        """Our own broker stops, and this controller ends with it. First all brokers get the new leaders, which no other
        controller could send before it has taken over."""
        response = await active.ask(request)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_SECONDS_MAX):
                await active.channels.all_answered()
        return response

    async def _dispatch(self, request: Request) -> Response:
        assert self._active is not None and self._administration is not None
        match request:
            case ControlledShutdownRequest(broker_id=self._config.broker_id, offline_partitions=None):
                return await self._hand_over(self._active, request)
            case AlterPartitionRequest() | ControlledShutdownRequest():
                return await self._active.ask(request)
            case CreateTopicsRequest():
                return await self._administration.create_topics(request)
            case ElectLeadersRequest():
                return await elect_leaders(self._active, request)
            case DeleteTopicsRequest():
                return await self._administration.delete_topics(request)
            case IncrementalAlterConfigsRequest():
                return await self._administration.alter_configs(request, self._config.request_timeout_ms)
        text = f"{type(request).__name__} is not for the controller"
        return Response(error_code=ErrorCode.INVALID_REQUEST, error_message=text)


TIMEOUT_MS_MAX = 60_000
"""Limit of a request's timeout_ms. A broker has room for a limited number of requests that wait, and does not notice
that the client of one is gone: what it waits for may be a broker that never comes back."""
HAND_OVER_SECONDS_MAX = 0.5
"""How long a controller that stops waits for answers to its last orders; its successor sends them again."""
ANSWER_GRACE_MS = 500
"""The waits inside use the request's timeout; the answer that names what they waited for comes after it."""
