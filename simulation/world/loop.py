"""A virtual-time event loop: asyncio without an operating system.

Theory: nothing here waits. When no callback is ready, time jumps to the next timer, and if there is none the run is
stuck and reports it. One seed yields one run because nothing else is consulted: ready callbacks run first in, first
out, timers by time and then by age; tasks and futures, which asyncio itself keeps in sets, hash by a counter of their
loop instead of by their address. Variety comes from the ports' seeded delays, never from shuffling callbacks.

Callbacks carry their process (`node.PROCESS`): a paused or busy process keeps them for later, a dead one drops them.
Relies on BaseEventLoop's `_ready`, `_stopping` and `_run_once`; `tests/simulation` runs them on each supported Python.
"""

import asyncio
import contextlib
import contextvars
import gc
import heapq
import inspect
import signal
import threading
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, NoReturn, TypeVar, TypeVarTuple, cast

from minibroker.simulation.world.node import PROCESS, Process, ProcessDead
from minibroker.simulation.world.own_sockets import OwnSockets, resolved
from minibroker.simulation.world.real_waiting import NEEDS_REAL_TIME, forbid_real_waiting, refuse
from minibroker.simulation.world.streams import SimulatedServer, StreamCalls, hosts_of, refuse_unsimulated
from minibroker.simulation.world.unsimulated import Unsimulated

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START_TIME = 1_000.0
"""Loop time at the start: not 0, which hides bugs that confuse 'never' with 'at the beginning'."""

SECONDS_MAX = 30 * 86_400.0
"""A longer run waits for something that never comes, while heartbeats go on."""

CALLBACKS_PER_INSTANT_MAX = 1_000_000
"""More callbacks than this without time passing mean two tasks that wake each other endlessly."""

CANCELLED_TIMERS_KEPT = 1_000
"""Most deadlines are cancelled: at this many, if they are the majority, the heap is cleaned."""

GARBAGE_OBJECTS_MAX = 100_000
"""Allocated objects after which the garbage collector runs: some 20 MB."""

WORLD = contextvars.Context()
"""The context of callbacks of no process: those of the network and the disks."""


class Stuck(AssertionError):
    """Nothing is ready and no timer runs: what is awaited can never come."""


class Livelock(AssertionError):
    """Callbacks follow each other without end while time stands still."""


class Unhandled(AssertionError):
    """A callback or a task raised an exception that was never handled; the first such exception is the cause."""


class NodeHandle(events.TimerHandle):
    """A callback and its process, ready or waiting for its time. The loop runs it in one call instead of three: handles
    are made some 2,000 times a virtual second. There is one class of both kinds, because the
    interpreter specializes an instruction for the class that it meets there."""

    __slots__ = ("_process",)

    def __init__(
        self,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        loop: "VirtualLoop",
        context: contextvars.Context | None,
        when: float = 0.0,
    ) -> None:
        """`when`: the time of a timer; 0: it is ready."""
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        self._process = self._context.get(PROCESS)

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._callback = self._args = None  # type: ignore[assignment]
            if self._when:
                self._loop._timer_handle_cancelled(self)


class VirtualFuture(asyncio.Future[T]):
    """A future with the same hash in every run, drawn at its first use, which is rare."""

    _serial = 0

    def __hash__(self) -> int:
        if not self._serial:
            self._serial = cast(VirtualLoop, self.get_loop()).next_serial()
        return self._serial


class VirtualTask(asyncio.Task[T]):
    """A task with the same hash and name in every run, and its process."""

    def __init__(
        self,
        coro: Coroutine[Any, Any, T],
        *,
        loop: "VirtualLoop",
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> None:
        self._serial = loop.next_serial()
        self.process = PROCESS.get() if context is None else context.get(PROCESS)
        super().__init__(coro, loop=loop, name=name or f"task-{self._serial}", context=context)

    def __hash__(self) -> int:
        return self._serial

    @property
    def serial(self) -> int:
        return self._serial


class VirtualLoop(Unsimulated):
    """Run coroutines in virtual time: `VirtualLoop().run(main())`."""

    def __init__(self) -> None:
        super().__init__()
        self._serial = 0
        self.start_time = START_TIME
        self._now = START_TIME
        self.present = START_TIME
        """What `time` returns: ahead of the other processes for one that is in a slow synchronous call."""
        self.elapsed = 0.0
        """Virtual seconds since the start."""
        self._end_of_time = START_TIME + SECONDS_MAX
        self._timers: list[tuple[float, int, NodeHandle]] = []
        self._cancelled_timers = 0
        self._current: Process | None = None
        self.callbacks_run = 0
        self._callbacks_at_most = CALLBACKS_PER_INSTANT_MAX
        """As many callbacks may have run before time passes again."""
        self.unhandled: list[str] = []
        """Unhandled exceptions of callbacks and of tasks that were never awaited."""
        self._first_unhandled: BaseException | None = None
        self.unhandled_in: list[tuple[str, str]] = []
        """Those of a process, which would have ended a real one: its name, and the same line."""
        self.streams: StreamCalls | None = None
        """What `asyncio.start_server` and `open_connection` use; None where no simulated network is open for them."""
        self._own_sockets = OwnSockets()
        self._signal_handlers_before: dict[int, Any] = {}
        self.set_exception_handler(self._record_unhandled)

    # ------------------------------------------------------------------------------------------------- running
    def run(self, main: Coroutine[Any, Any, T], seconds_max: float = SECONDS_MAX) -> T:
        """Run to the end, once; cancel remaining tasks, and raise if anything failed unnoticed."""
        self._end_of_time = START_TIME + seconds_max
        with forbid_real_waiting(), garbage_collected_seldom():
            try:
                result = self.run_until_complete(main)
                self._cancel_what_is_left()
            finally:
                self.discard_tasks(lambda task: True)
                self.close()
        self.raise_unhandled()
        return result

    def raise_unhandled(self) -> None:
        if self.unhandled:
            raise Unhandled("unhandled in the virtual loop:\n" + "\n".join(self.unhandled)) from self._first_unhandled

    def _cancel_what_is_left(self) -> None:
        left = [task for task in self.tasks() if task.process is None]
        for task in left:
            task.cancel()
        if left:
            self.run_until_complete(asyncio.wait(left))

    def tasks(self) -> list[VirtualTask[Any]]:
        """All unfinished tasks of this loop, oldest first."""
        found = [task for task in asyncio.all_tasks(self) if isinstance(task, VirtualTask)]
        return sorted(found, key=lambda task: task.serial)

    def discard_tasks(self, belongs: Callable[[VirtualTask[Any]], bool]) -> None:
        """Discard tasks of dead processes. Their coroutines are closed; a port refuses what their `finally` blocks
        request, and what they await never comes."""
        for task in self.tasks():
            if belongs(task):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine = cast(Coroutine[Any, Any, Any], task.get_coro())
                if getattr(coroutine, "cr_running", False):
                    continue  # it is the caller: ProcessDead unwinds it
                context = task.process.context if task.process is not None else WORLD
                context.copy().run(close_coroutine, coroutine)

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def time(self) -> float:
        """Virtual seconds: `present`, as asyncio asks for it."""
        return self.present

    def charge(self, seconds: float) -> None:
        """The running process makes a synchronous call that takes this long; nothing else of it runs meanwhile."""
        if self._current is not None and seconds > 0:
            self.present += seconds
            self._current.busy_until = self.present

    def _hold(self, process: Process) -> None:
        """The process was charged for a synchronous call: nothing of it runs until the call ends."""
        self.present = self._now
        if process.alive:
            process.runs = False
            self.call_at(process.busy_until, self._release, process, context=WORLD)

    def _release(self, process: Process) -> None:
        process.wake(self._now)

    def run_again(self, handles: Iterable[asyncio.Handle]) -> None:
        self._ready.extend(handles)  # type: ignore[attr-defined]

    @property
    def _ready_queue(self) -> "deque[NodeHandle]":
        return cast("deque[NodeHandle]", self._ready)  # type: ignore[attr-defined]

    def _run_once(self) -> None:
        """Iterate until the loop is stopped: run one callback after the other, each on behalf of its process. It is the
        hot path of every run."""
        ready, timers = self._ready_queue, self._timers
        try:
            while True:
                if not ready and not self._stopping:  # type: ignore[attr-defined]
                    self._jump_to_next_timer()
                now = self._now
                while timers and timers[0][0] <= now:
                    ready.append(heapq.heappop(timers)[2])
                count = len(ready)
                self.callbacks_run += count
                if self.callbacks_run > self._callbacks_at_most:
                    raise Livelock(f"time stands still at {self.elapsed:.3f} s; running: {self.tasks()}")
                for _ in range(count):
                    handle = ready.popleft()
                    if handle._cancelled:
                        self._cancelled_timers -= handle._when > 0
                        continue
                    process = self._current = handle._process
                    if process is not None and not process.runs:
                        if process.alive:
                            process.backlog.append(handle)
                        continue
                    callback = handle._callback
                    try:
                        handle._context.run(callback, *handle._args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        what = f"Exception in callback {describe_callback(callback)}"
                        self.call_exception_handler({"message": what, "exception": error, "handle": handle})
                    if process is not None and self.present > now:
                        self._hold(process)
                if self._stopping:  # type: ignore[attr-defined]
                    return
        finally:
            self._current = None
            self.present = self._now

    def _jump_to_next_timer(self) -> None:
        timers = self._timers
        while True:
            if not timers:
                raise Stuck(f"nothing is left to happen at {self.elapsed:.3f} s; waiting: {self.tasks()}")
            when, _, handle = timers[0]
            if not handle._cancelled:
                break
            heapq.heappop(timers)
            self._cancelled_timers -= 1
        if when > self._now:
            self._now = self.present = when
            self.elapsed = when - START_TIME
            self._callbacks_at_most = self.callbacks_run + CALLBACKS_PER_INSTANT_MAX
            if when > self._end_of_time:
                raise Stuck(f"not done after {self.elapsed:.0f} s; waiting: {self.tasks()}")

    # ---------------------------------------------------------------------------------------------- scheduling
    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> NodeHandle:
        handle = NodeHandle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> NodeHandle:
        handle = NodeHandle(callback, args, self, context, when)
        self._serial += 1
        heapq.heappush(self._timers, (when, self._serial, handle))
        return handle

    def run_at(self, when: float, handle: NodeHandle) -> None:
        """Run it once more at that time. For what happens so often that a new handle each time would cost too much; it
        cannot be cancelled."""
        self._serial += 1
        heapq.heappush(self._timers, (when, self._serial, handle))

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> NodeHandle:
        return self.call_at(self.present + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        self._cancelled_timers += 1
        if self._cancelled_timers > CANCELLED_TIMERS_KEPT and self._cancelled_timers > len(self._timers) // 2:
            self._timers[:] = [entry for entry in self._timers if not entry[2]._cancelled]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    def create_future(self) -> VirtualFuture[Any]:
        return VirtualFuture(loop=self)

    def create_task(
        self, coro: Any, *, name: object = None, context: contextvars.Context | None = None
    ) -> VirtualTask[Any]:
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None and not process.alive:
            close_coroutine(coro)
        task = VirtualTask(coro, loop=self, name=None if name is None else str(name), context=context)
        if process is not None and not process.alive:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        return task

    # ---------------------------------------------------------------------------------------- not available here
    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> NodeHandle:
        if threading.get_ident() != self._thread_id:  # type: ignore[attr-defined]
            refuse("a thread")
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> NoReturn:
        refuse(f"a thread: {NEEDS_REAL_TIME}")

    # ------------------------------------------------------------------------------- a service's own connections
    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: object = None,
        sock: object = None,
        **options: Any,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        address = self._own_sockets.take(sock)
        if address is not None:
            (host, port), sock = address, None
        refuse_unsimulated(ssl=ssl, sock=sock)
        if self.streams is None or not host or port is None:
            refuse("a socket (there is a network while a simulated cluster is open)")
        return await self.streams.connect(protocol_factory, host, port)

    async def sock_connect(self, sock: Any, address: Any) -> None:
        """Only notes where to: `create_connection` with this socket, which clients call next, connects there over the
        simulated network instead."""
        self._own_sockets.note(sock, address)

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[Any]:
        """Asked by clients that resolve names themselves."""
        return resolved(host, port)

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | Sequence[str] | None = None,
        port: int | None = None,
        *,
        ssl: object = None,
        sock: object = None,
        start_serving: bool = True,
        **options: Any,
    ) -> SimulatedServer:
        refuse_unsimulated(ssl=ssl, sock=sock)
        if self.streams is None:
            refuse("a socket (there is a network while a simulated cluster is open)")
        server = self.streams.server(protocol_factory, hosts_of(host), port or 0)
        if start_serving:
            await server.start_serving()
        return server

    def add_signal_handler(self, sig: int, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """A signal to this process, as `signal.raise_signal` sends, calls `callback` on this loop."""
        before = signal.signal(sig, lambda *_: self.call_soon(callback, *args, context=WORLD))
        self._signal_handlers_before.setdefault(sig, before)

    def remove_signal_handler(self, sig: int) -> bool:
        if sig not in self._signal_handlers_before:
            return False
        signal.signal(sig, self._signal_handlers_before.pop(sig))
        return True

    def close(self) -> None:
        for sig in list(self._signal_handlers_before):
            self.remove_signal_handler(sig)
        super().close()

    def _record_unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error, task = context.get("exception"), context.get("future")
        if isinstance(task, VirtualTask) and task.process is not None and not task.process.alive:
            return  # its waiting task was killed before it could receive the error
        if not isinstance(error, ProcessDead):
            self.unhandled.append(f"{context['message']}: {error!r} {describe_origin(error)}")
            process = task.process if isinstance(task, VirtualTask) else self._current
            if process is not None:
                self.unhandled_in.append((process.name, self.unhandled[-1]))
            self._first_unhandled = self._first_unhandled or error


def describe_callback(callback: object) -> str:
    return getattr(callback, "__qualname__", type(callback).__name__)


def describe_origin(error: BaseException | None) -> str:
    """File and line of the innermost frame: enough to find it, the same in every run."""
    trace = error.__traceback__ if error is not None else None
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"


def close_coroutine(coroutine: "Coroutine[Any, Any, Any] | Generator[Any, Any, Any]") -> None:
    """Close it even if its cleanup awaits again and again. One that was never started has not awaited the coroutines
    that it was given: they are closed with it, or each would be reported as forgotten."""
    if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        assert coroutine.cr_frame is not None
        for given in coroutine.cr_frame.f_locals.values():
            if inspect.iscoroutine(given):
                close_coroutine(given)
    for _ in range(100):
        try:
            coroutine.close()
            return
        except RuntimeError:  # 'coroutine ignored GeneratorExit': it is at another await now
            continue
        except BaseException:
            return


@contextlib.contextmanager
def garbage_collected_seldom() -> Iterator[None]:
    """Run the collector rarely: it finds little in a run's objects, and takes a tenth of the time otherwise."""
    before = gc.get_threshold()
    gc.set_threshold(GARBAGE_OBJECTS_MAX, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
