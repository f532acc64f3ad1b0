"""How a tested cluster is opened: on a running virtual loop, on a new one, or as real processes.

Owns: the entry points. On an ordinary event loop `cluster` raises an error that names the alternatives, because a
simulation cannot run in real time.
"""

import asyncio
import functools
import inspect
import math
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args, overload

import msgspec

from minibroker.harness.cluster import SETTINGS, ClusterHarness
from minibroker.protocol.wire.message_types import REPLICAS_MAX

if TYPE_CHECKING:
    from minibroker.simulation.world.loop import VirtualLoop

T = TypeVar("T")
Backend: TypeAlias = Literal["simulated", "processes", "compose"]

VIRTUAL_SECONDS_MAX = 600.0
"""A test that runs longer probably waits for something that never happens. It costs some 10 s of real time."""


class NeedsVirtualTime(RuntimeError):
    """A simulated cluster was opened on an ordinary event loop."""


class NeedsRealTime(RuntimeError):
    """A cluster of processes or containers was opened on the event loop of a simulation."""


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of `cluster`, `simulated` and `@pytest.mark.minibroker`."""

    brokers: int = 3
    seed: int = 0
    """Of a simulation: the seed determines the order of events."""
    settings: dict[str, str] = {}
    """Settings of every broker, by their dotted names (docs/CONFIGURATION.md)."""
    backend: Backend = "simulated"
    """What the brokers run on: a simulation, processes of this machine, or containers of docker-compose.yml."""
    virtual_seconds_max: float = VIRTUAL_SECONDS_MAX
    """A simulated test that takes longer fails where it waits."""


class CommandLine:
    """Options of pytest's command line, which override those of a test. Set by the plugin."""

    seed: int | None = None
    backend: Backend | None = None


class cluster:
    """A cluster for one test: `async with cluster(brokers=3, seed=7) as c`.

    Raises ValueError for options that no cluster has, NeedsVirtualTime when a simulated one is entered on an ordinary
    event loop, NeedsRealTime when another one is entered on a virtual loop, and UnsupportedByBackend for options that
    the back end does not have."""

    def __init__(
        self,
        brokers: int = 3,
        seed: int = 0,
        *,
        settings: Mapping[str, str] | None = None,
        backend: Backend = "simulated",
    ) -> None:
        if not isinstance(brokers, int) or not 1 <= brokers <= REPLICAS_MAX:
            raise ValueError(f"brokers must be 1 to {REPLICAS_MAX}, not {brokers!r}")
        self._brokers = brokers
        self._seed = seed if CommandLine.seed is None else CommandLine.seed
        self._settings = _checked(settings or {})
        self._backend = CommandLine.backend or backend
        if self._backend not in get_args(Backend):
            raise ValueError(f"backend must be simulated, processes or compose, not {self._backend!r}")
        self._opened: Any = None

    async def __aenter__(self) -> ClusterHarness:
        self._opened = self._harness(SETTINGS | self._settings)
        opened: ClusterHarness = await self._opened.__aenter__()
        return opened

    def _harness(self, settings: dict[str, str]) -> ClusterHarness:
        """Each back end is imported when it is used."""
        if self._backend != "simulated":
            _refuse_virtual_loop(self._backend)
        if self._backend == "processes":
            from minibroker.harness.processes import ProcessHarness

            return ProcessHarness(self._brokers, settings)
        if self._backend == "compose":
            from minibroker.harness.compose import ComposeHarness

            return ComposeHarness(self._brokers, settings)
        from minibroker.harness.simulated import SimulatedHarness
        from minibroker.simulation.cluster import SimulatedCluster

        return SimulatedHarness(SimulatedCluster(self._seed, self._brokers, settings, _virtual_loop()))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened.__aexit__(kind, error, trace)


def _checked(settings: Mapping[str, str]) -> dict[str, str]:
    """Raises ValueError, which says what a broker would say."""
    from minibroker.commands.broker import NECESSARY_SETTINGS, problem_of_settings

    wrong = {name: value for name, value in settings.items() if not isinstance(value, str)}
    if wrong:
        raise ValueError(f"settings are texts, such as '1', not {wrong}")
    problem = problem_of_settings([*NECESSARY_SETTINGS, *(f"{name}={value}" for name, value in settings.items())])
    if problem is not None:
        raise ValueError(problem.removeprefix("--set: "))
    return dict(settings)


def _virtual_loop() -> "VirtualLoop":
    from minibroker.simulation.world.loop import VirtualLoop

    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise NeedsVirtualTime(
            "a simulated cluster needs virtual time, but this event loop runs in real time: mark the test with"
            " @pytest.mark.minibroker (or use the fixture minibroker_cluster), decorate it with"
            " @minibroker.testing.simulated, run it with minibroker.testing.run(..), or ask for"
            " cluster(backend='processes')"
        )
    return loop


def _refuse_virtual_loop(backend: Backend) -> None:
    from minibroker.simulation.world.loop import VirtualLoop

    if isinstance(asyncio.get_running_loop(), VirtualLoop):
        raise NeedsRealTime(
            f"a cluster of {backend} needs real time, but this event loop runs in virtual time: run it with"
            " asyncio.run(..) instead of minibroker.testing.run(..)"
        )


def run(main: Coroutine[Any, Any, T], *, virtual_seconds_max: float = VIRTUAL_SECONDS_MAX) -> T:
    """`asyncio.run` in virtual time, where `cluster` can be opened. TimeoutError after that many seconds of it."""
    from minibroker.simulation.world.loop import Stuck, VirtualLoop

    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(limited(main, virtual_seconds_max))
    except Stuck as stuck:
        # A task that exits ends the loop at once, and the brokers' tasks are gone when the rest is cancelled.
        if isinstance(stuck.__context__, SystemExit | KeyboardInterrupt):
            raise stuck.__context__ from None
        raise


async def limited(main: Coroutine[Any, Any, T], virtual_seconds_max: float) -> T:
    """Await `main`; a hang raises TimeoutError where it waits, because in virtual time it would never end."""
    if not 0 < virtual_seconds_max < math.inf:  # asyncio would never end a wait for NaN
        main.close()
        raise ValueError(f"virtual_seconds_max must be a number of seconds above 0, not {virtual_seconds_max!r}")
    try:
        async with asyncio.timeout(virtual_seconds_max) as deadline:
            return await main
    except TimeoutError as error:
        if not deadline.expired():
            raise
        late = (
            f"not done after {virtual_seconds_max:g} virtual seconds (virtual_seconds_max); it waits at the place above"
        )
        raise TimeoutError(late) from error.__cause__


@overload
def simulated(function: Callable[..., Coroutine[Any, Any, Any]], /) -> Callable[..., Any]: ...
@overload
def simulated(
    *, brokers: int = 3, seed: int = 0, settings: Mapping[str, str] | None = None, virtual_seconds_max: float = ...
) -> Callable[[Callable[..., Coroutine[Any, Any, Any]]], Callable[..., Any]]: ...
def simulated(
    function: Callable[..., Coroutine[Any, Any, Any]] | None = None,
    /,
    *,
    brokers: int = 3,
    seed: int = 0,
    settings: Mapping[str, str] | None = None,
    virtual_seconds_max: float = VIRTUAL_SECONDS_MAX,
) -> Any:
    """Turn an async function into an ordinary one that runs in virtual time, with an open cluster as first argument.

    Under `pytest --minibroker-backend processes` (or `compose`) it runs in real time on that back end.

    Works with any test runner: pytest with or without pytest-asyncio (fixtures are the other arguments), unittest, a
    script.
    """

    def decorate(test: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        @functools.wraps(test)
        def in_virtual_time(*arguments: Any, **named: Any) -> Any:
            is_method = bool(arguments) and first == "self"

            async def play() -> Any:
                async with cluster(brokers, seed, settings=settings) as opened:
                    return await test(*arguments[:is_method], opened, *arguments[is_method:], **named)

            if CommandLine.backend in (None, "simulated"):
                return run(play(), virtual_seconds_max=virtual_seconds_max)
            return asyncio.run(play())

        signature = inspect.signature(test)
        names = list(signature.parameters)
        first = names[0] if names else ""
        cluster_index = 1 if first == "self" else 0
        kept = [signature.parameters[name] for index, name in enumerate(names) if index != cluster_index]
        in_virtual_time.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        del in_virtual_time.__wrapped__
        return in_virtual_time

    return decorate if function is None else decorate(function)
