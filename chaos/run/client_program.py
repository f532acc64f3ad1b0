"""A program of the user as the load of a run, in place of the run's own clients.

Owns: its environment, its start and its end. Leaves to others: what its lines mean (`client_lines`).
"""

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import Mapping
from pathlib import Path

from minibroker.chaos.run.client_lines import LINE_BYTES_MAX, BadLine, ClientLines

LOG_FILE = "client.log"
"""What the program writes to standard error, in the directory of the run."""
ENDED_BY_US = (0, -signal.SIGTERM, 128 + signal.SIGTERM)


class ProgramFailed(Exception):
    """The program ended by itself, or wrote something else than events."""


class ClientProgram:
    """`run` is a task of its owner. `stop` asks it to end; a task that is cancelled kills it."""

    def __init__(self, command: str, environment: Mapping[str, str], lines: ClientLines, log: Path) -> None:
        self._command = command
        self._environment = {**os.environ, **environment}
        self._lines = lines
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._is_stopping = False

    def stop(self) -> None:
        """It sends nothing more, tells the outcomes that it learns, and ends."""
        self._is_stopping = True
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    async def run(self) -> None:
        """Until it ends. Raises ProgramFailed."""
        with self._log.open("wb") as log:
            try:
                process = self._process = await asyncio.create_subprocess_exec(
                    *shlex.split(self._command),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    env=self._environment,
                    limit=LINE_BYTES_MAX,
                    start_new_session=True,  # Ctrl-C ends the faults, not the load
                )
            except (OSError, ValueError) as error:
                raise ProgramFailed(f"{self._command!r} cannot be started: {error}") from None
            try:
                await self._read_lines(process)
                code = await process.wait()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if not self._is_stopping or code not in ENDED_BY_US:
            when = "after SIGTERM" if self._is_stopping else "before the run"
            raise ProgramFailed(f"{self._command!r} ended with exit code {code} {when}: see {self._log}")

    async def _read_lines(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        number = 0
        while True:
            number += 1
            try:
                line = await process.stdout.readline()
                if not line:
                    return
                if line.strip():
                    self._lines.take(line)
            except BadLine as error:
                raise ProgramFailed(f"{self._command!r} wrote line {number}: {error}") from None
            except ValueError:
                text = f"{self._command!r} wrote line {number}: it is longer than {LINE_BYTES_MAX} bytes"
                raise ProgramFailed(text) from None
