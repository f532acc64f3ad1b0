"""The cluster as one client sees it: fresh metadata, and which broker to ask for what.

Owns: when and from where metadata is fetched, requests to one broker, the controller or any broker, and the diagnosis
when none can be reached. Leaves to others: what is produced, fetched or administered.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from minibroker.client.client_log import ClientLog
from minibroker.client.connections import Connections
from minibroker.client.errors import (
    BrokerError,
    BrokerUnreachable,
    CallTimedOut,
    ClientClosed,
    ClusterUnreachable,
    InvalidCall,
    MinibrokerError,
    Where,
    broker_error,
    where_of,
)
from minibroker.client.first_answer import first_answer
from minibroker.client.limits import (
    BOOTSTRAP_TIMEOUT_MS,
    CONNECT_TIMEOUT_MS,
    LEADER_CHANGE_BACKOFF_MS,
    LOG_START_AFTER_MS,
    LOG_WAIT_AFTER_MS,
    METADATA_BACKOFF_MAX_MS,
    METADATA_TIMEOUT_MS,
    REFUSALS_MS,
    Deadline,
    check_topic,
    is_utf8,
)
from minibroker.client.metadata_cache import Address, MetadataCache
from minibroker.client.no_answer import none_answered
from minibroker.client.retry import poll_pause_ms
from minibroker.protocol.errors import ErrorCode, error_code
from minibroker.protocol.ids import BrokerId, TopicPartition
from minibroker.protocol.wire.codec import CLIENT_ID_MAX_LENGTH
from minibroker.protocol.wire.messages import (
    TOPICS_MAX,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    Request,
    Response,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.rpc import RequestTimedOut, RpcConnection, RpcError

R = TypeVar("R", bound=Response)

CLIENT_TASK = "metadata of "
"""How the name of the task begins that each client has from its start to its end; the client's name follows."""
BROKERS_FRESH_MS = 500.0
"""Metadata this recent is good enough as a list of the brokers."""


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the three public classes have in common."""

    bootstrap: list[Address]
    client_id: str
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    bootstrap_timeout_ms: int = BOOTSTRAP_TIMEOUT_MS

    def __post_init__(self) -> None:
        name = self.client_id
        if not isinstance(name, str) or len(name) > CLIENT_ID_MAX_LENGTH or not is_utf8(name):
            raise InvalidCall(f"client_id is {name!r:.300}; it must be text of up to {CLIENT_ID_MAX_LENGTH} characters")


class Cluster:
    """Shared by the parts of one client; starts one task (`start`), which `close` ends."""

    def __init__(self, runtime: Runtime, settings: ClusterSettings) -> None:
        self.runtime = runtime
        self.settings = settings
        self.log = ClientLog(settings.client_id)
        self.metadata = MetadataCache()
        self.connections = Connections(
            runtime, settings.client_id, settings.retry_backoff_ms, settings.retry_backoff_max_ms, self.log
        )
        self.last_error: MinibrokerError | None = None
        """Why the last round of metadata failed; None after a success."""
        self._topics: dict[str, None] = {}
        self._listeners: list[Callable[[], None]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._wake = asyncio.Event()
        self._new_topics = asyncio.Event()
        """Ends the pause between two rounds: the last round cannot have fetched new topics."""
        self._wanted = False
        self._avoided: dict[Address, None] = {}
        """Servers that failed or were late at their last request for metadata, the latest at the end."""
        self._answered_by: Address | None = None
        self._task: asyncio.Task[None] | None = None
        self.closed = False

    # --------------------------------------------------------------------------------------------------------- life
    async def start(self, *, refusals_end_it: bool = False) -> None:
        """Find the cluster. Raises ClusterUnreachable, with each server's error, after bootstrap_timeout_ms; with
        `refusals_end_it` soon if every server refuses the connection."""
        if self.closed or self._task is not None:
            raise ClientClosed("a client is started once")
        self._task = asyncio.get_running_loop().create_task(
            self._keep_metadata(), name=f"{CLIENT_TASK}{self.settings.client_id}"
        )
        self._task.add_done_callback(self._ended)
        deadline, refusals = Deadline(self.settings.bootstrap_timeout_ms), Deadline(REFUSALS_MS)
        log_after_s = LOG_START_AFTER_MS / 1000
        watch = asyncio.get_running_loop().call_later(log_after_s, self._log_start, deadline)
        try:
            while True:
                try:
                    await self.refresh(deadline)
                    self.log.info("started, with brokers %s", sorted(self.metadata.brokers))
                    return
                except CallTimedOut:
                    silence = TimeoutError(f"silent for {round(deadline.timeout_ms)} ms")
                    servers = {
                        server: self.connections.last_error(server) or silence for server in self.settings.bootstrap
                    }
                    raise self.last_error or none_answered(servers, are_silent=silence in servers.values()) from None
                except ClusterUnreachable as error:
                    if deadline.passed or (refusals_end_it and error.is_refused and refusals.passed):
                        raise
        except BaseException:
            await self.close()
            raise
        finally:
            watch.cancel()

    def _log_start(self, deadline: Deadline) -> None:
        if deadline.remaining_ms() < LOG_START_AFTER_MS:
            return  # the error comes soon
        problem = self.last_error or f"no server has answered yet at {', '.join(map(str, self.settings.bootstrap))}"
        self.log.warning("looking for a broker, up to %g s: %s", deadline.timeout_ms / 1000, problem)

    async def close(self) -> None:
        """Stop the task and close every connection, also if this is cancelled meanwhile."""
        if not self.closed:
            self.log.info("%s", "closed")  # a line without arguments would keep the doubled % of a name
        self.closed = True
        try:
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
        finally:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_exception(ClientClosed("the client was closed"))
                    waiter.exception()  # its caller may be gone
            self._waiters.clear()
            await self.connections.close()

    # ----------------------------------------------------------------------------------------------------- metadata
    def add_listener(self, listener: Callable[[], None]) -> None:
        """The listener is called after every round of metadata, whether it brought changes or failed."""
        self._listeners.append(listener)

    def want_topics(self, topics: Iterable[str]) -> None:
        """Keep these topics in the cache from now on; fetched soon if they are new. Raises InvalidCall for a name that
        no request can carry, and for more topics than one request can ask for; then none of them is kept."""
        new = {topic: None for topic in topics if topic not in self._topics}
        for topic in new:
            check_topic(topic)
        if len(self._topics) + len(new) > TOPICS_MAX:
            raise InvalidCall(f"a client uses up to {TOPICS_MAX} topics until it is closed: use another one for others")
        if new:
            self._topics.update(new)
            self._new_topics.set()
            self.request_refresh()

    def request_refresh(self) -> None:
        """Request new metadata: at once, or after a short pause if it was just fetched."""
        self._wanted = True
        self._wake.set()

    async def refresh(self, deadline: Deadline) -> None:
        """Wait for a round of metadata that begins after this call. Raises that round's error, or CallTimedOut."""
        if self.closed:
            raise ClientClosed("the client is closed")
        if self._task is not None and self._task.done():
            self._task.result()  # ended by a bug
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self.request_refresh()
        done, _ = await asyncio.wait([waiter], timeout=deadline.remaining_ms() / 1000)
        if not done:
            waiter.cancel()
            raise CallTimedOut(f"no broker sent metadata within {round(deadline.timeout_ms)} ms", self.last_error)
        waiter.result()

    async def refresh_brokers(self, deadline: Deadline) -> None:
        """Have a recent list of live brokers; saves a one-shot command the pause between two rounds."""
        updated_at_ms = self.metadata.updated_at_ms
        if updated_at_ms is None or asyncio.get_running_loop().time() * 1000 - updated_at_ms > BROKERS_FRESH_MS:
            await self.refresh(deadline)

    async def _keep_metadata(self) -> None:
        loop = asyncio.get_running_loop()
        wanted_since: float | None = None
        while True:
            wanted = await self._wait_until_wanted(loop)
            started = loop.time()
            wanted_since = (wanted_since or started) if wanted else None
            waiters, self._waiters = self._waiters, []
            self._wanted = False
            self._wake.clear()
            self._new_topics.clear()
            error: MinibrokerError | None = None
            try:
                await self._fetch_metadata()
            except MinibrokerError as failure:
                error = failure
                self.log.debug("metadata is asked for again: %s", failure)
                self.request_refresh()
            except BaseException:
                self._waiters.extend(waiters)  # close() or `_ended` ends them
                raise
            self.last_error = error
            _settle(waiters, error)
            for listener in self._listeners:
                listener()
            pause_ms = poll_pause_ms(
                0.0 if wanted_since is None else (loop.time() - wanted_since) * 1000,
                min(LEADER_CHANGE_BACKOFF_MS, self.settings.retry_backoff_ms),
                min(METADATA_BACKOFF_MAX_MS, self.settings.retry_backoff_max_ms),
                self.runtime.random.random(),
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, started + pause_ms / 1000 - loop.time())):
                    await self._new_topics.wait()
            if not self._wanted:  # a request during the pause continues the search
                wanted_since = None

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """The task ends only when it is cancelled, or by a bug. That must be seen, and not end as a timeout."""
        if not task.cancelled() and (bug := task.exception()) is not None:
            _settle(self._waiters, bug)
            raise bug

    async def _wait_until_wanted(self, loop: asyncio.AbstractEventLoop) -> bool:
        """True if metadata was requested, False if it grew too old."""
        try:
            async with asyncio.timeout(self.settings.metadata_max_age_ms / 1000):
                await self._wake.wait()
        except TimeoutError:
            return False
        return True

    async def _fetch_metadata(self) -> None:
        """One round: the first answer counts. A server that failed or was late comes last in later rounds, until it
        answers."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic) for topic in sorted(self._topics)])
        reply, attempts = await first_answer(self._candidates(), lambda server: self._ask_for_metadata(server, request))
        for server in (*attempts.failures, *attempts.late):
            self._avoided.pop(server, None)
            self._avoided[server] = None
        if reply is None or attempts.server is None:
            raise none_answered(attempts.failures)
        self.metadata.update(reply, asyncio.get_running_loop().time() * 1000)
        self._answered_by = attempts.server
        self._avoided.pop(attempts.server, None)

    async def _ask_for_metadata(self, address: Address, request: MetadataRequest) -> MetadataResponse:
        connection = await self.connections.acquire(address, Deadline(CONNECT_TIMEOUT_MS))
        reply = await _ask_or_abort(connection, request, METADATA_TIMEOUT_MS)
        if not isinstance(reply, MetadataResponse) or reply.error_code or not reply.brokers:
            code = error_code(reply.error_code).name
            raise BrokerUnreachable(f"{address} answered without naming any broker ({code})")
        return reply

    def _candidates(self) -> list[Address]:
        """Brokers with an open connection first, then other brokers, then the bootstrap servers; servers that failed
        recently come last, the latest at the very end."""
        known = list(self.metadata.brokers.values())
        self.runtime.random.shuffle(known)
        known.sort(key=lambda address: not self.connections.is_open(address))
        ordered = dict.fromkeys([*known, *self.settings.bootstrap])
        self._avoided = {address: None for address in self._avoided if address in ordered}
        return [*(address for address in ordered if address not in self._avoided), *self._avoided]

    # ----------------------------------------------------------------------------------------------------- requests
    def open_connection(self, broker_id: BrokerId) -> RpcConnection | None:
        """The connection to a broker if it is open; else None, and an attempt begins, or a metadata request if the
        broker's address is not known."""
        address = self.metadata.brokers.get(broker_id)
        if address is None:
            self.request_refresh()
            return None
        return self.connections.open_connection(address)

    def is_connected(self, broker_id: BrokerId) -> bool:
        """Is there an open connection to this broker? Starts nothing."""
        address = self.metadata.brokers.get(broker_id)
        return address is not None and self.connections.is_open(address)

    async def acquire(self, broker_id: BrokerId, deadline: Deadline) -> RpcConnection:
        """A connection to a broker. Raises BrokerUnreachable with a diagnosis."""
        address = self.metadata.brokers.get(broker_id)
        if address is None:
            self.request_refresh()
            raise BrokerUnreachable(f"broker {broker_id} is not registered with the cluster; is it running?", broker_id)
        try:
            return await self.connections.acquire(address, deadline)
        except BrokerUnreachable as error:
            self.request_refresh()  # the cluster may have noticed that it is gone
            raise self.unreachable(broker_id, error) from error

    def unreachable(self, broker_id: BrokerId, cause: Exception | None = None) -> BrokerUnreachable:
        """Why this broker cannot be reached; distinguishes a wrong advertised address from a failed broker."""
        address = self.metadata.brokers.get(broker_id)
        if address is None:
            return BrokerUnreachable(
                f"broker {broker_id} is not registered with the cluster; is it running?", broker_id
            )
        reason = cause or self.connections.last_error(address) or "no connection yet"
        only_advertised = address not in self.settings.bootstrap and not self.connections.ever_connected(address)
        if only_advertised and self._answered_by is not None:
            return BrokerUnreachable(
                f"bootstrap {self._answered_by} answered but advertises broker {broker_id} as {address}, which this "
                f"machine cannot resolve or reach ({reason}): check advertised.listeners of broker {broker_id}",
                broker_id,
            )
        return BrokerUnreachable(f"broker {broker_id} at {address} does not answer ({reason})", broker_id)

    async def ask(self, broker_id: BrokerId, body: Request, answer: type[R], deadline: Deadline) -> R:
        """Ask one broker once. Raises BrokerUnreachable, CallTimedOut or the BrokerError of the whole request."""
        connection = await self.acquire(broker_id, deadline)
        limit_ms = self.settings.request_timeout_ms
        timeout_ms = deadline.at_most(limit_ms)
        reads, asked_at = connection.reads, asyncio.get_running_loop().time()
        try:
            reply = await connection.request(body, timeout_ms)
        except (OverflowError, UnicodeEncodeError) as error:  # no message holds such a number or text
            raise InvalidCall(f"{type(body).__name__} cannot be sent: {error}") from None
        except RpcError as error:
            if isinstance(error, RequestTimedOut):
                if timeout_ms >= limit_ms:
                    connection.abort()  # also if it brings other answers: so long a silence to one call is a fault
                else:
                    self.connections.end_if_silent(connection, reads, asked_at, limit_ms)
            self.request_refresh()
            raise BrokerUnreachable(f"broker {broker_id}: {error}", broker_id, in_doubt=True) from error
        return expect(reply, answer, Where(broker_id=broker_id))

    async def ask_any(
        self,
        body: Request,
        answer: type[R],
        deadline: Deadline,
        on_failure: Callable[[MinibrokerError], None] = lambda error: None,
    ) -> R:
        """Ask brokers one after the other until one answers or the deadline passes. `on_failure` is called with the
        error of each that does not."""
        last: MinibrokerError | None = None
        quiet, is_logged = Deadline(LOG_WAIT_AFTER_MS), False
        while True:
            for broker_id in self._brokers_by_reach():
                try:
                    return await self.ask(broker_id, body, answer, deadline)
                except MinibrokerError as error:
                    if not error.retriable:
                        raise
                    last = self.explained(error)
                    on_failure(error)
                if deadline.passed:
                    raise CallTimedOut(f"no broker answered within {round(deadline.timeout_ms)} ms", last)
            if quiet.passed and not is_logged:
                is_logged = True
                self.log.warning("waiting up to %g s for an answer: %s", deadline.timeout_ms / 1000, last)
            if not await self.pause(deadline):
                raise CallTimedOut(f"no broker answered within {round(deadline.timeout_ms)} ms", last)
            self.request_refresh()

    async def pause(self, deadline: Deadline) -> bool:
        """Pause before a call asks again; returns whether time is left."""
        base_ms, max_ms = self.settings.retry_backoff_ms, self.settings.retry_backoff_max_ms
        return await deadline.pause(poll_pause_ms(deadline.waited_ms(), base_ms, max_ms, self.runtime.random.random()))

    async def ask_controller(self, body: Request, answer: type[R], deadline: Deadline) -> R:
        """Ask the controller once. Raises NotController (retriable) if none is known."""
        controller = self.metadata.controller_id
        if controller is None:
            self.request_refresh()
            raise broker_error(ErrorCode.NOT_CONTROLLER, message="no controller is known; is ZooKeeper healthy?")
        return await self.ask(controller, body, answer, deadline)

    def _brokers_by_reach(self) -> list[BrokerId]:
        brokers = sorted(self.metadata.brokers)
        self.runtime.random.shuffle(brokers)
        brokers.sort(key=lambda broker_id: not self.connections.is_open(self.metadata.brokers[broker_id]))
        return brokers

    # ------------------------------------------------------------------------------------------------------- wording
    def where(self, partition: TopicPartition, broker_id: BrokerId | None = None) -> Where:
        """What is known of a partition, for an error's text; the broker defaults to the leader."""
        info = self.metadata.partition(partition)
        return where_of(partition, info.leader if broker_id is None else broker_id, info.leader_epoch, info.isr)

    def lost_zookeeper(self) -> str | None:
        """In words, if the broker that sent the last metadata has."""
        if not self.metadata.is_from_fenced:
            return None
        return f"the broker at {self._answered_by} has lost ZooKeeper (start ZooKeeper, or repair the network to it)"

    def explained(self, error: MinibrokerError) -> MinibrokerError:
        """The error; where brokers have lost ZooKeeper, one that says so. A broker that is dead, or that answers that
        it does not lead, does not tell why no other one takes its place."""
        lost = self.lost_zookeeper()
        if lost is None or "ZooKeeper" in str(error):
            return error
        if isinstance(error, BrokerUnreachable):
            return BrokerUnreachable(f"{error}; {lost}", error.broker_id, in_doubt=error.in_doubt)
        if not isinstance(error, BrokerError):
            return error
        told, where = f"{error.broker_message}; {lost}" if error.broker_message else lost, error.where
        code = ErrorCode.UNKNOWN_SERVER_ERROR if error.code is None else error.code
        if code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_CONTROLLER):
            where = replace(where, broker_id=None)  # it is one of those that are fenced
        if code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            code = ErrorCode.LEADER_NOT_AVAILABLE
        return broker_error(code, where, told)

    def leader_problem(self, partition: TopicPartition) -> MinibrokerError:
        """Why no request can be sent to this partition's leader now."""
        info = self.metadata.partition(partition)
        topic = self.metadata.topics.get(partition.topic)
        if self.last_error is not None:
            return self.last_error
        if topic is None or partition.partition not in topic.partitions:
            return broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, self.where(partition))
        if self.metadata.is_from_fenced:
            where = replace(self.where(partition), broker_id=None)
            return broker_error(ErrorCode.LEADER_NOT_AVAILABLE, where, self.lost_zookeeper())
        if info.leader is None:
            return broker_error(
                ErrorCode.LEADER_NOT_AVAILABLE, self.where(partition), f"replicas {list(info.replicas)}"
            )
        return self.unreachable(info.leader)


def expect(reply: Response, answer: type[R], where: Where) -> R:
    """The reply as the expected type; raises BrokerError if the request failed as a whole."""
    if reply.error_code:
        raise broker_error(reply.error_code, where, reply.error_message)
    assert isinstance(reply, answer), f"{type(reply).__name__} came instead of {answer.__name__}"
    return reply


def _ask_or_abort(connection: RpcConnection, request: Request, timeout_ms: int) -> "asyncio.Future[Response]":
    """The reply, to be awaited. If nothing arrives before the timeout, the connection is closed, even if the caller has
    an answer from another server by then: TCP may take a quarter of an hour to notice that the peer is gone."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Response] = loop.create_future()

    def on_reply(reply: Response | RpcError) -> None:
        silence.cancel()
        if answer.done():
            return
        if isinstance(reply, RpcError):
            answer.set_exception(reply)
        else:
            answer.set_result(reply)

    def on_silence() -> None:
        connection.forget(number)
        if not connection.is_waited_on:  # else the timeouts of its other requests decide
            connection.abort()
        if not answer.done():
            answer.set_exception(RequestTimedOut(f"{connection.peer} did not answer within {timeout_ms} ms"))

    number = connection.send(request, on_reply)
    silence = loop.call_later(timeout_ms / 1000, on_silence)
    return answer


def _settle(waiters: list["asyncio.Future[None]"], error: BaseException | None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
            waiter.exception()  # its caller may have given up at the same moment
