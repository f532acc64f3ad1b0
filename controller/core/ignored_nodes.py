"""The znodes that a controller ignores because they cannot be parsed, or hold impossible values. Pure.

Owns: the list of these znodes with their reasons, for DescribeCluster. A broken znode affects only the topic, partition
or broker that it is about: without this list, only the log would show it.
"""

from collections.abc import Collection

from minibroker.protocol.wire.messages import IGNORED_NODES_MAX


class IgnoredNodes:
    """The list of one controller epoch. It has a limit; what stops the failover of a partition comes first in it."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._removed: set[str] = set()
        """Those of them that are not there: no list of what is there ends them."""

    def add(self, path: str, reason: str) -> None:
        """This znode counts as missing until it is corrected."""
        if path not in self._reasons and len(self._reasons) >= IGNORED_NODES_MAX:
            least = max(self._reasons, key=self._rank)
            if self._rank(path) >= self._rank(least):
                return
            self.remove(least)
        self._reasons[path] = reason

    def add_removed(self, path: str, reason: str) -> None:
        """This znode is missed until it can be read again."""
        self._removed.add(path)
        self.add(path, reason)
        self._removed &= self._reasons.keys()

    def remove(self, path: str) -> None:
        """This znode can be read again."""
        self._reasons.pop(path, None)
        self._removed.discard(path)

    def listed(self, parent: str, names: Collection[str]) -> None:
        """A znode has exactly these children now: what is below others is gone."""
        start = f"{parent}/"
        for path in [each for each in self._reasons if each.startswith(start) and each not in self._removed]:
            if path.removeprefix(start).partition("/")[0] not in names:
                del self._reasons[path]

    def nodes(self) -> dict[str, str]:
        """Path and reason; states of partitions and topics that are missed come first."""
        return {path: self._reasons[path] for path in sorted(self._reasons, key=self._rank)}

    def _rank(self, path: str) -> tuple[bool, str]:
        return not (path.endswith("/state") or path in self._removed), path
