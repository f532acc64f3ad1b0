"""Checks a controller epoch above all known ones against ZooKeeper before its request is executed.

Owns: that check. Leaves to others: whether a request of a known epoch is accepted (`metadata_image`).

Theory: a broker accepts the highest controller epoch that it has seen, and no lower one. So one request with a made-up
epoch would make it refuse every real controller forever. `/controller_epoch` holds the highest real epoch: a controller
raises it before it sends its first request.
"""

from collections.abc import Callable

from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import ControllerEpoch
from minibroker.protocol.wire import messages as m
from minibroker.protocol.znodes import CONTROLLER_EPOCH, CorruptZnode, parse_number
from minibroker.runtime.ports import Coordination, CoordinationError, NoNode


class ControllerEpochs:
    """The controller epochs that one broker knows."""

    def __init__(self, coordination: Coordination, highest_epoch: Callable[[], ControllerEpoch]) -> None:
        """`highest_epoch`: the highest epoch of an accepted request."""
        self._coordination = coordination
        self._highest_epoch = highest_epoch
        self._reached: ControllerEpoch = 0
        """The epoch that ZooKeeper returned last."""

    def is_known(self, epoch: ControllerEpoch) -> bool:
        """Whether a request of this epoch needs no check against ZooKeeper."""
        return epoch <= self._reached or epoch <= self._highest_epoch()

    async def refuse(self, epoch: ControllerEpoch) -> m.Response | None:
        """Ask ZooKeeper. None: the epoch exists. A refusal is not final: a ZooKeeper server may lag behind, and a
        controller repeats its request until it is accepted."""
        try:
            content, _ = await self._coordination.get(CONTROLLER_EPOCH)
            self._reached = max(self._reached, parse_number(content))
        except NoNode:
            pass
        except (CoordinationError, CorruptZnode) as error:
            text = f"controller epoch {epoch} is new here, and ZooKeeper cannot be asked about it: {error}"
            return m.Response(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=text)
        if self.is_known(epoch):
            return None
        text = f"no controller has epoch {epoch}: ZooKeeper knows {self._reached}"
        return m.Response(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=text)
