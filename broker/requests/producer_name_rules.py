"""What a broker answers to a process that asks for the epoch of a producer's name (KIP-98, KIP-360). Pure.

Owns: the one decision, from the name's node and the request. Leaves to others: reading and writing the node, fresh
producer ids, and how many names there may be (`producer_names`).

Theory: a request may be held up at one broker while its process repeats it at another one, and may be executed much
later. So each request names what it replaces, and does nothing once that is no longer the newest: a running process
names its own identity, a start the one that it believes to be the newest. If that is not so, the answer tells a start
which one is, and it asks again; a running process is fenced. A repeated request finds what the first one wrote. It
knows it by the token of its process, which no other process has: two starts may replace the same identity.
"""

from dataclasses import dataclass

from minibroker.protocol.znodes import NO_PRODUCER, ProducerNameNode

Identity = tuple[int, int]
"""A producer id and an epoch; NO_PRODUCER where a name has none."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What one request says."""

    process_token: str
    """Drawn by the process at its start. Empty: a client of an earlier version, each of whose starts counts."""
    running_as: Identity | None = None
    """The identity of a running process that needs its next epoch; None: a start."""
    newest_known: Identity = NO_PRODUCER
    """The identity that a start replaces."""

    @property
    def replaces(self) -> Identity:
        return self.newest_known if self.running_as is None else self.running_as


@dataclass(frozen=True)
class Grant:
    """The next epoch is this process's, once it is written."""


@dataclass(frozen=True)
class GrantedBefore:
    """This very request was granted before, and nothing has happened to the name since: the newest identity is its."""

    identity: Identity


@dataclass(frozen=True)
class NotNewest:
    """Another identity is the newest: a start must name it."""

    newest: Identity


@dataclass(frozen=True)
class Fenced:
    """Another process may have started since."""

    reason: str


Decision = Grant | GrantedBefore | NotNewest | Fenced


def decide(name: str, node: ProducerNameNode | None, claim: Claim) -> Decision:
    """`node` is None where the name is not known."""
    newest = NO_PRODUCER if node is None else node.identity
    is_start = claim.running_as is None
    if is_start and not claim.process_token:
        return Grant()
    if claim.replaces == newest:
        return Grant()
    if node is not None and (claim.process_token, claim.replaces) == (node.process_token, node.replaced):
        return GrantedBefore(newest)
    if is_start:
        return NotNewest(newest)
    if node is None:
        return Fenced(f"producer {name!r} was forgotten, and perhaps a later process has started: start again")
    return Fenced(f"a later process has started as producer {name!r}: epoch {node.producer_epoch} is the newest")
