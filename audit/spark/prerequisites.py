"""Checks what Spark needs before it starts: Spark's own messages for these cases are stack traces.

Owns: one clear sentence and the remedy for a missing Java, library or worker Python. Runs at most two short processes.
"""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

from minibroker.audit.errors import AuditError

PYTHON_WANTED = (3, 11)
JAVA_WANTED = 17
PYARROW_WANTED = 18
PYSPARK_WANTED = 4
INSTALL = "pip install 'minibroker[spark]'"
NO_SPARK = "or run the same audit without Spark: minibroker audit --engine local"
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
PROBE_SECONDS = 20
_WORKER_PROBE = (
    "import sys, msgspec, crc32c, pyarrow, pyspark; print('%d.%d' % sys.version_info[:2]); import minibroker.protocol"
)


def check_spark(*, local_workers: bool = True) -> None:
    """Raise AuditError for the first thing that Spark lacks. What a cluster's workers lack cannot be seen from here."""
    check_libraries()
    if local_workers:
        check_worker_python()
    check_java()


def check_libraries() -> None:
    """The driver's Python and the libraries of the extra `spark`."""
    if sys.version_info < PYTHON_WANTED:
        raise AuditError(f"the driver runs Python {sys.version.split()[0]}, Spark's audit needs 3.11 or later")
    for name, wanted in (("pyspark", PYSPARK_WANTED), ("pyarrow", PYARROW_WANTED)):
        try:
            found = version(name)
        except PackageNotFoundError:
            raise AuditError(f"{name} is not installed for {sys.executable}: {INSTALL}, {NO_SPARK}") from None
        if int(found.split(".")[0]) < wanted:
            raise AuditError(f"{name} {found} is too old, {wanted} or later is needed: {INSTALL}, {NO_SPARK}")


def find_java() -> str | None:
    """The java that Spark would start: JAVA_HOME, then PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = os.path.join(home, "bin", "java")
        return java if os.access(java, os.X_OK) else None
    return shutil.which("java")


def check_java() -> None:
    """Java 17 or later, with the vector module that Spark 4.3 requires (trimmed runtimes lack it)."""
    java = find_java()
    cure = "install a JRE of version 17 or later (Debian, Ubuntu: apt install default-jre-headless)"
    if java is None:
        home = os.environ.get("JAVA_HOME")
        where = f"JAVA_HOME={home} holds no bin/java" if home else "no java on PATH and JAVA_HOME is not set"
        raise AuditError(f"Spark needs Java: {where}; {cure}, {NO_SPARK}")
    probe = _run([java, VECTOR_MODULE, "-version"])
    if probe.returncode == 0:
        found = _java_version(probe.stderr)
        if found is not None and found >= JAVA_WANTED:
            return
        raise AuditError(f"{java} is Java {found or 'of unknown version'}; {cure}, {NO_SPARK}")
    plain = _run([java, "-version"])
    found = _java_version(plain.stderr)
    if plain.returncode != 0 or found is None:
        raise AuditError(f"{java} does not run: {(plain.stderr or 'no output').strip()[:200]}; {cure}, {NO_SPARK}")
    if found < JAVA_WANTED:
        raise AuditError(f"{java} is Java {found}; {cure}, {NO_SPARK}")
    raise AuditError(
        f"{java} is a trimmed Java {found} without the module jdk.incubator.vector that Spark needs; {cure}, {NO_SPARK}"
    )


def _java_version(banner: str) -> int | None:
    match = re.search(r'version "(\d+)(?:\.(\d+))?', banner)
    if match is None:
        return None
    return int(match[2]) if match[1] == "1" and match[2] else int(match[1])


def check_worker_python() -> None:
    """Workers run PYSPARK_PYTHON if it is set: it must have the same libraries and version as this Python."""
    worker = os.environ.get("PYSPARK_PYTHON")
    if not worker or worker == sys.executable:
        return
    cure = f"unset PYSPARK_PYTHON, or set it to {sys.executable}"
    try:
        probe = _run([worker, "-c", _WORKER_PROBE], PYTHONPATH=package_root())
    except AuditError:
        raise AuditError(f"PYSPARK_PYTHON={worker} cannot be started; {cure}") from None
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if probe.returncode != 0:
        reason = (probe.stderr.strip().splitlines() or ["no output"])[-1]
        raise AuditError(f"PYSPARK_PYTHON={worker} cannot run the audit's workers ({reason}); {cure}")
    if probe.stdout.strip() != own:
        found = probe.stdout.strip()
        raise AuditError(
            f"PYSPARK_PYTHON={worker} is Python {found}, the driver's is {own}: they must be equal; {cure}"
        )


def package_root() -> str:
    """The folder that contains the package `minibroker`, for workers without an installed one."""
    import minibroker

    return os.path.dirname(os.path.dirname(os.path.abspath(minibroker.__file__ or "")))


def _run(command: list[str], **environment: str) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            env={**os.environ, **environment},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AuditError(f"{command[0]} does not run: {error}; {NO_SPARK}") from error
