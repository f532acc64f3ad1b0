"""The archive for workers without minibroker: the part of this package that they run, and what it imports.

Owns: the content. The libraries hold compiled code, so the archive fits only workers with this Python version and
architecture. Such libraries do not load from zips on sys.path (Spark's --py-files), so executors unpack an archive.
"""

import os
import tarfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

from minibroker.audit.spark.prerequisites import package_root

if TYPE_CHECKING:
    from pyspark import SparkContext

FOLDER = "minibroker_package"
"""Where executors unpack it, below their working directory."""
ARCHIVE = "minibroker-package.tar.gz"
OWN_FOLDERS = ("audit", "client", "protocol")
LIBRARIES = ("crc32c", "msgpack", "msgspec", "typing_extensions")
SUFFIXES = (".py", ".so")


def build_archive(directory: str) -> str:
    """Write the archive into `directory` and return its path."""
    path = os.path.join(directory, ARCHIVE)
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for file, name in sorted(_content(), key=lambda each: each[1]):
            archive.add(file, name, recursive=False)
    return path


def _content() -> Iterator[tuple[str, str]]:
    root = Path(package_root(), "minibroker")
    yield str(root / "__init__.py"), "minibroker/__init__.py"
    for folder in OWN_FOLDERS:
        yield from _files(Path(os.path.realpath(root / folder)), f"minibroker/{folder}")
    for library in LIBRARIES:
        try:
            files = distribution(library).files or ()
        except PackageNotFoundError:
            continue  # msgspec needs typing_extensions on some Pythons only
        for file in files:
            # The metadata, too: crc32c looks up its own version.
            if ".." not in file.parts and (file.suffix in SUFFIXES or file.name == "METADATA"):
                yield str(file.locate()), file.as_posix()


def _files(folder: Path, name: str) -> Iterator[tuple[str, str]]:
    for file in folder.rglob("*"):
        if file.is_file() and file.suffix in SUFFIXES:
            yield os.path.realpath(file), f"{name}/{file.relative_to(folder).as_posix()}"


def ship(context: "SparkContext", directory: str) -> None:
    """Give the archive to every executor, present and future, and put it first on its Python's path."""
    context.addArchive(f"{build_archive(directory)}#{FOLDER}")
    context.environment["PYTHONPATH"] = FOLDER
