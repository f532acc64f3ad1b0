"""The container engine of this machine, and the names under which docker-compose touches one project only.

Owns: whether there is an engine, how docker-compose is called (`docker compose`, or docker-compose 1.29), the
environment of its commands, and the blocking removal of a project. Leaves to others: what runs in the containers.
"""

import contextlib
import shutil
import subprocess
from collections.abc import Mapping, Sequence

ENGINE_SECONDS = 20.0
COMMAND_SECONDS = 120.0


class ComposeFailed(Exception):
    """The container engine is missing, or a command of it failed. One sentence."""


def compose_command() -> tuple[str, ...]:
    """The words that call docker-compose. Raises ComposeFailed with the cure. Blocks."""
    if shutil.which("docker") is None or not answers("docker", "info"):
        raise ComposeFailed("no Docker engine answers `docker info`: start one, or use another back end")
    for command in (("docker", "compose"), ("docker-compose",)):
        if shutil.which(command[0]) is not None and answers(*command, "version"):
            return command
    raise ComposeFailed("neither `docker compose` nor `docker-compose` works: install one of them")


def answers(*command: str, within_s: float = ENGINE_SECONDS) -> bool:
    """Does the command succeed? Blocks."""
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=within_s)
    except (OSError, subprocess.SubprocessError):
        return False
    return ended.returncode == 0


def own_names(name: str, command: Sequence[str] = ()) -> dict[str, str]:
    """Variables with which docker-compose, called by `command`, touches only its own containers, volumes and images."""
    own = {"COMPOSE_PROJECT_NAME": name, "BROKER_IMAGE": f"{name}-broker", "AUDIT_IMAGE": f"{name}-audit"}
    if tuple(command) == ("docker-compose",):
        own["DOCKER_BUILDKIT"] = "0"  # docker-compose 1.29 with a newer client without buildx
    return own


def own_ports(ports: Mapping[int, int]) -> dict[str, str]:
    """Variables that publish broker N at its port of this machine."""
    return {f"BROKER{number}_PORT": str(port) for number, port in ports.items()}


def remove_project(compose: Sequence[str], environment: Mapping[str, str], grace_s: int) -> None:
    """Remove containers, volumes, networks and images of `own_names`, and report no error; the build cache stays.
    Blocks."""
    down = [*compose, "--profile", "audit", "down", "-v", "--remove-orphans", "-t", str(grace_s)]
    images = ["docker", "image", "rm", "-f", "--no-prune", environment["BROKER_IMAGE"], environment["AUDIT_IMAGE"]]
    for words in (down, images):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                words,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=COMMAND_SECONDS,
                start_new_session=True,  # Ctrl-C does not end it
            )
