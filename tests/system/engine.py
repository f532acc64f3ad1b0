"""Is there a Docker engine with docker-compose (1.29 or v2), and how is it called?"""

from __future__ import annotations

import functools
import shutil
import subprocess


@functools.cache
def why_no_engine() -> str | None:
    """The reason to skip, or None where an engine answers."""
    if shutil.which("docker") is None:
        return "no docker command on PATH"
    if not _answers("docker", "info"):
        return "no Docker engine answers `docker info`"
    if compose_command() is None:
        return "neither `docker compose` nor `docker-compose` works"
    return None


@functools.cache
def compose_command() -> tuple[str, ...] | None:
    for command in (("docker", "compose"), ("docker-compose",)):
        if shutil.which(command[0]) and _answers(*command, "version"):
            return command
    return None


def _answers(*command: str) -> bool:
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
