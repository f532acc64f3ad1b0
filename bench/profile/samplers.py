"""The tools that look into a running process: py-spy for stacks, perf or strace for system calls.

Owns: which tool is here, how it is called, and what it may not do. Each is attached from outside for some seconds; the
profiled code knows nothing of it.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

from minibroker.bench.profile.cpu import thread_ids
from minibroker.bench.profile.stacks import Stack, parse_folded, without_waiting
from minibroker.bench.profile.system_calls import SystemCall, parse_perf_trace, parse_strace

SAMPLES_PER_SECOND = 400
"""Each stops the process for about 0.1 ms to walk its stack."""
SLACK_S = 20.0
"""To attach, to read symbols, to write the result."""


class NoSampler(Exception):
    """A tool is missing or may not look. One sentence with the cure."""


def find_py_spy() -> str:
    """Beside this Python, or on PATH. Raises NoSampler."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise NoSampler("py-spy is not installed: `make setup` brings it, or pip install py-spy")
    return found


def find_tracer() -> str | None:
    """What counts system calls here, or None."""
    return shutil.which("perf") or shutil.which("strace")


async def sample_stacks(pid: int, seconds: float) -> list[Stack]:
    """Running threads only, machine code included. Raises NoSampler."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "stacks"
        words = [find_py_spy(), "record", "--pid", str(pid), "--duration", str(round(seconds)), "--native"]
        words += ["--rate", str(SAMPLES_PER_SECOND), "--format", "raw", "--output", str(path)]
        said = await _run(words, seconds + SLACK_S)
        if not path.exists():
            cure = "run as root, or allow ptrace (sysctl kernel.yama.ptrace_scope=0)"
            raise NoSampler(f"py-spy could not look into process {pid}: {cure}; it said: {said[-300:].strip()}")
        return without_waiting(parse_folded(path.read_text()))


async def count_system_calls(pids: list[int], seconds: float) -> dict[int, list[SystemCall]]:
    """By process. perf counts in the kernel, strace stops the process twice a call. {} without either."""
    tracer = find_tracer()
    if tracer is None:
        return {}
    threads = {thread: pid for pid in pids for thread in thread_ids(pid)}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "calls"
        if os.path.basename(tracer) == "perf":
            words = [
                tracer,
                "trace",
                "-s",
                "-o",
                str(path),
                "-p",
                ",".join(map(str, pids)),
                "--",
                "sleep",
                str(seconds),
            ]
            await _run(words, seconds + SLACK_S)
            found = parse_perf_trace(path.read_text(), threads) if path.exists() else {}
            if found or (tracer := shutil.which("strace") or "") == "":
                return found
        traced = (
            _run(
                ["timeout", "-s", "INT", str(seconds), tracer, "-c", "-f", "-o", f"{path}.{pid}", "-p", str(pid)],
                seconds + SLACK_S,
            )
            for pid in pids
        )
        await asyncio.gather(*traced)
        files = {pid: Path(f"{path}.{pid}") for pid in pids}
        return {pid: parse_strace(file.read_text()) for pid, file in files.items() if file.exists()}


async def _run(words: list[str], within_s: float) -> str:
    """What it said; it is killed when it does not end."""
    process = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(within_s):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return said.decode(errors="replace")
