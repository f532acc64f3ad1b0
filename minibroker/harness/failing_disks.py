"""Disks of brokers that fail: small file systems that fill up, and calls that strace lets fail.

Owns: what is mounted, the strace processes, and their end. Leaves to others: the brokers. Only root may do this, and
strace must be installed; else UnsupportedByBackend says so.
"""

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path

from minibroker.harness.hardware import DiskFault, UnsupportedByBackend

SIZE_MB = 512
"""Of each mounted file system: memory, used only as far as it is filled."""
ROOM_KB = 4
"""What is left when it is full: one page."""
WRITES = "pwrite64,write,pwritev,writev,pwritev2"
CALLS: dict[DiskFault, str] = {"sync": "fsync,fdatasync", "write": WRITES, "full": WRITES}
ERRORS: dict[DiskFault, str] = {"sync": "EIO", "write": "EIO", "full": "ENOSPC"}
END_SECONDS = 10.0


class FailingDisks:
    """Of one cluster of processes."""

    def __init__(self) -> None:
        self._mounted: dict[int, Path] = {}
        self._traces: dict[int, asyncio.subprocess.Process] = {}

    def mount(self, broker_id: int, directory: Path) -> None:
        """Give the broker a file system of its own, before its first start; without root it stays as it is."""
        directory.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m,mode=0700", "tmpfs", str(directory)]
        if os.geteuid() == 0 and _works(command):
            self._mounted[broker_id] = directory

    def unmount(self) -> None:
        """Copy what is there to the disk below, and end everything. The brokers must be down."""
        self.end_now()
        for broker_id, directory in sorted(self._mounted.items()):
            copy = directory.with_name(f"{directory.name}-copied")
            shutil.copytree(directory, copy, dirs_exist_ok=True)
            if _works(["umount", "-l", str(directory)]):
                directory.rmdir()
                copy.rename(directory)
            del broker_id
        self._mounted.clear()

    def end_now(self) -> None:
        """Kill every strace; what it traced runs on."""
        for trace in self._traces.values():
            if trace.returncode is None:
                trace.kill()
        self._traces.clear()

    async def fail(self, broker_id: int, process_id: int, directory: Path, fault: DiskFault) -> None:
        """Of a process on this machine, whose log directory this is."""
        if fault == "full":
            self._set_size(broker_id, _used_kb(directory) + ROOM_KB)
        else:
            await self.fail_calls(broker_id, process_id, _segments(directory), fault)

    async def fail_calls(self, broker_id: int, process_id: int, segments: Iterable[str], fault: DiskFault) -> None:
        """Let the syncs of a process fail, or its writes to these files, named as the process sees them: with EIO, or
        as a full disk does."""
        if os.geteuid() != 0 or shutil.which("strace") is None:
            raise UnsupportedByBackend("calls of a process fail by strace, as root only: apt-get install strace")
        paths = [word for file in segments for word in ("-P", file)] if fault != "sync" else []
        calls = CALLS[fault]
        self._traces[broker_id] = await asyncio.create_subprocess_exec(
            *("strace", "-qq", "-f", "-p", str(process_id), "-e", f"trace={calls}"),
            *("-e", f"inject={calls}:error={ERRORS[fault]}", "-o", "/dev/null", *paths),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )

    async def mend(self, broker_id: int) -> None:
        if broker_id in self._mounted:
            self._set_size(broker_id, SIZE_MB * 1024)
        trace = self._traces.pop(broker_id, None)
        if trace is not None and trace.returncode is None:
            trace.send_signal(signal.SIGINT)  # detaches
            try:
                await asyncio.wait_for(trace.wait(), END_SECONDS)
            except TimeoutError:
                trace.kill()

    def _set_size(self, broker_id: int, size_kb: int) -> None:
        directory = self._mounted.get(broker_id)
        if directory is None:
            raise UnsupportedByBackend("a disk fills up only on a file system of its own, which only root may mount")
        _works(["mount", "-o", f"remount,size={size_kb}k", str(directory)])


def _segments(directory: Path) -> list[str]:
    return [str(file) for file in sorted(directory.glob("*/*.log"))]


def _used_kb(directory: Path) -> int:
    found = os.statvfs(directory)
    return (found.f_blocks - found.f_bfree) * found.f_frsize // 1024


def _works(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
