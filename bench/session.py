"""One run as requested on the command line: its folder, its peers, and the runner.

Owns: which peers there are, and that the folder is removed afterwards.
"""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from minibroker.bench.case import KAFKA, Case
from minibroker.bench.document import Document
from minibroker.bench.peers.kafka_installation import KafkaInstallation
from minibroker.bench.peers.kafka_peer import KafkaPeer
from minibroker.bench.peers.minibroker_peer import MinibrokerPeer
from minibroker.bench.peers.peer import Peer
from minibroker.bench.runner import Runner, RunPlan
from minibroker.local_cluster.teardown import ENDINGS


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command line."""

    cases: Sequence[Case]
    peers: tuple[str, ...]
    alternations: int
    volume: float
    warm: bool
    heap: str
    data_directory: Path | None
    """None: a temporary folder."""


async def run(options: BenchOptions, progress: Callable[[str], None], keep: Callable[[Document], None]) -> None:
    """Run everything; `keep` gets the document whenever there is more in it. Raises PeerFailed."""
    if KAFKA in options.peers:
        KafkaInstallation().install(progress)
    if options.data_directory is not None:
        options.data_directory.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="minibroker-bench-", dir=options.data_directory))

    def make_peer(name: str, place: Path) -> Peer:
        return KafkaPeer(place, heap=options.heap) if name == KAFKA else MinibrokerPeer(place)

    plan = RunPlan(
        cases=options.cases,
        peers=options.peers,
        alternations=options.alternations,
        volume=options.volume,
        warm=options.warm,
        directory=directory,
    )
    runner = Runner(plan, make_peer, progress)
    loop = asyncio.get_running_loop()
    endings = [number for number in ENDINGS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in endings:
        loop.add_signal_handler(number, os.kill, os.getpid(), signal.SIGINT)  # ends everything, as Ctrl-C does
    try:
        await runner.run(keep)
    finally:
        for number in endings:
            loop.remove_signal_handler(number)
        shutil.rmtree(directory, ignore_errors=True)
