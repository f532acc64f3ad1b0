"""Is there a Docker engine with docker-compose (1.29 or v2), and how is it called?"""

from __future__ import annotations

import functools
import shutil
import subprocess

BASE_IMAGES = ("python:3.11-slim-bookworm", "zookeeper:3.9")


@functools.cache
def why_no_engine() -> str | None:
    """The reason to skip, or None if an engine answers."""
    if shutil.which("docker") is None:
        return "no docker command on PATH"
    if not _answers("docker", "info"):
        return "no Docker engine answers `docker info`"
    if compose_command() is None:
        return "neither `docker compose` nor `docker-compose` works"
    return None


@functools.cache
def why_no_images() -> str | None:
    """The reason to skip if an engine answers but a base image is missing and cannot be pulled."""
    for image in BASE_IMAGES:
        if not _answers("docker", "image", "inspect", image) and not _answers(
            "docker", "pull", "-q", image, within_s=600
        ):
            return f"the image {image} is not here and cannot be pulled"
    return None


@functools.cache
def compose_command() -> tuple[str, ...] | None:
    for command in (("docker", "compose"), ("docker-compose",)):
        if shutil.which(command[0]) and _answers(*command, "version"):
            return command
    return None


def _answers(*command: str, within_s: float = 20) -> bool:
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=within_s)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0
