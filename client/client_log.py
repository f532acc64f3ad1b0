"""What a client logs: the logger `minibroker.client`, each line with the client's name.

INFO: what changed (connections, leaders, the producer's identity). DEBUG: what is tried again, and why. WARNING: what
keeps a program waiting, or what was lost.
"""

import logging
from collections.abc import MutableMapping
from typing import Any

LOGGER = logging.getLogger("minibroker.client")


class ClientLog(logging.LoggerAdapter[logging.Logger]):
    """The log of one client. Its records have the name as `client_id`, for handlers that do not want it in the text."""

    def __init__(self, client_id: str) -> None:
        super().__init__(LOGGER, {"client_id": client_id})
        self._prefix = client_id.replace("%", "%%") + ": "

    def process(self, msg: str, kwargs: MutableMapping[str, Any]) -> tuple[str, MutableMapping[str, Any]]:
        return self._prefix + msg, {**kwargs, "extra": self.extra}
