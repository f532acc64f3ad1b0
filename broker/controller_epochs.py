"""Which controller epochs exist: an order under a higher one than was ever heard is checked against ZooKeeper first.

Owns: that check. Leaves to others: whether an order of a known epoch is obeyed (`metadata_image`).

Why: a broker obeys the highest controller epoch that it has heard of, and no lower one any more. So one order with a
made-up epoch would mute every real controller, for ever. `/controller_epoch` says what was really reached: a controller
raises it before it gives its first order.
"""

from collections.abc import Callable

from minibroker.protocol import messages as m
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import ControllerEpoch
from minibroker.protocol.znodes import CONTROLLER_EPOCH, CorruptZnode, parse_number
from minibroker.runtime.ports import Coordination, CoordinationError, NoNode


class ControllerEpochs:
    """What one broker knows of them."""

    def __init__(self, coordination: Coordination, highest_epoch: Callable[[], ControllerEpoch]) -> None:
        """`highest_epoch`: the highest under which an order was obeyed."""
        self._coordination = coordination
        self._highest_epoch = highest_epoch
        self._reached: ControllerEpoch = 0
        """As ZooKeeper said when it was asked last."""

    def is_known(self, epoch: ControllerEpoch) -> bool:
        """Whether an order under it needs no look at ZooKeeper."""
        return epoch <= self._reached or epoch <= self._highest_epoch()

    async def refuse(self, epoch: ControllerEpoch) -> m.Response | None:
        """Ask ZooKeeper. None: that epoch was reached. A refusal is no last word: a server of ZooKeeper may be behind,
        and controllers send their orders again until they are obeyed."""
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
