"""Commands import what they need and no heavy package, because users wait for the start of every command."""

import subprocess
import sys

import pytest

HEAVY = {"rich", "pyspark", "pandas", "numpy", "pyarrow", "kazoo", "prometheus_client", "google_crc32c"}
PROTOCOL = {"asyncio", "uvloop", "msgspec", "msgpack", "crc32c"}
REFUSED = ["-b", "127.0.0.1:1", "--timeout", "2"]


def imported_by(arguments: list[str]) -> set[str]:
    """Top-level packages that a run of the command imports, as -X importtime lists them."""
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "minibroker", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    lines = [line for line in run.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


@pytest.mark.parametrize("arguments", [["--help"], ["cluster", "--help"], ["topic", "--help"], ["--version"]])
def test_help_imports_neither_asyncio_nor_the_protocol(arguments: list[str]) -> None:
    assert imported_by(arguments) & (HEAVY | PROTOCOL) == set()


@pytest.mark.parametrize(
    "arguments",
    [["produce", "-t", "t", *REFUSED], ["consume", "-t", "t", "-e", *REFUSED], ["offsets", "-t", "t", *REFUSED]],
)
def test_record_commands_import_no_heavy_package(arguments: list[str]) -> None:
    imported = imported_by(arguments)
    assert "asyncio" in imported, "the command did not get as far as asking a broker"
    assert imported & HEAVY == set()


def test_subcommand_imports_no_other_command() -> None:
    run = subprocess.run(
        [sys.executable, "-c", "import sys; import minibroker.commands.consume; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    commands = {name for name in run.stdout.split() if name.startswith("minibroker.commands.")}
    assert commands == {"minibroker.commands.consume"}
