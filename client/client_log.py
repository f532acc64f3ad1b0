"""What a client logs: the logger `minibroker.client`, each line with the client's name.

INFO: what changed (connections, leaders, the producer's identity). DEBUG: what is tried again, and why. WARNING: what
keeps a program waiting, or what was lost.
"""

import logging
from collections.abc import MutableMapping, Sequence
from typing import Any

from minibroker.protocol.ids import BrokerId, LeaderEpoch, TopicPartition

LOGGER = logging.getLogger("minibroker.client")
LEADERS_NAMED_MAX = 5
"""A broker may lead a thousand partitions, and all of them have new leaders when it fails: that is one line."""


class ClientLog(logging.LoggerAdapter[logging.Logger]):
    """The log of one client. Its records have the name as `client_id`, for handlers that do not want it in the text."""

    def __init__(self, client_id: str) -> None:
        super().__init__(LOGGER, {"client_id": client_id})
        self._prefix = client_id.replace("%", "%%") + ": "

    def process(self, msg: str, kwargs: MutableMapping[str, Any]) -> tuple[str, MutableMapping[str, Any]]:
        return self._prefix + msg, {**kwargs, "extra": self.extra}

    def new_leaders(self, found: Sequence[tuple[TopicPartition, BrokerId | None, LeaderEpoch | None]]) -> None:
        """Log the partitions, with their leaders and epochs, whose leaders one answer changed."""
        named = ", ".join(
            f"{partition} is led by broker {leader} now (epoch {epoch})"
            for partition, leader, epoch in found[:LEADERS_NAMED_MAX]
        )
        if len(found) > LEADERS_NAMED_MAX:
            self.info("%s, and %d more partitions have new leaders", named, len(found) - LEADERS_NAMED_MAX)
        elif found:
            self.info("%s", named)
