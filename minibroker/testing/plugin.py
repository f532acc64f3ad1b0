"""The pytest plugin: tests that use a cluster run in virtual time, and their failures print how to replay them.

Loaded automatically where minibroker is installed, else by `pytest_plugins = ["minibroker.testing.plugin"]`. It affects
only tests with the fixture `minibroker_cluster` or the mark `@pytest.mark.minibroker(..)`, with the keywords of
`cluster`. It needs pytest-asyncio for these, in either mode. The simulation is imported only when it is used.
"""

import argparse
import asyncio
import difflib
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

if TYPE_CHECKING:
    from minibroker.harness.cluster import ClusterHarness
    from minibroker.testing.opening import ClusterOptions

MARKER = "minibroker"
FIXTURE = "minibroker_cluster"
CLUSTER = pytest.StashKey["ClusterHarness"]()
EXPECTED = {
    "brokers": "a number of brokers",
    "seed": "a whole number",
    "settings": "a dict of texts",
    "backend": "simulated, processes or compose",
    "virtual_seconds_max": "a number of seconds",
}
CURE = "pip install 'pytest-asyncio>=1.4', or decorate the test with @minibroker.testing.simulated instead"

try:
    import pytest_asyncio
    from pytest_asyncio.plugin import PytestAsyncioSpecs
except ImportError:
    has_loop_factories = False
else:
    has_loop_factories = hasattr(PytestAsyncioSpecs, "pytest_asyncio_loop_factories")


SEEDS_MAX = 100_000
"""Each is a test that pytest collects before the first one runs; so many take a minute and a gigabyte of memory."""


def _number_of_seeds(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= SEEDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {SEEDS_MAX:,}")
    return number


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("minibroker", "clusters under test (minibroker.testing)")
    group.addoption("--minibroker-seed", type=int, metavar="N", help="the seed of every simulated cluster")
    group.addoption(
        "--minibroker-seeds",
        type=_number_of_seeds,
        metavar="N",
        help="run each simulated test N times, with seeds 0 to N-1",
    )
    group.addoption(
        "--minibroker-backend",
        choices=("simulated", "processes", "compose"),
        help="what the clusters of all tests run on: a simulation, processes of this machine, or containers",
    )


def pytest_configure(config: pytest.Config) -> None:
    seed, backend = config.getoption("minibroker_seed"), config.getoption("minibroker_backend")
    if seed is not None or backend is not None:
        from minibroker.testing.opening import CommandLine

        CommandLine.seed, CommandLine.backend = seed, backend
    config.addinivalue_line(
        "markers",
        f"{MARKER}(brokers=3, seed=0, settings=None, backend='simulated', virtual_seconds_max=600): run this"
        f" async test in virtual time; the options of the fixture {FIXTURE}",
    )


def _options_of(node: pytest.Item, config: pytest.Config) -> "ClusterOptions | None":
    """The options of a test's cluster; None for a test without one."""
    marker = node.get_closest_marker(MARKER)
    if marker is None and FIXTURE not in getattr(node, "fixturenames", ()):
        return None
    from minibroker.testing.opening import ClusterOptions

    given = {} if marker is None or _misuse_of(marker) else dict(marker.kwargs)
    if config.getoption("minibroker_backend") is not None:
        given["backend"] = config.getoption("minibroker_backend")
    callspec = getattr(node, "callspec", None)
    if callspec is not None and SEED in callspec.params:
        given["seed"] = callspec.params[SEED]
    return msgspec.convert(given, ClusterOptions)


def _misuse_of(marker: pytest.Mark) -> str | None:
    """What is wrong with a marker, in one sentence. Only its own test fails for it."""
    from minibroker.testing.opening import ClusterOptions

    if marker.args:
        return f"mark.{MARKER} takes keywords only, as in mark.{MARKER}(brokers=3)"
    fields = {field.name: field.type for field in msgspec.structs.fields(ClusterOptions)}
    for name, value in marker.kwargs.items():
        if name not in fields:
            close = difflib.get_close_matches(name, fields, 1)
            hint = f"did you mean {close[0]}?" if close else "there are"
            return f"mark.{MARKER} has no option {name}: {hint} ({', '.join(fields)})"
        try:
            msgspec.convert(value, fields[name])
        except msgspec.ValidationError:
            return f"mark.{MARKER}: {name}={value!r} is not {EXPECTED[name]}"
    return None


# ------------------------------------------------------------------------------- which loop a test runs on
SEED = "minibroker_seed"


class VirtualLoops:
    """Names the virtual loop to pytest-asyncio while one test is collected."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_asyncio_loop_factories(self) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
        from minibroker.simulation.world.loop import VirtualLoop

        return {"virtual": VirtualLoop}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, None, None]:
    options = _options_of(metafunc.definition, metafunc.config)
    if options is None:
        return (yield)
    _ask_for_own_loop(metafunc.definition)
    if options.backend != "simulated":
        return (yield)
    seeds = metafunc.config.getoption("minibroker_seeds")
    if seeds is not None and FIXTURE in metafunc.fixturenames:
        metafunc.parametrize(SEED, range(seeds), ids=[f"seed={seed}" for seed in range(seeds)], indirect=True)
    if not has_loop_factories:
        return (yield)
    loops, plugins = VirtualLoops(), metafunc.config.pluginmanager
    plugins.register(loops)
    try:
        return (yield)
    finally:
        plugins.unregister(loops)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_pycollect_makeitem(collector: Any, name: str, obj: object) -> Generator[None, Any, Any]:
    made = yield  # this is the inner wrapper: pytest-asyncio looks for its marker afterwards
    for node in made if isinstance(made, list) else [made]:
        if isinstance(node, pytest.Function) and _options_of(node, node.config) is not None:
            _ask_for_own_loop(node)
    return made


def _ask_for_own_loop(node: pytest.Item) -> None:
    """Add asyncio's marker, which strict mode needs, with a loop of its own, whatever the project's default is."""
    if has_loop_factories and inspect.iscoroutinefunction(getattr(node, "obj", None)):
        node.add_marker(pytest.mark.asyncio(loop_scope="function"), append=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    options = _options_of(item, item.config)
    if options is None or not isinstance(item, pytest.Function):
        return
    marker = item.get_closest_marker(MARKER)
    if marker is not None and (misuse := _misuse_of(marker)):
        pytest.fail(misuse, pytrace=False)
    if not inspect.iscoroutinefunction(item.obj):
        pytest.fail(f"{item.name} uses a minibroker cluster, so it must be `async def`", pytrace=False)
    if not has_loop_factories:
        pytest.fail(f"a minibroker cluster in a test needs a newer pytest-asyncio: {CURE}", pytrace=False)
    if options.backend == "simulated":
        item.obj = _limited(item.obj, options.virtual_seconds_max)


def _limited(test: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    from minibroker.testing.opening import limited

    @functools.wraps(test)
    async def limited_test(*arguments: Any, **named: Any) -> None:
        await limited(test(*arguments, **named), seconds)

    return limited_test


# ---------------------------------------------------------------------------------------------------- fixtures
@pytest.fixture
def minibroker_seed(request: pytest.FixtureRequest) -> int:
    """The seed of this test's cluster."""
    options = _options_of(request.node, request.config)
    return 0 if options is None else options.seed


async def _minibroker_cluster(request: pytest.FixtureRequest, minibroker_seed: int) -> "AsyncIterator[ClusterHarness]":
    """An open cluster, simulated unless the marker or `--minibroker-backend` names another back end."""
    from minibroker.testing.opening import cluster

    options = _options_of(request.node, request.config)
    assert options is not None
    async with cluster(options.brokers, minibroker_seed, settings=options.settings, backend=options.backend) as opened:
        request.node.stash[CLUSTER] = opened
        yield opened


if has_loop_factories:
    minibroker_cluster = pytest_asyncio.fixture(loop_scope="function", name=FIXTURE)(_minibroker_cluster)
else:

    @pytest.fixture(name=FIXTURE)
    def minibroker_cluster() -> None:
        pytest.fail(f"a minibroker cluster in a test needs a newer pytest-asyncio: {CURE}", pytrace=False)


# ------------------------------------------------------------------------------------------------------ reports
@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    opened = item.stash.get(CLUSTER, None)
    if opened is not None and call.when == "call" and report.failed:
        lines = opened.describe()
        if opened.seed is not None:
            name = item.nodeid if item.config.getoption("minibroker_seeds") is None else item.nodeid.split("[")[0]
            lines.append(f"minibroker: replay with: pytest '{name}' --minibroker-seed {opened.seed}")
        report.sections.append(("minibroker cluster", "\n".join(lines)))
    return report
