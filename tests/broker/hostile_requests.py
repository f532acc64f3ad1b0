"""Requests of the right types with hostile values, generated from the message types, so new APIs are included.

`python -m tests.broker.hostile_requests --requests 1000000 --first-seed 1` sends that many to simulated clusters and
names each seed that harmed a broker. Half of a request's numbers and names are those of the cluster, so that the
request gets past the first checks. The senders are an unauthenticated client and each of the brokers: an attacker who
controls a broker has its rights.
"""

import random
import types
import typing
from typing import Any

import click
import msgspec

from minibroker.broker.requests.authorization import CLAIMED_SENDERS
from minibroker.protocol.ids import HOST_PATTERN, IDENTIFIER_PATTERN, TOPIC_NAME_PATTERN
from minibroker.protocol.wire import messages as m
from minibroker.protocol.wire.broker_authentication import MECHANISM, ClientFinal, ClientFirst
from minibroker.runtime.ports import NetworkError
from minibroker.runtime.rpc import RpcError
from minibroker.simulation.cluster import SimulatedCluster
from tests.broker.requests import TOPIC, ClusterClient, batch, in_cluster

REQUESTS_OF_A_SEED = 400
REFRESH_EVERY = 20
"""Requests after which the cluster's numbers are looked up again."""
ANSWER_MS = 300
TEXTS = ("", ".", "..", "../../victim", "a/b", "a\0b", "a\nb", " ", "ä", "\u202e", "x" * 249, "x" * 250, "x" * 600)
HOSTS = ("localhost", "broker-1", "a..b", "x" * 64, "a\0b", "", "::1", "256.256.256.256", "x" * 300)
BYTES = (b"", b"\0", b"\xff" * 61, bytes(1_000))
FEW = (0, 1, 1, 1, 2, 3)
NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 2**15 - 1, 2**31 - 1, 2**31, 2**62, 2**63 - 1)
LAWFUL_SHARE = 0.99
"""Share of numbers and names within the limits of their type: others are refused by the decoder and test nothing
else."""


class RequestGenerator:
    """Draws requests; `known` numbers are those of the cluster."""

    def __init__(self, rng: random.Random, known: list[int], texts: list[str], largest: int) -> None:
        self.random = rng
        self.known = known
        self.texts = texts
        self.largest = largest
        """Limit for numbers. A request with the largest possible epoch may make its broker refuse all later ones."""

    def request(self, sender: int | None, broker_epoch: int) -> m.Request:
        """Most requests of a broker are in its own name: the others are refused for their name alone."""
        api = self.random.choice(list(m.APIS.values()))
        body = typing.cast(m.Request, self.struct(api.request))
        if sender is None or api.request not in CLAIMED_SENDERS or self.random.random() < 0.1:
            return body
        names = {field.name for field in msgspec.structs.fields(api.request)}
        own = {"controller_id": sender, "replica_id": sender, "replica_epoch": broker_epoch}
        if api.request in (m.AlterPartitionRequest, m.ControlledShutdownRequest):
            own = {"broker_id": sender, "broker_epoch": broker_epoch}
        claimed = {name: value for name, value in own.items() if name in names}
        return msgspec.structs.replace(body, **claimed)

    def struct(self, kind: type[Any]) -> Any:
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = msgspec.structs.fields(kind)
        chosen = [field for field in fields if field.required or self.random.random() < 0.7]
        return kind(**{field.name: self.value(hints[field.name], field.name) for field in chosen})

    def value(self, hint: Any, name: str) -> Any:
        meta: Any = None
        if typing.get_origin(hint) is typing.Annotated:
            hint, meta = typing.get_args(hint)[:2]
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return self.value(self.random.choice(arguments), name)
        if origin is list:
            return [self.value(arguments[0], name) for _ in range(self.random.choice(FEW))]
        if origin is dict:
            size = self.random.choice(FEW)
            return {self.value(arguments[0], name): self.value(arguments[1], name) for _ in range(size)}
        if isinstance(hint, type) and issubclass(hint, m.Message):
            return self.struct(hint)
        if hint is int:
            return self.number(meta)
        if hint is str:
            return self.text(meta)
        if hint is bool:
            return self.random.random() < 0.5
        if name == "auth_bytes" and self.random.random() < 0.7:
            return msgspec.msgpack.encode(self.struct(self.random.choice((ClientFirst, ClientFinal))))
        return None if hint is types.NoneType else self.bytes_of(hint)

    def number(self, meta: Any) -> int:
        pool: list[int] = [*self.known, *NUMBERS, meta.ge, meta.le, self.random.randint(meta.ge, meta.le)]
        pool = [each for each in pool if each <= self.largest]
        lawful = [each for each in pool if meta.ge <= each <= meta.le]
        if self.random.random() < LAWFUL_SHARE:
            near = [each for each in self.known if meta.ge <= each <= meta.le]
            return self.random.choice(near if near and self.random.random() < 0.5 else lawful)
        return min(max(self.random.choice(pool), -(2**63)), 2**63 - 1)

    def text(self, meta: Any) -> str:
        if self.random.random() >= LAWFUL_SHARE:
            return self.random.choice((*TEXTS, *HOSTS))
        if meta.pattern == HOST_PATTERN:
            return self.random.choice(HOSTS[:2])
        if meta.pattern in (TOPIC_NAME_PATTERN, IDENTIFIER_PATTERN) or self.random.random() < 0.6:
            return self.random.choice(self.texts)
        return self.random.choice([each for each in TEXTS if len(each) <= meta.max_length])

    def bytes_of(self, kind: type[Any]) -> Any:
        sound = bytearray(batch(*(b"v" for _ in range(self.random.choice((1, 2, 500))))))
        if self.random.random() < 0.3:
            sound[self.random.randrange(len(sound))] ^= 1 << self.random.randrange(8)
        return kind(sound if self.random.random() < 0.7 else self.random.choice(BYTES))


def known_of(cluster: SimulatedCluster) -> list[int]:
    """Broker ids, broker epochs, and the epochs of the cluster, with their neighbours."""
    found = {0, 1, 2, 3}
    for broker in cluster.brokers.values():
        found |= {broker.registration.broker_epoch or 0, broker.image.controller_epoch}
        found |= {partition.state.leader_epoch or 0 for partition in broker.manager.partitions.values()}
    return sorted(found | {each + 1 for each in found} | {each - 1 for each in found if each})


async def attack(client: ClusterClient, rng: random.Random, requests: int) -> None:
    """Send the requests one after the other to random brokers. A lost connection is opened again."""
    cluster = client.cluster
    topic_id = cluster.brokers[1].image.topic_id(TOPIC) or "id"
    texts = [TOPIC, TOPIC, topic_id, "other", "min.insync.replicas", MECHANISM]
    generator = RequestGenerator(rng, known_of(cluster), texts, rng.choice((1_000, 1_000, 2**63 - 1)))
    for number in range(requests):
        if not number % REFRESH_EVERY:
            generator.known = known_of(cluster)
        try:
            sender, target = rng.choice((None, 1, 2, 3)), rng.choice((1, 2, 3))
            epoch = None if sender is None else cluster.brokers[sender].registration.broker_epoch
            connection = await client.connection(target, None if epoch is None else sender)
            await connection.request(generator.request(sender, epoch or 0), ANSWER_MS)
        except (NetworkError, RpcError):
            continue


def hurt(cluster: SimulatedCluster) -> list[str]:
    """Damage that no request may cause: a dead process, a failed log directory, or a file outside of it."""
    found = [f"broker {each} is gone" for each in cluster.broker_ids if each not in cluster.alive()]
    for broker_id in cluster.alive():
        broker = cluster.brokers[broker_id]
        found += [f"broker {broker_id} met a bug while it answered {api}" for api in broker.failed_reads()]
        if broker.log_directory.offline:
            found.append(f"the log directory of broker {broker_id} is offline")
        storage = cluster.world.machine(f"broker-{broker_id}").storage
        found += [f"broker {broker_id}: {path}" for path, _ in storage.files("/") if not path.startswith("/data/log/")]
    return found


def run_seed(seed: int, requests: int = REQUESTS_OF_A_SEED) -> list[str]:
    """The damage done by the requests of one seed."""
    found: list[str] = []

    async def story(client: ClusterClient) -> None:
        await attack(client, random.Random(seed), requests)
        found.extend(hurt(client.cluster))

    in_cluster(story, seconds_max=requests * ANSWER_MS / 1000 + 60)
    return found


@click.command()
@click.option("--requests", default=20_000, show_default=True)
@click.option("--first-seed", default=1, show_default=True)
def main(requests: int, first_seed: int) -> None:
    """Send hostile requests to one simulated cluster after the other."""
    failed = 0
    seeds = range(first_seed, first_seed + -(-requests // REQUESTS_OF_A_SEED))
    for seed in seeds:
        try:
            found = run_seed(seed)
        except Exception as error:  # any consequence of a request is a finding
            found = [f"{type(error).__name__}: {error}"[:2_000]]
        for each in found:
            click.echo(f"seed {seed}: {each}")
        failed += bool(found)
        if seed % 25 == 0:
            count = seed - first_seed + 1
            click.echo(f"{count * REQUESTS_OF_A_SEED:,} requests, {failed} of {count} seeds hurt", err=True)
    click.echo(f"{len(seeds) * REQUESTS_OF_A_SEED:,} requests to {len(seeds)} clusters, {failed} hurt")
    raise SystemExit(10 if failed else 0)


if __name__ == "__main__":
    main()
