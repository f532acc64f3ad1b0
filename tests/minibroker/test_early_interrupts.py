"""Ctrl-C before a command has imported what it needs, or has begun its work."""

import asyncio
import gc
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minibroker import early_interrupts
from minibroker.command_line import run_async
from minibroker.commands.cluster import run_on_cluster

INTERRUPTED_IMPORT = """
import signal
def interrupt(*_):
    signal.raise_signal(signal.SIGINT)
"""


def run_interrupted(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """`python ARGUMENTS`, with a Ctrl-C in the middle of its first import of click."""
    (directory / "click").mkdir()
    (directory / "click" / "__init__.py").write_text(f"{INTERRUPTED_IMPORT}\ninterrupt()\n")
    here = str(Path(early_interrupts.__file__).parents[1])
    environment = {"PYTHONPATH": f"{directory}:{here}", "TMPDIR": str(directory), "PATH": "/bin"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("-m", "minibroker", "--help"),
        ("-m", "minibroker.demo"),
        ("-c", "from minibroker.installed_command import main; main()"),
    ],
    ids=["module", "demo", "installed"],
)
def test_it_ends_the_process_without_a_traceback(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """A loop of short commands was mostly interrupted there."""
    run = run_interrupted(tmp_path, *arguments)
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "")


def test_only_pythons_own_handler_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell lets what it starts in its background ignore Ctrl-C."""
    set_to: list[object] = []
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_IGN)
    monkeypatch.setattr(signal, "signal", lambda _, handler: set_to.append(handler))
    early_interrupts.end_quietly()
    early_interrupts.raise_again()
    assert set_to == []


@pytest.mark.parametrize("on_cluster", [False, True])
def test_an_interrupt_before_the_work_begins_warns_of_nothing(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, tmp_path: Path, on_cluster: bool
) -> None:
    """It was a warning of a coroutine that was never awaited."""

    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(asyncio, "Runner", interrupted)
    with pytest.raises(KeyboardInterrupt):
        if on_cluster:
            run_on_cluster(asyncio.sleep(0), tmp_path, 1, "sleep")
        else:
            run_async(asyncio.sleep(0), 1)
    gc.collect()  # also of what earlier tests left, which may warn of other things
    assert [str(each.message) for each in recwarn if "never awaited" in str(each.message)] == []
