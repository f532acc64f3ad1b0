"""What real brokers report while a scenario runs: the events in their JSON logs.

Owns: reading on from where the last look ended.
"""

from collections.abc import Iterator
from pathlib import Path

from minibroker.protocol.events.cluster_events import parse_json_line
from minibroker.scenarios.staging.broker_events import phrase


class BrokerEventLog:
    """One broker's log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def new_phrases(self) -> Iterator[str]:
        """Of the events since the last call, those that matter to a scenario."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                content = file.read()
        except FileNotFoundError:
            return
        whole = content[: content.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            fields = parse_json_line(line)
            told = None if fields is None else phrase(fields)
            if told is not None:
                yield told
