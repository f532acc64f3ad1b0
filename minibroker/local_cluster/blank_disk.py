"""A broker's disk that was replaced by a blank one.

Owns: what is removed. Leaves to others: processes; the caller has stopped or killed the broker.
"""

import shutil
from pathlib import Path


def remove_everything(log_directory: Path) -> None:
    """All that is in the directory. The directory itself stays: it may be a mounted file system."""
    for path in log_directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
