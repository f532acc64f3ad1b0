"""Whether a worker runs the code that the driver runs: the rules of another version would give another verdict.

Owns: the digest of the code that makes the verdict. Leaves to others: a worker without the package, or one of which a
name is missing (spark_failures.py).
"""

import hashlib
import os
import platform
from functools import lru_cache
from pathlib import Path

from minibroker.audit.spark.prerequisites import package_root

FOLDERS = ("audit", "protocol")


@lru_cache
def code_digest() -> str:
    """Of the source files of this process's package: names and content."""
    digest = hashlib.sha256()
    for folder in FOLDERS:
        root = Path(os.path.realpath(Path(package_root(), "minibroker", folder)))
        for file in sorted(root.rglob("*.py")):
            content = file.read_bytes()
            digest.update(f"{folder}/{file.relative_to(root).as_posix()} {len(content)} ".encode() + content)
    return digest.hexdigest()


def problem_of_code(of_driver: str) -> str | None:
    """None if this process has the same."""
    if code_digest() == of_driver:
        return None
    return (
        f"a worker on {platform.node()} has another version of minibroker than the driver: install the same there, or"
        " give --ship-package"
    )
