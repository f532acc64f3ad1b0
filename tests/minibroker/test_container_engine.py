"""How docker-compose is found and called, with commands in the place of an engine."""

import os
import re
from pathlib import Path

import pytest

from minibroker.harness.container_engine import ComposeFailed, compose_command, own_names, own_ports, remove_project


class Commands:
    """A directory of commands, the only ones that there are. Each notes how it is called."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def add(self, name: str, *succeeds_with: str) -> None:
        """A command that succeeds if its words begin with one of these texts."""
        cases = "".join(f'"{words}"*) exit 0;;\n' for words in succeeds_with)
        file = self._directory / name
        file.write_text(
            f'#!/bin/sh\necho "$COMPOSE_PROJECT_NAME {name} $*" >> {self._directory}/called\n'
            f'case "$*" in\n{cases}esac\nexit 1\n'
        )
        file.chmod(0o755)

    def called(self) -> list[str]:
        return (self._directory / "called").read_text().splitlines()


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("PATH", str(tmp_path))
    return Commands(tmp_path)


def test_the_newer_docker_compose_is_preferred(commands: Commands) -> None:
    commands.add("docker", "info", "compose version")
    commands.add("docker-compose", "version")
    assert compose_command() == ("docker", "compose")


def test_the_older_docker_compose_is_called_without_buildkit(commands: Commands) -> None:
    commands.add("docker", "info")
    commands.add("docker-compose", "version")
    assert compose_command() == ("docker-compose",)
    assert own_names("mine", ("docker-compose",))["DOCKER_BUILDKIT"] == "0"
    assert "DOCKER_BUILDKIT" not in own_names("mine", ("docker", "compose"))


@pytest.mark.parametrize(
    ("works", "problem"),
    [
        (None, "no Docker engine answers `docker info`: start one"),
        ((), "no Docker engine answers `docker info`: start one"),
        (("info",), "neither `docker compose` nor `docker-compose` works: install one of them"),
    ],
)
def test_what_is_missing_is_named_with_its_cure(
    commands: Commands, works: tuple[str, ...] | None, problem: str
) -> None:
    if works is not None:
        commands.add("docker", *works)
    with pytest.raises(ComposeFailed, match=re.escape(problem)):
        compose_command()


def test_a_project_is_removed_with_its_images_although_one_command_fails(commands: Commands) -> None:
    commands.add("docker")
    environment = {**os.environ, **own_names("mine"), **own_ports({1: 19092})}
    remove_project(["docker", "compose"], environment, grace_s=3)
    assert commands.called() == [
        "mine docker compose --profile audit down -v --remove-orphans -t 3",
        "mine docker image rm -f --no-prune mine-broker mine-audit",
    ]
    assert environment["BROKER1_PORT"] == "19092"
