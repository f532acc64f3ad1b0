"""The simulated network: machines by name, TCP connections between them, and their faults.

Theory: each direction of a connection is a first-in-first-out pipe of segments with arrival times. A writer's bytes
enter the pipe while fewer than WINDOW_BYTES wait there unread; the rest stays in the transport's buffer, which makes
back-pressure. Written data is kept by reference and read on arrival, as uvloop may do: a writer that changes it after
`write` is found out. A cut link holds the pipe and nothing is lost, as TCP would resend; a connection attempt over it
is never answered. A killed process ends its connections and refuses new ones, for its kernel lives on: the peer sees
the end of the stream after all that was sent, or a reset where the dead process had left bytes unread. A machine
without power, or behind a cut, sends nothing and refuses nothing; its peers get a reset when they have sent something
and it is up again. A firewall that rejects (`reject`) looks like a killed process to the rejected machine, while the
process behind it lives.
"""

import asyncio
import contextvars
import math
import random
from collections.abc import Callable
from typing import Any

from minibroker.protocol.wire.messages import ApiKey
from minibroker.runtime.ports import AddressInUse, ConnectionRefused, NetworkError, OutOfDescriptors, Transport
from minibroker.simulation.world.links import GAP_SECONDS, Links
from minibroker.simulation.world.loop import WORLD, VirtualLoop
from minibroker.simulation.world.message_holds import UNLIMITED, Action, Match, MessageHold, responses
from minibroker.simulation.world.node import Process
from minibroker.simulation.world.trace import Trace
from minibroker.simulation.world.transport import RESEND_SECONDS, ProtocolFactory, SimulatedTransport

EPHEMERAL_PORT = 40_000

RESET_AFTER_BOOT_SECONDS = (0.2, 1.0)
"""When a peer's resent segment reaches a restarted machine that does not know the connection."""

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
ANY_NAMES = frozenset({"", "0.0.0.0", "::"})


class Fabric(Links):
    """All links of a world, and the connections over them. Faults are calls on it."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, trace: Trace) -> None:
        super().__init__(loop, rng, trace)
        self.without_descriptors: set[str] = set()
        """Machines without descriptors for new connections; open ones stay, and connections from
        others are accepted."""
        self._rejected: set[tuple[str | None, str]] = set()
        self._listeners: dict[tuple[str, int], SimulatedListener] = {}
        self._ends: dict[int, SimulatedTransport] = {}
        self._next_port: dict[str, int] = {}

    def network_for(self, process: Process) -> "SimulatedNetwork":
        """The network port of one process."""
        number = len(self._addresses) + 1
        self._addresses.setdefault(process.name, f"10.0.{number // 256}.{number % 256}")
        return SimulatedNetwork(self, process)

    # -------------------------------------------------------------------------------------------------- faults
    def cut(self, source: str, target: str) -> None:
        """Nothing gets from source to target from now on (one way)."""
        pair, now = frozenset((source, target)), self.loop.time()
        if not self._is_cut(pair) and now - self._healed_at.get(pair, -math.inf) > GAP_SECONDS:
            self._cut_off_since[pair] = now
        self.cuts.setdefault((source, target), now)

    def heal(self, source: str, target: str) -> None:
        if self.cuts.pop((source, target), None) is not None:
            self._healed_at[frozenset((source, target))] = self.loop.time()
        for end in list(self._ends.values()):
            if end.host == target:
                end.pump_soon(self.delay(source, target))

    def partition(self, one: str, other: str) -> None:
        """Cut both ways."""
        self.cut(one, other)
        self.cut(other, one)

    def isolate(self, host: str) -> None:
        """From all other machines, both ways."""
        for other in sorted(self._addresses.keys() - {host}):
            self.partition(host, other)

    def join(self, host: str) -> None:
        """Undo `isolate` and every other cut there."""
        for source, target in sorted(pair for pair in self.cuts if host in pair):
            self.heal(source, target)

    def reject(self, source: str | None, target: str) -> None:
        """A firewall on `target` rejects connections from `source` (None: from any other machine), as iptables' REJECT
        with tcp-reset does: open connections made that way are reset, new ones refused. The process behind it lives and
        notices nothing, and connections that it opens pass."""
        self._rejected.add((source, target))
        for end in list(self._ends.values()):
            is_client = end.is_client and end.peer.host == target and not end.is_gone
            if is_client and self.is_rejected(end.host, target):
                for side in (end, end.peer):
                    side.lose_soon(ConnectionResetError("connection reset by a firewall"), 0.0)

    def forget_name(self, host: str) -> None:
        """Lookups of the machine's name find nothing; its address stays valid."""
        self._nameless.add(host)

    def restore_name(self, host: str) -> None:
        self._nameless.discard(host)

    def reject_no_more(self, source: str | None, target: str) -> None:
        self._rejected.discard((source, target))

    def heal_all(self) -> None:
        for source, target in sorted(self.cuts):
            self.heal(source, target)
        self._rejected.clear()
        self._nameless.clear()
        self.without_descriptors.clear()
        self.slow_links.clear()
        self.bandwidth.clear()
        for hold in self.holds:
            hold.release()
        self.holds = ()

    def hold(
        self, source: str | None = None, target: str | None = None, match: Match | None = None, times: int = UNLIMITED
    ) -> MessageHold:
        """Hold back frames from one machine to another (None: any) until the hold is released."""
        return self._hold(MessageHold(source, target, match, Action.HOLD, times))

    def drop_frames(
        self, source: str | None = None, target: str | None = None, match: Match | None = None, times: int = UNLIMITED
    ) -> MessageHold:
        """Lose frames, each with its connection: both ends see a reset."""
        return self._hold(MessageHold(source, target, match, Action.DROP, times))

    def count_frames(
        self, source: str | None = None, target: str | None = None, match: Match | None = None, times: int = UNLIMITED
    ) -> MessageHold:
        """Let frames pass and remember them."""
        return self._hold(MessageHold(source, target, match, Action.PASS, times))

    def lose_replies(self, asker: str | None, answerer: str | None, *apis: ApiKey, times: int = 1) -> MessageHold:
        """A request is carried out, and its reply lost with the connection: the sender repeats it."""
        return self.drop_frames(answerer, asker, responses(*apis), times)

    def _hold(self, hold: MessageHold) -> MessageHold:
        self.cuts_frames = True
        self.holds = (*(other for other in self.holds if not other.is_open), hold)
        return hold

    def half_open(self, one: str, other: str) -> int:
        """One machine loses every connection to the other, which notices only when it sends something."""
        ends = [end for end in self._ends.values() if end.host == one and end.peer.host == other and not end.is_gone]
        for end in ends:
            end.lose_for_this_end_only()
        return len(ends)

    def reset_connections(self, one: str, other: str) -> int:
        """Break every connection between two machines, in the middle of a frame if one is in flight."""
        broken = 0
        for end in list(self._ends.values()):
            if end.host == one and end.peer.host == other and not end.is_gone:
                for side in (end, end.peer):
                    side.pump_some()
                    side.lose_soon(ConnectionResetError("connection reset by the network"), 0.0)
                broken += 1
        return broken

    def process_killed(self, process: Process) -> None:
        """Its kernel closes what it had open."""
        self._forget(process, notifies_peers=True)

    def power_lost(self, host: str, process: Process | None) -> None:
        self._powered_off.add(host)
        if process is not None:
            self._forget(process, notifies_peers=False)

    def power_on(self, host: str) -> None:
        self._powered_off.discard(host)
        for end in list(self._ends.values()):
            if end.peer.host == host and end.peer.is_gone and end.unread_by_peer:
                end.lose_soon(
                    ConnectionResetError("connection reset: the machine was restarted"),
                    self.random.uniform(*RESET_AFTER_BOOT_SECONDS),
                )

    def _forget(self, process: Process, notifies_peers: bool) -> None:
        for address, listener in list(self._listeners.items()):
            if listener.process is process:
                del self._listeners[address]
        for end in list(self._ends.values()):
            if end.process is process and not end.is_gone:
                if notifies_peers:
                    end.end_by_kernel()
                end.vanish()

    # ----------------------------------------------------------------------------------------------- internals
    def is_rejected(self, source: str, target: str) -> bool:
        return source != target and ((source, target) in self._rejected or (None, target) in self._rejected)

    def new_port(self, host: str) -> int:
        port = self._next_port.get(host, EPHEMERAL_PORT)
        while (host, port) in self._listeners:
            port += 1
        self._next_port[host] = port + 1
        return port

    def bind(self, listener: "SimulatedListener") -> None:
        assert self.listener_at(listener.host, listener.port) is None
        self._listeners[(listener.host, listener.port)] = listener

    def unbind(self, listener: "SimulatedListener") -> None:
        if self._listeners.get((listener.host, listener.port)) is listener:
            del self._listeners[(listener.host, listener.port)]

    def listener_at(self, host: str, port: int) -> "SimulatedListener | None":
        return self._listeners.get((host, port))

    def add(self, end: "SimulatedTransport") -> None:
        self._ends[end.serial] = end

    def remove(self, end: "SimulatedTransport") -> None:
        if end.is_gone and end.peer.is_gone:
            self._ends.pop(end.serial, None)
            self._ends.pop(end.peer.serial, None)


class SimulatedListener:
    """Implements `ports.Listener`."""

    def __init__(self, fabric: Fabric, process: Process, factory: ProtocolFactory, host: str, port: int) -> None:
        self._fabric = fabric
        self.process = process
        self.factory = factory
        self.host = host
        self._port = port

    @property
    def port(self) -> int:
        return self._port

    def stop(self) -> None:
        """Stop accepting at once."""
        self._fabric.unbind(self)

    async def close(self) -> None:
        self.stop()
        await asyncio.sleep(0)


class SimulatedNetwork:
    """Implements `ports.Network` for one process."""

    def __init__(self, fabric: Fabric, process: Process) -> None:
        self._fabric = fabric
        self._process = process

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> SimulatedListener:
        self._process.check_alive()
        name = self._process.name
        if host not in ANY_NAMES and host not in LOOPBACK_NAMES and host != name:
            raise NetworkError(f"cannot listen on {host}:{port}: not an address of {name}")
        if self._fabric.listener_at(name, port) is not None:
            raise AddressInUse(f"{host}:{port} is in use by another process")
        listener = SimulatedListener(
            self._fabric, self._process, factory, name, port if port else self._fabric.new_port(name)
        )
        self._fabric.bind(listener)
        return listener

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, timeout_ms: int
    ) -> tuple[Transport, asyncio.BufferedProtocol]:
        self._process.check_alive()
        fabric, source = self._fabric, self._process.name
        target = source if host in LOOPBACK_NAMES else fabric.look_up(host)
        if source in fabric.without_descriptors:
            raise OutOfDescriptors(f"cannot connect to {host}:{port}: too many open files (simulated)")
        if target is None:
            raise NetworkError(f"cannot resolve {host}:{port}: unknown host")
        attempt = ConnectionAttempt(fabric, self._process, factory, target, port)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                end = await attempt.established
                attempt.is_taken = True
        except TimeoutError:
            raise NetworkError(f"cannot connect to {host}:{port}: no answer in {timeout_ms} ms") from None
        except ConnectionRefusedError:
            raise ConnectionRefused(f"cannot connect to {host}:{port}: connection refused") from None
        except ConnectionResetError:
            raise NetworkError(f"cannot connect to {host}:{port}: connection reset by peer") from None
        finally:
            attempt.abandon()
        return end, end.protocol


class ConnectionAttempt:
    """One connection attempt: a SYN there, an answer back. Lost ones are sent again."""

    def __init__(self, fabric: Fabric, process: Process, factory: ProtocolFactory, target: str, port: int) -> None:
        self._fabric = fabric
        self._process = process
        self._factory = factory
        self._target = target
        self._port = port
        self._own_port = fabric.new_port(process.name)
        self._abandoned = False
        self.is_taken = False
        self.established: asyncio.Future[SimulatedTransport] = fabric.loop.create_future()
        self._send()

    def abandon(self) -> None:
        """Nothing waits for it any more; a connection established in the same instant is closed again."""
        self._abandoned = True
        done = self.established.done() and not self.established.cancelled()
        if done and self.established.exception() is None and not self.is_taken:
            self.established.result().abort()

    def _send(self) -> None:
        there = self._fabric.delay(self._process.name, self._target)
        self._later(there, self._arrive, WORLD)

    def _later(self, seconds: float, call: Callable[..., None], context: contextvars.Context, *args: Any) -> None:
        self._fabric.loop.call_at(self._fabric.loop.time() + seconds, call, *args, context=context)

    def _arrive(self) -> None:
        fabric, source = self._fabric, self._process.name
        if self._abandoned or self.established.done():
            return
        passes = fabric.is_open(source, self._target) and fabric.is_open(self._target, source)
        if not passes or not fabric.is_up(self._target):
            self._later(RESEND_SECONDS, self._send, WORLD)
            return
        back = fabric.delay(self._target, source)
        listener = fabric.listener_at(self._target, self._port)
        if listener is None or fabric.is_rejected(source, self._target):
            fabric.trace.record("refused", source, f"{self._target}:{self._port}")
            self._later(back, self._refuse, self._process.context)
            return
        fabric.trace.record("connected", source, f"{self._target}:{self._port}")
        client = SimulatedTransport(
            fabric, self._process, source, self._own_port, is_client=True, vanished=fabric.remove
        )
        server = SimulatedTransport(
            fabric, listener.process, listener.host, listener.port, is_client=False, vanished=fabric.remove
        )
        client.peer, server.peer = server, client
        fabric.add(client)
        fabric.add(server)
        fabric.loop.call_soon(server.open, listener.factory, context=listener.process.context)
        self._later(back, self._establish, self._process.context, client)

    def _refuse(self) -> None:
        if not self.established.done():
            self._fabric.contact(self._process.name, self._target).refused_at = self._fabric.loop.time()
            self.established.set_exception(ConnectionRefusedError())

    def _establish(self, client: "SimulatedTransport") -> None:
        if self._abandoned or self.established.done():
            client.abort()
            return
        if client.is_gone:  # accepted, and reset before the answer arrived
            self.established.set_exception(ConnectionResetError())
            return
        self._fabric.contact(client.host, self._target).made_at = self._fabric.loop.time()
        client.open(self._factory)
        self.established.set_result(client)
