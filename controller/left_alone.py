"""What of ZooKeeper a controller leaves alone because it cannot be read, or nobody can have written it so. Pure.

Owns: the list of these nodes with their reasons, for whoever asks how the cluster is. A broken node hurts the topic,
partition or broker that it is about, and nothing else: so without this list nobody but the log would know of it.
"""

from collections.abc import Collection

from minibroker.protocol.messages import LEFT_ALONE_MAX


class LeftAlone:
    """Of one controller epoch."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def leave(self, path: str, reason: str) -> None:
        """This node is as good as not there, until somebody corrects it."""
        if path in self._reasons or len(self._reasons) < LEFT_ALONE_MAX:
            self._reasons[path] = reason

    def fine(self, path: str) -> None:
        """It was read after all."""
        self._reasons.pop(path, None)

    def listed(self, parent: str, names: Collection[str]) -> None:
        """These children a node has now: what is below others is gone."""
        start = f"{parent}/"
        for path in [each for each in self._reasons if each.startswith(start)]:
            if path.removeprefix(start).partition("/")[0] not in names:
                del self._reasons[path]

    def nodes(self) -> dict[str, str]:
        """Path and reason, sorted by path."""
        return dict(sorted(self._reasons.items()))
