"""The pytest plugin in a user's project: another process and another folder, with only the package of ours."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

HANG_SECONDS = 300.0
"""A user's suite takes one second. In continuous integration one took more than a hundred, and nothing told where: a
machine that stood still is waited for, and a hang shows what each thread was doing."""

pytestmark = pytest.mark.timeout(HANG_SECONDS + 60)

SUITE = """
import asyncio, time
import pytest
from minibroker import Producer
from minibroker.testing import cluster, simulated

async def order_service(servers, orders):
    async with Producer(bootstrap_servers=servers) as producer:
        for number in range(orders):
            await producer.send_and_wait("orders", b"order %d" % number)
            await asyncio.sleep(1)

async def test_fixture(minibroker_cluster):
    c = minibroker_cluster
    await c.create_topic("orders")
    service = asyncio.create_task(order_service(c.bootstrap_servers, 60))
    await asyncio.sleep(5)
    await c.kill_leader("orders", 0)
    await service
    assert (await c.audit()).success

@pytest.mark.minibroker
async def test_inline():
    async with cluster(brokers=3, seed=7) as c:
        await c.create_topic("orders")
        await c.kill_leader("orders", 0)

@simulated(brokers=2, seed=7)
async def test_decorated(c, tmp_path):
    assert tmp_path.exists() and c.broker_ids == (1, 2)
    await asyncio.sleep(100)

class TestInAClass:
    @pytest.mark.minibroker(brokers=1)
    async def test_method(self, minibroker_cluster):
        assert minibroker_cluster.broker_ids == (1,)

@pytest.mark.asyncio
async def test_ordinary_tests_keep_their_loop():
    before = time.monotonic()
    await asyncio.sleep(0.05)
    assert time.monotonic() - before > 0.04

@pytest.mark.minibroker(brokers=2, seed=3)
async def test_failing(minibroker_cluster):
    await minibroker_cluster.create_topic("orders")
    assert "this fails" == ""

@pytest.mark.minibroker(virtual_seconds_max=20)
async def test_hanging(minibroker_cluster):
    await asyncio.Event().wait()
"""


def pytest_in(folder: Path, *arguments: str, before: Path | None = None) -> str:
    """The output of pytest in a user's folder; modules in `before` hide the installed ones."""
    path = [str(each) for each in (before, ROOT) if each is not None]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONFAULTHANDLER": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-p", "minibroker.testing.plugin", "-p", "no:cacheprovider", *arguments]
    return output_of(command, folder, environment)


def output_of(command: list[str], folder: Path, environment: dict[str, str], hang_seconds: float = HANG_SECONDS) -> str:
    """What a process prints. One that hangs is aborted, and the test fails with what it printed and where it was."""
    running = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        printed, _ = running.communicate(timeout=hang_seconds)
    except subprocess.TimeoutExpired:
        running.send_signal(signal.SIGABRT)
        printed, _ = running.communicate()
        pytest.fail(f"{command} did not end within {hang_seconds:g} s:\n{printed}", pytrace=False)
    return printed


def test_a_suite_that_hangs_shows_where(tmp_path: Path) -> None:
    program = "import sys, threading; print('begun', flush=True); threading.Event().wait()"
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    with pytest.raises(pytest.fail.Exception, match=r"(?s)did not end within 5 s:\nbegun\n.*in wait\n.*<string>"):
        output_of([sys.executable, "-c", program], tmp_path, environment, hang_seconds=5)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    settings = ["[pytest]", "asyncio_default_test_loop_scope = session", "addopts = --strict-markers"]
    (tmp_path / "pytest.ini").write_text("\n".join(settings))
    (tmp_path / "test_orders.py").write_text(SUITE)
    return tmp_path


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_a_users_suite_runs_in_either_mode(project: Path, mode: str) -> None:
    printed = pytest_in(project, f"--asyncio-mode={mode}", "-rA")
    passed = sorted(re.findall(r"^PASSED test_orders.py::(\S+)", printed, re.MULTILINE))
    expected = ["TestInAClass::test_method", "test_decorated", "test_fixture", "test_inline"]
    assert passed == [*expected, "test_ordinary_tests_keep_their_loop"], printed
    assert "2 failed" in printed
    assert "TimeoutError: not done after 20 virtual seconds" in printed
    assert re.search(r"minibroker: seed 3, trace hash [0-9a-f]{32}, [0-9.]+ virtual seconds", printed)
    assert "replay with: pytest 'test_orders.py::test_failing' --minibroker-seed 3" in printed


def test_a_failure_is_found_by_many_seeds_and_replayed_by_one(project: Path) -> None:
    hashes = re.compile(r"minibroker: seed (\d+), trace hash (\w+)")
    several = pytest_in(project, "--minibroker-seeds", "5", "-k", "failing")
    by_seed = dict(hashes.findall(several))
    assert sorted(by_seed) == ["0", "1", "2", "3", "4"], several
    assert len(set(by_seed.values())) == 5
    assert "replay with: pytest 'test_orders.py::test_failing' --minibroker-seed 4" in several
    again = pytest_in(project, "--minibroker-seed", "4", "-k", "failing")
    assert hashes.findall(again) == [("4", by_seed["4"])], again


@pytest.mark.parametrize("number", ["0", "-1", "99999999999", "x"])
def test_a_number_of_seeds_that_cannot_be_run_is_refused(project: Path, number: str) -> None:
    printed = pytest_in(project, "--minibroker-seeds", number)
    assert f"argument --minibroker-seeds: {number!r} is not a number from 1 to 100,000" in printed


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("brokerz=2", "mark.minibroker has no option brokerz: did you mean brokers?"),
        ("brokers='3'", "mark.minibroker: brokers='3' is not a number of brokers"),
        ("backend='procesess'", "backend='procesess' is not simulated, processes or compose"),
        ("3", "takes keywords only, as in mark.minibroker(brokers=3)"),
    ],
)
def test_a_wrong_marker_fails_its_own_test_only(tmp_path: Path, options: str, named: str) -> None:
    (tmp_path / "test_orders.py").write_text(
        f"import pytest\n@pytest.mark.minibroker({options})\nasync def test_wrong(minibroker_cluster): ...\n"
        "def test_other(): ...\n"
    )
    printed = pytest_in(tmp_path, "--asyncio-mode=auto")
    assert "1 passed, 1 error" in printed, printed
    assert named in printed and "msgspec" not in printed, printed


LEFTOVERS = """
import asyncio
from minibroker import Consumer

async def service(servers):
    async with Consumer("orders", bootstrap_servers=servers) as consumer:
        async for record in consumer: ...

async def test_service_runs_at_the_end(minibroker_cluster):
    await minibroker_cluster.create_topic("orders")
    task = asyncio.create_task(service(minibroker_cluster.bootstrap_servers), name="reader")
    await asyncio.sleep(2)

async def test_failing_while_the_service_runs(minibroker_cluster):
    await test_service_runs_at_the_end(minibroker_cluster)
    assert "this fails" == ""

async def test_leaked_consumer(minibroker_cluster):
    await minibroker_cluster.create_topic("orders")
    await Consumer("orders", bootstrap_servers=minibroker_cluster.bootstrap_servers).start()

async def test_leaked_consumer_beside_a_service(minibroker_cluster):
    await test_service_runs_at_the_end(minibroker_cluster)
    leaked = Consumer("orders", bootstrap_servers=minibroker_cluster.bootstrap_servers, client_id="audit")
    await leaked.start()

async def test_task_that_cannot_be_cancelled(minibroker_cluster):
    async def stubborn():
        while True:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError: ...
    task = asyncio.create_task(stubborn(), name="stubborn")
    await asyncio.sleep(2)
"""


def test_leftover_tasks_are_cancelled_and_named_once(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(LEFTOVERS)
    printed = pytest_in(tmp_path, "--asyncio-mode=auto")
    assert "1 failed, 4 passed, 5 warnings" in printed, printed
    assert "LeftoverTasks: cancelled at the end of the test: reader: service in test_orders.py:5" in printed
    assert "cancelled at the end of the test: 1 client that was not closed (minibroker-consumer)" in printed
    assert "reader: service in test_orders.py:5; 1 client that was not closed (audit)" in printed
    assert "stubborn in test_orders.py" in printed and "; stubborn ignored that" in printed
    assert "Stuck" not in printed
    chosen = ("-W", "error::minibroker.testing.LeftoverTasks", "-k", "leaked_consumer and not service")
    strict = pytest_in(tmp_path, "--asyncio-mode=auto", *chosen)
    assert "1 passed, 4 deselected, 1 error" in strict, strict


def test_without_pytest_asyncio_decorated_tests_run_and_others_name_the_cure(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden" / "pytest_asyncio"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('as if it were not installed')")
    (tmp_path / "test_orders.py").write_text(
        """
from minibroker.testing import simulated

@simulated(brokers=1)
async def test_decorated(c):
    await c.create_topic("orders")

async def test_fixture(minibroker_cluster): ...
"""
    )
    printed = pytest_in(tmp_path, "-p", "no:asyncio", "--strict-markers", before=hidden.parent)
    assert "1 passed" in printed and "1 error" in printed, printed
    assert "pip install 'pytest-asyncio>=1.4'" in printed, printed
