"""`.ci/setup` names what helps: a package where apt has it, another way where it has none. Runs on made-up machines."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.tidy.source import ROOT

TOOLS = ("sh", "basename", "cat", "date", "dirname", "head", "sed")
JAVA_17 = "echo 'openjdk version \"17.0.1\"' >&2"


class Machine:
    """A folder with all programs that `.ci/setup` finds, and a copy of it. The user is not root."""

    def __init__(self, directory: Path) -> None:
        self.programs = directory / "bin"
        self.programs.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None
            (self.programs / tool).symlink_to(found)
        self.program("id", "echo 1000")
        self.script = directory / "project" / ".ci" / "setup"
        self.script.parent.mkdir(parents=True)
        shutil.copyfile(ROOT / ".ci" / "setup", self.script)

    def program(self, name: str, body: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def python(self, name: str, version: str) -> None:
        """An interpreter without `venv`, as Debian's is. It fails the check of its version if it is too old."""
        is_old = int(version.split(".")[1]) < 11
        self.program(
            name,
            f'case "$2" in *version_info*) exit {int(is_old)} ;; *python_version*) echo {version} ;; *) exit 1 ;; esac',
        )

    def apt(self, python3: str, *packages: str) -> None:
        """Packages that can be installed. Of others it knows the name, as of those that a package only mentions."""
        cases = f"python3) echo '  Candidate: {python3}' ;; "
        cases += "".join(f"{name}) echo '  Candidate: 1.0' ;; " for name in packages)
        self.program("apt-cache", f"[ $1 = policy ] || exit 0\ncase $2 in {cases}*) echo '  Candidate: (none)' ;; esac")

    def setup(self, **environment: str) -> str:
        """What it says before it gives up."""
        done: Any = subprocess.run(
            [str(self.programs / "sh"), str(self.script)],
            env={"PATH": os.fspath(self.programs), **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
        assert done.returncode == 1, done.stderr
        return str(done.stderr)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_old_python_without_a_newer_package_gets_another_way(machine: Machine) -> None:
    machine.python("python3", "3.10.13")
    machine.apt("3.10.6-1")
    machine.program("java", JAVA_17)
    said = machine.setup()
    assert "Python 3.11 or newer is needed; python3 is 3.10.13, and this system has no package of a newer one." in said
    assert "PYTHON=/path/to/python3.12 make setup" in said
    assert "apt-get install" not in said


def test_python_that_is_named_and_too_old_is_named_again(machine: Machine) -> None:
    machine.python("python3.9", "3.9.18")
    machine.apt("3.11.2-1")
    machine.program("java", JAVA_17)
    said = machine.setup(PYTHON="python3.9")
    assert "Python 3.11 or newer is needed; python3.9 is 3.9.18." in said
    assert "apt-get install" not in said


def test_newer_python_that_apt_has_beside_the_old_one_is_named(machine: Machine) -> None:
    """Ubuntu 22.04."""
    machine.python("python3", "3.10.12")
    machine.apt("3.10.6-1", "python3.11", "python3.11-venv", "openjdk-17-jre-headless", "openjdk-21-jre-headless")
    assert machine.setup().endswith(
        "sudo apt-get install -y python3.11 python3.11-venv openjdk-17-jre-headless\n",
    )


def test_java_is_the_oldest_that_the_release_has(machine: Machine) -> None:
    """Debian 13."""
    machine.python("python3", "3.13.5")
    machine.apt("3.13.5-1", "openjdk-21-jre-headless", "openjdk-25-jre-headless")
    assert machine.setup().endswith("sudo apt-get install -y python3-venv openjdk-21-jre-headless\n")


def test_machine_without_apt_gets_no_line_for_apt(machine: Machine) -> None:
    machine.program("java", JAVA_17)
    said = machine.setup()
    assert "Python 3.11 or newer is needed; python3 is missing" in said
    assert "apt-get install" not in said
