"""What a terminal shows of steps that block the main thread, and that Ctrl-C reaches them."""

import asyncio
import signal
import threading
from pathlib import Path

import pytest

from minibroker import step_line
from minibroker.demo import verdict
from minibroker.demo.ledger import Ledger
from minibroker.demo.output import DemoOutput
from minibroker.scenarios.live import played_variant
from minibroker.step_line import StepLine


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_line, "PROGRESS_EVERY_S", 0.001)


def test_the_present_step_is_shown_with_seconds_that_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line stood still for as long as a step took, a quarter of a minute for `starting Spark`."""
    now, shown, seen, before = [100.0], list[str](), threading.Event(), set(threading.enumerate())
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def show(text: str) -> None:
        shown.append(text)
        now[0] += 1
        if len(shown) >= 3:
            seen.set()

    with StepLine(show) as steps:
        steps.tell("starting Spark")
        assert seen.wait(10)
    assert shown[:3] == ["starting Spark, 0 s", "starting Spark, 1 s", "starting Spark, 2 s"]
    count = len(shown)
    assert set(threading.enumerate()) <= before  # other tests' threads may end meanwhile
    assert len(shown) == count


def test_without_a_terminal_there_is_no_thread() -> None:
    before = set(threading.enumerate())
    with StepLine() as steps:
        steps.tell("starting Spark")
        assert set(threading.enumerate()) <= before


def _interrupted_audit(*_: object, **__: object) -> None:
    """Ctrl-C while the audit runs."""
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()  # it would take the first Ctrl-C and wait
    signal.raise_signal(signal.SIGINT)
    raise AssertionError("Ctrl-C was ignored")


def test_ctrl_c_ends_the_audit_of_the_demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It waited for the end of Spark's job, half a minute, and a second one ended in a traceback."""
    monkeypatch.setattr(verdict, "run_audit", _interrupted_audit)
    with pytest.raises(KeyboardInterrupt):
        verdict.audit_files(DemoOutput(), tmp_path, tmp_path / "acked", Ledger(), "spark")


def test_ctrl_c_ends_the_audit_of_a_live_scenario(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def play_nothing(*arguments: object) -> played_variant.EndedPlay:
        return played_variant.EndedPlay(None, None, None, tmp_path)  # type: ignore[arg-type]  # is not reached

    monkeypatch.setattr(played_variant, "play_live", play_nothing)
    monkeypatch.setattr(played_variant, "audit_disks", _interrupted_audit)
    with pytest.raises(KeyboardInterrupt):
        played_variant.play_variant_live(None, None, print, engine="spark")  # type: ignore[arg-type]  # as above
