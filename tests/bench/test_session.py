"""How a run of the bench ends: its folder goes, whatever signal comes."""

import asyncio
import signal
from pathlib import Path

import pytest

from minibroker.bench import session
from minibroker.bench.session import BenchOptions, run


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_as_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals
) -> None:
    """A terminal that was closed left the clusters running."""

    class Interrupted:
        def __init__(self, *_: object) -> None:
            """As a runner."""

        async def run(self, keep: object) -> None:
            signal.raise_signal(number)
            await asyncio.Event().wait()

    monkeypatch.setattr(session, "Runner", Interrupted)
    options = BenchOptions(
        cases=[], peers=(), alternations=1, volume=1.0, warm=False, heap="1g", data_directory=tmp_path
    )
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run(options, print, print))
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)
