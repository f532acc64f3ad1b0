"""The tools that inspect a running process: py-spy for stacks, perf or strace for system calls.

Owns: which tool is available, how it is called, and what it may not do. Each is attached from outside for some seconds;
the profiled code is not involved.
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
"""Each sample stops the process for about 0.1 ms to walk its stack."""
SLACK_S = 20.0
"""Time to attach, to read symbols, to write the result."""


class NoSampler(Exception):
    """A tool is missing or not permitted. One sentence with the remedy."""


def find_py_spy() -> str:
    """Next to this Python, or on PATH. Raises NoSampler."""
    sibling = Path(sys.executable).with_name("py-spy")
    found = str(sibling) if sibling.exists() else shutil.which("py-spy")
    if found is None:
        raise NoSampler("py-spy is not installed: `make setup` brings it, or pip install py-spy")
    return found


def find_tracer() -> str | None:
    """The tool that counts system calls here, or None."""
    return shutil.which("perf") or shutil.which("strace")


async def sample_stacks(pid: int, seconds: float) -> list[Stack]:
    """Running threads only, machine code included. Raises NoSampler."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "stacks"
        command = [find_py_spy(), "record", "--pid", str(pid), "--duration", str(round(seconds)), "--native"]
        command += ["--rate", str(SAMPLES_PER_SECOND), "--format", "raw", "--output", str(path)]
        output = await _run(command, seconds + SLACK_S)
        if not path.exists():
            remedy = "run as root, or allow ptrace (sysctl kernel.yama.ptrace_scope=0)"
            raise NoSampler(f"py-spy could not inspect process {pid}: {remedy}; its output: {output[-300:].strip()}")
        return without_waiting(parse_folded(path.read_text()))


async def count_system_calls(pids: list[int], seconds: float) -> dict[int, list[SystemCall]]:
    """By process. perf counts in the kernel, strace stops the process twice per call. {} without either."""
    tracer = find_tracer()
    if tracer is None:
        return {}
    threads = {thread: pid for pid in pids for thread in thread_ids(pid)}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "calls"
        if os.path.basename(tracer) == "perf":
            command = [
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
            await _run(command, seconds + SLACK_S)
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


async def _run(command: list[str], within_s: float) -> str:
    """Its output; the process is killed if it does not end in time."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(within_s):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output.decode(errors="replace")
