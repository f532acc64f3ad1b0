"""The bundle of real ports, for a process that runs outside the simulator."""

import random

from minibroker.runtime.adapters.clock import RealClock
from minibroker.runtime.adapters.disk import RealDisk
from minibroker.runtime.adapters.network import RealNetwork
from minibroker.runtime.descriptor_shares import UNLIMITED
from minibroker.runtime.event_log import log_event
from minibroker.runtime.observer import Observers
from minibroker.runtime.ports import Coordination, Runtime


def real_runtime(open_files_max: int = UNLIMITED, zookeeper_credentials: str = "") -> Runtime:
    """New ports of this machine; nothing is opened yet. `zookeeper_credentials`: USER:PASSWORD, or empty."""

    def open_coordination(servers: str, session_timeout_ms: int) -> Coordination:
        from minibroker.runtime.adapters.zookeeper import (
            ZooKeeperCoordination,  # here, so that clients do not import kazoo
        )

        return ZooKeeperCoordination(servers, session_timeout_ms, zookeeper_credentials)

    return Runtime(
        network=RealNetwork(),
        disk=RealDisk(),
        clock=RealClock(),
        random=random.SystemRandom(),
        open_coordination=open_coordination,
        observer=Observers(log_event),
        open_files_max=open_files_max,
    )
