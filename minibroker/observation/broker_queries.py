"""Queries to brokers, one connection per address, for what the client does not offer the command line and the launcher.

Owns: asking within a time limit, in order or at once, and naming the brokers that did not answer. Leaves to others: the
connections (`runtime/request_channel`), and retries and finding a leader, which the client does. All queries only read
(Metadata, DescribeCluster, DescribeReplicaState), except the elections that an operator orders (ElectLeaders).
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TypeVar

from minibroker.client.no_answer import no_answer_sentences, no_broker_answered
from minibroker.observation.cures import ZOOKEEPER_CURE
from minibroker.protocol.wire.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeReplicaStateRequest,
    DescribeReplicaStateResponse,
    ElectionPreview,
    ElectLeadersRequest,
    ElectLeadersResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    Request,
    Response,
)
from minibroker.runtime.adapters.network import RealNetwork
from minibroker.runtime.ports import ConnectionRefused
from minibroker.runtime.request_channel import RequestChannel, RequestFailed, RequestRefused
from minibroker.runtime.rpc import RequestTimedOut, connect

CONNECT_TIMEOUT_MS = 2_000
"""A host that is up accepts within a round trip."""
ASK_TIMEOUT_S = 3.0
"""A healthy broker answers these queries in milliseconds."""

POLL_S = 0.1

R = TypeVar("R", bound=Response)


class NoAnswer(Exception):
    """A broker did not answer, or none of several; the message names them and the cause."""

    fact: str
    """The message without its cure."""
    is_refused = False
    """Nothing listens at any address that was asked."""
    is_silent = False
    """The connection was accepted, and the request is not answered: a paused broker does that."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.fact = message


class Refused(NoAnswer):
    """A broker answered with an error code."""


class BrokerQueries:
    """Connections to brokers; close it, or use it with `async with`."""

    def __init__(self, client_id: str = "minibroker") -> None:
        self._client_id = client_id
        self._network = RealNetwork()
        self._channels: dict[str, RequestChannel] = {}

    async def ask(self, server: str, request: Request, kind: type[R], timeout_s: float = ASK_TIMEOUT_S) -> R:
        """Return the answer of HOST:PORT. Raises NoAnswer."""
        if server not in self._channels:
            host, _, port = server.rpartition(":")
            peer = (self._network, host.strip("[]"), int(port))
            dial = partial(connect, *peer, client_id=self._client_id, timeout_ms=CONNECT_TIMEOUT_MS)
            self._channels[server] = RequestChannel(dial)
        try:
            return await self._channels[server].ask(request, kind, max(1, round(timeout_s * 1000)))
        except RequestFailed as error:
            failed = (Refused if isinstance(error, RequestRefused) else NoAnswer)(str(error))
            failed.is_refused = isinstance(error.__cause__, ConnectionRefused)
            failed.is_silent = isinstance(error.__cause__, RequestTimedOut)
            raise failed from None

    async def ask_any(self, servers: str, request: Request, kind: type[R], timeout_s: float = ASK_TIMEOUT_S) -> R:
        """Ask each of 'HOST:PORT,..' in order; return the first answer. Raises NoAnswer naming all that failed."""
        problems: list[tuple[str, NoAnswer]] = []
        for server in servers.split(","):
            try:
                return await self.ask(server, request, kind, timeout_s)
            except NoAnswer as error:
                problems.append((server, error))
        are_silent = all(problem.is_silent for _, problem in problems)
        failed = NoAnswer(no_answer_sentences(problems, "with -b", are_silent=are_silent))
        failed.fact = no_broker_answered(problems)
        failed.is_refused = all(problem.is_refused for _, problem in problems)
        raise failed

    async def describe_cluster(self, servers: str, timeout_s: float = ASK_TIMEOUT_S) -> DescribeClusterResponse:
        return await self.ask_any(servers, DescribeClusterRequest(), DescribeClusterResponse, timeout_s)

    async def metadata(
        self, servers: str, topics: list[str] | None = None, timeout_s: float = ASK_TIMEOUT_S
    ) -> MetadataResponse:
        asked = None if topics is None else [MetadataRequestTopic(name=topic) for topic in topics]
        return await self.ask_any(servers, MetadataRequest(topics=asked), MetadataResponse, timeout_s)

    async def present_metadata(
        self, servers: str, topics: list[str] | None = None, timeout_s: float = ASK_TIMEOUT_S
    ) -> MetadataResponse:
        """The same from a broker with ZooKeeper, if one answers: one that is cut off from it does not learn who leads
        now, and names no leader where it led."""
        first = await self.metadata(servers, topics, timeout_s)
        if not first.fenced:
            return first

        async def of_another(server: str) -> MetadataResponse:
            try:
                return await self.metadata(server, topics, timeout_s)
            except NoAnswer:
                return first

        others = dict.fromkeys([*servers.split(","), *(f"{each.host}:{each.port}" for each in first.brokers)])
        answers = await asyncio.gather(*map(of_another, others))
        return next((each for each in answers if not each.fenced), first)

    async def replica_states(
        self, servers: list[str], topics: list[str] | None = None, timeout_s: float = ASK_TIMEOUT_S
    ) -> list[DescribeReplicaStateResponse | NoAnswer]:
        """Ask all servers at the same time for their own replicas; the answers are in the given order."""

        async def one(server: str) -> DescribeReplicaStateResponse | NoAnswer:
            request = DescribeReplicaStateRequest(topics=topics)
            try:
                return await self.ask(server, request, DescribeReplicaStateResponse, timeout_s)
            except NoAnswer as error:
                return error

        return await asyncio.gather(*(one(server) for server in servers))

    async def elections(
        self, servers: str, request: ElectLeadersRequest, timeout_s: float = ASK_TIMEOUT_S
    ) -> list[ElectionPreview]:
        """Ask the controller about partitions without a leader, or order their elections. Raises NoAnswer."""
        known = await self.present_metadata(servers, [], timeout_s)
        address = next((f"{b.host}:{b.port}" for b in known.brokers if b.node_id == known.controller_id), None)
        if address is None:
            raise NoAnswer(await self._without_controller(servers, "no controller is elected"))
        try:
            return (await self.ask(address, request, ElectLeadersResponse, timeout_s)).partitions
        except NoAnswer as error:
            who = f"the controller, broker {known.controller_id}, does not decide"
            raise NoAnswer(await self._without_controller(servers, f"{who}: {error}")) from None

    async def _without_controller(self, servers: str, problem: str) -> str:
        """The problem with its cause, if that is lost ZooKeeper, and its cure."""
        try:
            if (await self.present_metadata(servers, [])).fenced:
                return f"{problem}; the brokers have lost ZooKeeper: {ZOOKEEPER_CURE}"
        except NoAnswer:
            pass
        return f"{problem}: ask again in some seconds; `minibroker replicas --check` says more if this lasts"

    async def why_not_serving(self, server: str, timeout_s: float) -> str | None:
        """Why a starting broker does not serve yet; None if it does."""
        (state,) = await self.replica_states([server], [], timeout_s)
        if isinstance(state, NoAnswer):
            return str(state)
        if state.fenced:
            return "it is fenced"
        try:
            known = await self.metadata(server, [], timeout_s)
        except NoAnswer as error:
            return str(error)
        return None if known.brokers else "the controller has not sent it the cluster's metadata"

    async def wait_serving(self, servers: Callable[[], list[str]], timeout_s: float) -> None:
        """Wait until each of these servers, asked for anew each time, serves; or for the time limit."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not any(await asyncio.gather(*(self.why_not_serving(server, 1.0) for server in servers()))):
                return
            await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        for channel in self._channels.values():
            channel.hang_up()

    async def __aenter__(self) -> "BrokerQueries":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
