"""The jars of ZooKeeper: which ones, where they are on this machine, and fetching them once.

Owns: their Maven coordinates with checksums, the cache folder, and fetching them, by `mvn` or from a Maven repository.
Leaves to others: starting ZooKeeper (`zookeeper_process`). PySpark contains the same jars, which are used if none
were fetched.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

CACHE_VARIABLE = "MINIBROKER_CACHE_DIR"
FETCH_TIMEOUT_S = 900.0
"""About 7 MB over a slow connection, and Maven's own plugins."""
SILENCE_TIMEOUT_S = 30.0
JAR_BYTES_MAX = 32 * 1024 * 1024
"""Several times the largest jar: a mirror that sends without an end fills no disk."""
CHUNK_BYTES = 64 * 1024
INSTALL_COMMAND = "minibroker zookeeper install"
MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
"""Where the jars come from without `--mirror`, and without an mvn that may be set up to look elsewhere."""
WAYS = (
    f"run `{INSTALL_COMMAND}`, or use a ZooKeeper that runs already by --zookeeper HOST:PORT, or docker-compose.yml"
    " (docs/DOCKER.md), or pip install 'minibroker[spark]', which contains it"
)


class MissingZooKeeper(Exception):
    """ZooKeeper's jars are not on this machine. The message is one sentence with the cures."""


class CannotFetch(Exception):
    """The jars could not be fetched, or are not the pinned ones. The message is one sentence with the cure."""


class Jar(msgspec.Struct, frozen=True):
    """One jar by its Maven coordinates."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """In a Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.file_name}"


JARS = (
    Jar(
        "org.apache.zookeeper",
        "zookeeper",
        "3.9.5",
        "936d025db1a85f085edea25048c3f5b3de5fc29329c371a10925e3b78b0b38a0",
    ),
    Jar(
        "org.apache.zookeeper",
        "zookeeper-jute",
        "3.9.5",
        "abcbc7f9d6c493daa118da6fa3061a201e2c521217526e8535adfb56b629e52a",
    ),
    Jar(
        "io.dropwizard.metrics",
        "metrics-core",
        "4.2.37",
        "3c70d19049d10f474ab803706b9c0677bcf5fd9e1afeb4f6c496f62e38b27678",
    ),
    Jar(
        "org.xerial.snappy",
        "snappy-java",
        "1.1.10.8",
        "50485d06037fea3d6e40c968386feeca6338cc9872e25549593ff3eb352cefcc",
    ),
    Jar("org.slf4j", "slf4j-api", "2.0.17", "7b751d952061954d5abfed7181c1f645d336091b679891591d63329c622eb832"),
    Jar(
        "org.apache.logging.log4j",
        "log4j-slf4j2-impl",
        "2.25.4",
        "dd897abc5eb3a6d965426c7937b92dd43e67c82d9819bea5d19f311516c68be3",
    ),
    Jar(
        "org.apache.logging.log4j",
        "log4j-api",
        "2.25.4",
        "c4b642a7f047275215de117e0e3847eb2c7711d84a0aa7433e7b3c096daf341d",
    ),
    Jar(
        "org.apache.logging.log4j",
        "log4j-core",
        "2.25.4",
        "10fee2c0485d54fa44ee75d314f6295508f7b932281873db61a91b88073200e6",
    ),
)
"""What a standalone server needs, its own jar first; all of PySpark's jars would cost a second at each start."""


# -------------------------------------------------------------------------------------------------- where they are
def cache_directory() -> Path:
    """The user's folder for what is fetched once. The environment variable MINIBROKER_CACHE_DIR names another one."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "minibroker"


def installed_directory() -> Path:
    return cache_directory() / f"zookeeper-{JARS[0].version}"


def zookeeper_jars() -> list[str]:
    """The jars that were installed, else PySpark's, which is not imported. Raises MissingZooKeeper."""
    installed = [installed_directory() / jar.file_name for jar in JARS]
    if all(os.path.isfile(path) for path in installed):  # no error where the user may not look
        return [str(path) for path in installed]
    spec = find_spec("pyspark")
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    if not places:
        raise MissingZooKeeper(f"ZooKeeper is not installed: {WAYS}")
    directory = os.path.join(places[0], "jars")
    try:
        present = sorted(os.listdir(directory))
    except OSError:
        present = []
    jars = []
    for jar in JARS:
        pattern = re.compile(rf"{re.escape(jar.artifact)}-\d[\w.]*\.jar")
        found = [name for name in present if pattern.fullmatch(name)]
        if not found:
            raise MissingZooKeeper(f"{directory} holds no {jar.artifact}-*.jar: run `{INSTALL_COMMAND}`")
        jars.append(os.path.join(directory, found[-1]))
    return jars


# ------------------------------------------------------------------------------------------------------- fetching
def install_jars(mirror: str | None, progress: Callable[[str], None]) -> Path:
    """Fetch all jars, compare each with its checksum, and return their folder, which is complete or not there. What is
    there and right is not fetched again.

    `mirror` is the address of a Maven repository (http, https or file); without one, `mvn` fetches them from where it
    is set up to look, and where there is no `mvn` they come from Maven Central. `progress` gets a line for each
    step. Raises CannotFetch.
    """
    target = installed_directory()
    if _are_right(target):
        return target
    try:
        _install(target, mirror, progress)
    except OSError as error:
        raise CannotFetch(
            f"{error.filename or target} cannot be written ({error.strerror}): name another folder by {CACHE_VARIABLE},"
            " for `cluster up` too"
        ) from None
    return target


def _are_right(directory: Path) -> bool:
    try:
        return all(_checksum(directory / jar.file_name) == jar.sha256 for jar in JARS)
    except OSError:
        return False


def _checksum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _install(target: Path, mirror: str | None, progress: Callable[[str], None]) -> None:
    maven = shutil.which("mvn")
    if mirror is None and maven is None:
        mirror = MAVEN_CENTRAL
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=target.parent) as name:
        fresh = Path(name) / "jars"
        fresh.mkdir()
        if mirror is None:
            progress(f"fetching {len(JARS)} jars by mvn")
            assert maven is not None
            _fetch_by_maven(maven, Path(name), fresh)
        else:
            for jar in JARS:
                progress(f"fetching {jar.file_name}")
                _fetch_from(mirror.rstrip("/"), jar, fresh)
        for jar in JARS:
            found = _checksum(fresh / jar.file_name)
            if found != jar.sha256:
                raise CannotFetch(
                    f"{jar.file_name} has the SHA-256 {found}, not {jar.sha256}: it was damaged or replaced on its way,"
                    " and nothing was installed; try another --mirror"
                )
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)


def _fetch_by_maven(maven: str, directory: Path, target: Path) -> None:
    (directory / "pom.xml").write_text(_pom(), encoding="utf-8")
    command = [maven, "-q", "-B", "-f", str(directory / "pom.xml"), "dependency:copy-dependencies"]
    try:
        done = subprocess.run(
            [*command, f"-DoutputDirectory={target}"],
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotFetch(f"mvn cannot fetch the jars ({error}): check the network, or give --mirror URL") from None
    if done.returncode or any(not (target / jar.file_name).is_file() for jar in JARS):
        lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        reason = next((line for line in lines if "ERROR" in line), lines[-1] if lines else "no reason given")
        raise CannotFetch(f"mvn cannot fetch the jars ({reason[:300]}): check the network, or give --mirror URL")


def _pom() -> str:
    exclusions = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "".join(
        f"<dependency><groupId>{jar.group}</groupId><artifactId>{jar.artifact}</artifactId>"
        f"<version>{jar.version}</version>{exclusions}</dependency>"
        for jar in JARS
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>minibroker</groupId><artifactId>zookeeper</artifactId>"
        f"<version>1</version><dependencies>{dependencies}</dependencies></project>"
    )


def _fetch_from(mirror: str, jar: Jar, directory: Path) -> None:
    import http.client
    import urllib.request  # costs 30 ms, and only this needs it

    address = f"{mirror}/{jar.path}"
    if not address.startswith(("http://", "https://", "file://")):
        raise CannotFetch(f"--mirror {mirror} is not an http://, https:// or file:// address")
    try:
        with (
            urllib.request.urlopen(address, timeout=SILENCE_TIMEOUT_S) as answer,  # noqa: S310 - checked above
            open(directory / jar.file_name, "wb") as file,
        ):
            _copy_all(answer, file)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = " ".join(str(error).split())
        raise CannotFetch(
            f"{address} cannot be fetched ({reason:.300}): name a Maven repository that this machine reaches,"
            " by --mirror URL"
        ) from None


def _copy_all(answer: Any, file: BinaryIO) -> None:
    """Raises OSError for an answer without an end. `read1` waits for some bytes, `read` would for all of a chunk."""
    deadline = time.monotonic() + FETCH_TIMEOUT_S
    while chunk := answer.read1(CHUNK_BYTES):
        file.write(chunk)
        if file.tell() > JAR_BYTES_MAX:
            raise OSError(f"it sends more than {JAR_BYTES_MAX} bytes for one jar")
        if time.monotonic() > deadline:
            raise OSError(f"it has not sent all of it in {FETCH_TIMEOUT_S:g} s")
