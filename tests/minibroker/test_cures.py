"""One cure per reason why a log directory is not in use."""

import pytest

from minibroker.observation import cures


@pytest.mark.parametrize(
    ("state", "reason", "cure"),
    [
        ("full", "cannot append to /d/x: No space left on device", cures.MAKE_ROOM),
        ("offline", "/d is gone: cannot open /d/t-0/0.log: No such file or directory", cures.PUT_BACK),
        ("offline", "cannot write /d/replication-offset-checkpoint.tmp: No such file or directory", cures.PUT_BACK),
        ("offline", "cannot append to /d/x: Read-only file system", cures.MAKE_WRITABLE),
        ("offline", "cannot write /d/x.tmp: Permission denied", cures.MAKE_USABLE),
        ("offline", "cannot use /d/x.tmp: it is a pipe", cures.MAKE_USABLE),
        ("offline", "cannot sync /d/x: Input/output error", cures.START_AGAIN),
        ("offline", None, cures.START_AGAIN),
    ],
)
def test_the_cure_fits_the_reason(state: str, reason: str | None, cure: str) -> None:
    assert cures.of_log_directory(state, reason) == cure
