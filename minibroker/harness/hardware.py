"""Faults of links, disks and clocks, and of ZooKeeper's machine: verbs that not every back end has.

Owns: what each verb means, and the refusal of a back end that lacks it. Part of `ClusterHarness`. Leaves to others: how
a back end does it. `heal` undoes what is done to links; the other verbs have a counterpart of their own.
"""

from abc import ABC, abstractmethod
from typing import Literal

Party = int | Literal["clients", "zookeeper"]
"""A party on the network: a broker, the clients, or ZooKeeper."""
DiskFault = Literal["full", "write", "sync"]
"""There is no room, or every write, or every sync, of record files fails with EIO."""


class UnsupportedByBackend(Exception):
    """This back end cannot do the verb. The sentence names the back ends that can."""


class Hardware(ABC):
    """Most verbs have a default that refuses."""

    async def slow(self, source: Party, target: Party, delay_s: float) -> None:
        """What `source` sends to `target` arrives so much later; 0 ends it. Not for containers."""
        raise UnsupportedByBackend("links of containers are not slowed: use simulated brokers or processes")

    async def lose_packets(self, source: Party, target: Party, share: float) -> None:
        """This share of the packets from `source` to `target` is lost, and TCP sends them again; 0 ends it. For
        containers only."""
        raise UnsupportedByBackend("connections of this back end have no packets: use containers")

    async def reset(self, one: Party, other: Party) -> None:
        """Break every connection between the two; new ones are possible at once. In containers those
        that are silent live on, and new ones are possible after a moment."""
        raise UnsupportedByBackend("this back end cannot reset connections")

    async def pause_zookeeper(self) -> None:
        """SIGSTOP: it hangs, and its connections stay open."""
        raise UnsupportedByBackend("this back end cannot pause ZooKeeper")

    async def resume_zookeeper(self) -> None:
        """SIGCONT; a ZooKeeper that is not paused runs on."""
        raise UnsupportedByBackend("this back end cannot pause ZooKeeper")

    async def fail_disk(self, broker_id: int, fault: DiskFault) -> None:
        """The disk of a running broker begins to fail."""
        raise UnsupportedByBackend("disks of this back end do not fail")

    async def mend_disk(self, broker_id: int) -> None:
        """The disk works again; a sound one works on."""
        raise UnsupportedByBackend("disks of this back end do not fail")

    async def move_clock(self, broker_id: int, seconds: float) -> None:
        """The broker's wall clock shows so much more than the true time from now on, also after a restart; 0 sets it
        right. Not for containers: they have the machine's clock."""
        raise UnsupportedByBackend("clocks of containers are not moved: use simulated brokers or processes")

    # ----------------------------------------------------------------------------------- files of a broker that is down
    @abstractmethod
    async def list_files(self, broker_id: int) -> list[str]:
        """The files of its log directory, as paths below it, sorted."""

    @abstractmethod
    async def read_file(self, broker_id: int, name: str) -> bytes:
        """The content of one."""

    @abstractmethod
    async def replace_disk(self, broker_id: int) -> None:
        """Put in a blank disk: all files below its log directory are gone. The broker must be down."""

    @abstractmethod
    async def write_file(self, broker_id: int, name: str, content: bytes | None) -> None:
        """Replace one, as a damaged disk does; None removes it. The broker must be down."""
