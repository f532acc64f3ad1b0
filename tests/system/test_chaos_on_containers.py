"""Each kind of fault really happens to containers, and really ends: their state, rules and files are looked at."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from minibroker.chaos.plan.drawing import Plan, PlannedFault
from minibroker.chaos.plan.fault_kinds import KINDS, FaultKind
from minibroker.chaos.run.chaos_load import TOPIC
from minibroker.chaos.run.fault_actions import FaultActions
from minibroker.chaos.run.opening import open_cluster
from minibroker.chaos.run.options import ChaosOptions
from minibroker.client.errors import MinibrokerError
from minibroker.harness.compose import ComposeHarness
from minibroker.harness.compose_project import service_of
from tests.system.compose_cluster import why_no_engine, why_no_images

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.docker,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why_no_engine()), reason=why_no_engine() or "an engine runs"),
]
SERVICES = ("zookeeper", "broker1", "broker2", "broker3")
RECORDS = 300


class Seen:
    """What a look at the engine, the network namespaces and the disks shows."""

    def __init__(self, cluster: ComposeHarness) -> None:
        self.c = cluster
        self.started: dict[str, str] = {}
        self.events: list[str] = []
        self.files: dict[int, dict[str, bytes]] = {}

    async def states(self, form: str = "{{.State.Status}}") -> dict[str, str]:
        found = await asyncio.gather(*(self.c.project.inspect(service, form) for service in SERVICES))
        return dict(zip(SERVICES, found, strict=True))

    async def rules(self) -> dict[str, list[str]]:
        """In each namespace: `INPUT 172.18.0.3` drops what comes from there, `OUTPUT` what goes there."""
        found = {}
        for service, process_id in (await self.states("{{.State.Pid}}")).items():
            if process_id == "0":
                continue
            listed = await self.c.project.run("nsenter", "-t", process_id, "-n", "iptables", "-S")
            words = [line.split() for line in listed.splitlines() if line.endswith("-j DROP")]
            found[service] = sorted(f"{each[1]} {each[3].removesuffix('/32')}" for each in words)
        return {service: rules for service, rules in found.items() if rules}

    async def dropped_packets(self) -> int:
        total = 0
        for process_id in (await self.states("{{.State.Pid}}")).values():
            if process_id != "0":
                listed = await self.c.project.run("nsenter", "-t", process_id, "-n", "iptables", "-nvxL")
                total += sum(int(line.split()[0]) for line in listed.splitlines() if " DROP " in line)
        return total

    async def address(self, party: int | str) -> str:
        """Of a container, or of the clients as broker 1 sees them."""
        field = "Gateway" if party == "clients" else "IPAddress"
        service = "broker1" if party == "clients" else service_of(party)
        return await self.c.project.inspect(
            service, f"{{{{range .NetworkSettings.Networks}}}}{{{{.{field}}}}}{{{{end}}}}"
        )

    async def new_events(self) -> list[str]:
        """Of the brokers since the beginning of the fault, as `2 session_expired`."""
        return [f"{each.reported_by} {each.fields['event']}" for each in await self.c.reported_events()][
            len(self.events) :
        ]


Look = Callable[[Seen, int], Awaitable[None]]


def down(exit_code: str) -> Look:
    async def look(seen: Seen, broker: int) -> None:
        states = await seen.states("{{.State.Status}} {{.State.ExitCode}}")
        assert states[service_of(broker)] == f"exited {exit_code}", states

    return look


def rules(*wanted: str) -> Look:
    """`place direction party`, of which `b` is the target and 1, 2, .. are the others."""

    async def look(seen: Seen, broker: int) -> None:
        others = [other for other in seen.c.broker_ids if other != broker]
        expected: dict[str, list[str]] = {}
        for place, direction, party in map(str.split, wanted):
            for other in others:
                where = service_of(broker if place == "b" else other)
                who: int | str = broker if party == "b" else other if party == "other" else party
                rule = f"{direction} {await seen.address(who)}"
                if rule not in expected.setdefault(where, []):
                    expected[where].append(rule)
        assert await seen.rules() == {place: sorted(found) for place, found in expected.items()}
        await asyncio.sleep(1.5)
        assert await seen.dropped_packets() > 0

    return look


async def paused(seen: Seen, broker: int) -> None:
    assert (await seen.states())[service_of(broker)] == "paused"


async def all_restarted(seen: Seen, broker: int) -> None:
    now = await seen.states("{{.State.StartedAt}}")
    assert [name for name in SERVICES if now[name] == seen.started[name]] == ["zookeeper"]


async def chased(seen: Seen, broker: int) -> None:
    states = await seen.states()
    assert states[service_of(broker)] == "exited"
    assert list(states.values()).count("exited") >= 2, states


async def session_expired(seen: Seen, broker: int) -> None:
    events = await seen.new_events()
    assert [each for each in events if each.startswith(f"{broker} session")], events
    assert await seen.rules() == {}


async def zookeeper_is_down(seen: Seen, broker: int) -> None:
    assert (await seen.states())["zookeeper"] == "exited"


async def zookeeper_is_paused(seen: Seen, broker: int) -> None:
    assert (await seen.states())["zookeeper"] == "paused"


def changed(ending: str, *, is_shorter: bool) -> Look:
    async def look(seen: Seen, broker: int) -> None:
        await down("137")(seen, broker)
        names = [name for name in await seen.c.list_files(broker) if name.startswith(TOPIC) and name.endswith(ending)]
        now = {name: await seen.c.read_file(broker, name) for name in names}
        before = {name: content for name, content in seen.files[broker].items() if name.endswith(ending)}
        different = [name for name in before if before[name] != now.get(name)]
        if ending == "index":
            assert different and not now
            return
        (name,) = different
        assert (len(now[name]) < len(before[name])) == is_shorter

    return look


async def lost_power(seen: Seen, broker: int) -> None:
    await down("137")(seen, broker)
    assert b"-lost-power" in await seen.c.read_file(broker, "meta.properties")


async def connections_reset(seen: Seen, broker: int) -> None:
    await asyncio.sleep(2)
    process_id = (await seen.states("{{.State.Pid}}"))[service_of(broker)]
    shown = await seen.c.project.run("nsenter", "-t", process_id, "-n", "cat", "/proc/net/snmp")
    names, values = (line.split() for line in shown.splitlines() if line.startswith("Tcp:"))
    counts = dict(zip(names, values, strict=True))
    assert int(counts["OutRsts"]) > 0 and int(counts["EstabResets"]) > 0, counts


async def log_directory_failed(seen: Seen, broker: int) -> None:
    async with asyncio.timeout(20), seen.c.producer() as producer:
        while f"{broker} log_directory_failed" not in (events := await seen.new_events()):
            with contextlib.suppress(MinibrokerError):
                await producer.send(TOPIC, b"to a disk that fails", partition=len(events) % 4)
            await asyncio.sleep(0.2)


LOOKS: dict[str, Look] = {
    "kill": down("137"),
    "stop": down("0"),
    "pause": paused,
    "rolling-restart": all_restarted,
    "chase-leader": chased,
    "power-loss": lost_power,
    "partition": rules(
        "b INPUT other",
        "other INPUT b",
        "b INPUT clients",
        "b OUTPUT clients",
        "b INPUT zookeeper",
        "b OUTPUT zookeeper",
    ),
    "cut-from-brokers": rules("b INPUT other", "other INPUT b"),
    "cut-from-zookeeper": rules("b INPUT zookeeper", "b OUTPUT zookeeper"),
    "one-way": rules("other INPUT b"),
    "reset": connections_reset,
    "write-error": log_directory_failed,
    "sync-error": log_directory_failed,
    "expire-session": session_expired,
    "zookeeper-kill": zookeeper_is_down,
    "zookeeper-pause": zookeeper_is_paused,
    "torn-tail": changed(".log", is_shorter=True),
    "bit-flip": changed(".log", is_shorter=False),
    "bit-flip-at-end": changed(".log", is_shorter=False),
    "index-lost": changed("index", is_shorter=True),
}


def options() -> ChaosOptions:
    plan = Plan(seed=1, duration_s=10)
    return ChaosOptions(backend="compose", plan=plan, out=Path("unused"))


async def look_during(cluster: ComposeHarness, actions: FaultActions, kind: FaultKind) -> None:
    seen = Seen(cluster)
    fault = PlannedFault(at_s=0, kind=kind.name, target=kind.targets[0])
    brokers = await actions.targets(fault)
    seen.started = await seen.states("{{.State.StartedAt}}")
    seen.events = await seen.new_events()
    if kind.name in ("torn-tail", "bit-flip", "bit-flip-at-end", "index-lost"):
        names = [name for name in await cluster.list_files(brokers[0]) if name.startswith(TOPIC)]
        seen.files[brokers[0]] = {name: await cluster.read_file(brokers[0], name) for name in names}
    async with actions.during(fault, brokers):
        await LOOKS[kind.name](seen, brokers[0] if brokers else 0)
    assert set((await seen.states()).values()) == {"running"}
    assert await seen.rules() == {}


async def test_every_kind_of_fault_happens_and_ends() -> None:
    if why_no_images():
        pytest.skip(str(why_no_images()))
    possible = [kind for kind in KINDS if "compose" in kind.backends]
    assert {kind.name for kind in possible} == {*LOOKS}
    if only := os.environ.get("CHAOS_KINDS"):
        possible = [kind for kind in possible if kind.name in only.split(",")]
    failed: list[str] = []
    async with open_cluster(options()) as cluster:
        actions = FaultActions(cluster, 1)
        await cluster.create_topic(TOPIC, partitions=4)
        async with cluster.producer() as producer:
            for kind in possible:
                for number in range(RECORDS):
                    await producer.send(TOPIC, b"record %d" % number, partition=number % 4)
                await producer.flush()
                try:
                    await look_during(cluster, actions, kind)
                except AssertionError as error:
                    failed.append(f"{kind.name}: {error}")
                await cluster.wait_in_sync(TOPIC, 60)
        assert (await cluster.audit()).success
    assert failed == []
