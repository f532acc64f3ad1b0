"""Load generators as processes: starts and watches them, and reads their reports.

Owns: the life of one generator, whatever the peer. A generator prints JSON lines on stdout: `{"event": ..}` lines while
it works (a case may wait for one), and one `{"report": {..}}` at the end. The report includes its own CPU and peak
memory over the loaded part (`cpu_s`, `peak_rss_mb`), because only the generator knows when that part began.
"""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from minibroker.bench.case import CaseFailed, ProcessCost
from minibroker.bench.peers.peer import Peer

REPORT_TIMEOUT_S = 300.0
"""Rounds take seconds; a generator that is silent for this long hangs."""
STOP_TIMEOUT_S = 10.0
LINE_BYTES_MAX = 16 << 20
"""A failover generator reports the time of every acknowledgement."""


class LoadProcess:
    """One running generator. `error_lines` holds the end of its stderr."""

    def __init__(self, load: str, process: asyncio.subprocess.Process) -> None:
        self.load = load
        self.process = process
        self.error_lines: list[str] = []
        self._reading_errors = asyncio.create_task(self._read_errors())

    @property
    def pid(self) -> int:
        return self.process.pid

    async def wait_for(self, event: str, timeout_s: float = REPORT_TIMEOUT_S) -> dict[str, Any]:
        """The generator's next line with this event. Raises CaseFailed if it ends before that."""
        while True:
            line = await self._line(timeout_s)
            if line.get("event") == event:
                return line

    async def report(self, timeout_s: float = REPORT_TIMEOUT_S) -> dict[str, Any]:
        """Its final figures. Raises CaseFailed."""
        while True:
            line = await self._line(timeout_s)
            if "report" in line:
                found = line["report"]
                assert isinstance(found, dict)
                return found

    async def _line(self, timeout_s: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        try:
            text = await asyncio.wait_for(self.process.stdout.readline(), timeout_s)
        except TimeoutError:
            raise CaseFailed(f"the {self.load} generator is silent for {timeout_s:g} s") from None
        if not text.endswith(b"\n"):  # also if it ended within a line
            await self.process.wait()
            await self._reading_errors
            errors = " | ".join(self.error_lines[-3:]) or "(nothing)"
            raise CaseFailed(f"the {self.load} generator ended with {self.process.returncode}: {errors}")
        found = json.loads(text)
        assert isinstance(found, dict)
        return found

    async def _read_errors(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.error_lines = [*self.error_lines[-19:], line.decode(errors="replace").rstrip()]

    async def send_command(self, command: str) -> None:
        """One line on its stdin: 'go' or 'end'."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())
        await self.process.stdin.drain()

    async def stop(self) -> None:
        """Terminate it if it is still running."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self.process.wait(), STOP_TIMEOUT_S)
            except TimeoutError:
                self.process.kill()
                await self.process.wait()
        await self._reading_errors


@asynccontextmanager
async def running_load(peer: Peer, load: str, **arguments: Any) -> AsyncIterator[LoadProcess]:
    """A generator in the background; it is terminated when the block is left."""
    process = await asyncio.create_subprocess_exec(
        *peer.load_command(load, arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
        env=peer.load_environment(),
        start_new_session=True,  # Ctrl-C ends it through `stop`, in order
    )
    found = LoadProcess(load, process)
    try:
        yield found
    finally:
        await found.stop()


async def run_load(peer: Peer, load: str, **arguments: Any) -> dict[str, Any]:
    """Start a generator, and wait for its report."""
    async with running_load(peer, load, **arguments) as running:
        return await running.report()


def cost_of(role: str, report: dict[str, Any]) -> ProcessCost:
    """The generator's own cost, from its report."""
    return ProcessCost(role, round(report["cpu_s"], 3), round(report["peak_rss_mb"], 1))
