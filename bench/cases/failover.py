"""How long writes stop when a broker fails, by the role of the broker and the kind of failure.

Owns: the choice of the broker (the leader of the written partition, the controller, or a broker that is both), the
check of its role before and after, and the check that no acknowledged record was lost. A steady producer writes all the
time; the figure is the longest gap between two of its acknowledgements. Between runs the broker restarts and catches
up.
"""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

import msgspec

from minibroker.bench.broker_log import LoggedEvent, parse_log
from minibroker.bench.case import KAFKA, MINIBROKER, Case, CaseFailed, Measurement, Round
from minibroker.bench.failover_gap import longest_gap, step_times
from minibroker.bench.load_process import LoadProcess, running_load
from minibroker.bench.peers.compose_peer import ComposePeer
from minibroker.bench.peers.minibroker_peer import MinibrokerPeer
from minibroker.bench.peers.peer import BROKERS, Peer
from minibroker.protocol.counted import counted

RUNS = 20
ABOUT_S = 7.0
"""Of one run, until the broker is back in sync."""
PAUSED_RUNS = 5
"""Each lasts as long as a session."""
KAFKA_RUNS = 3
"""Each takes half a minute."""
RECORD_BYTES = 100
PACE_MS = 5.0
STEADY_BEFORE_S = 1.5
"""How long the producer writes undisturbed before the signal."""
STEADY_AFTER_S = 1.5
"""How long acknowledgements must come without a longer pause before a run is complete."""
STEADY_PAUSE_S = 0.4
RECOVER_TIMEOUT_S = 60.0
TOPIC_ATTEMPTS = 40
"""Topics are created until one has a leader with the wanted role; the first leader is random. With 12 attempts a case
of 20 runs failed one time in seven."""
ROLE_TIMEOUT_S = 20.0


class FailoverTarget(msgspec.Struct, frozen=True):
    """Which broker gets a signal, and which signal."""

    leader: bool
    """The broker leads the partition that is written."""
    controller: bool
    """The broker is the controller."""
    number: signal.Signals

    def suits(self, leader: int, controller: int) -> bool:
        """Whether a topic with this leader fits."""
        return (leader == controller) == (self.leader and self.controller)

    def victim(self, leader: int, controller: int) -> int:
        return leader if self.leader else controller


class FailoverRun(msgspec.Struct, frozen=True, kw_only=True):
    """One failover."""

    gap_s: float
    errors: int
    step_times: dict[str, float]
    """Milliseconds from the signal to each step in the brokers' logs, and to the gap's ends."""


async def run(peer: Peer, round: Round, target: FailoverTarget, runs: int) -> Measurement:
    await peer.start()
    wanted = round.volume_of(KAFKA_RUNS if peer.name == KAFKA else runs, at_least=2)
    return await failovers(peer, round, target, wanted)


async def run_in_compose(peer: Peer, round: Round, target: FailoverTarget, runs: int) -> Measurement:
    """The same in containers; the given cluster stays unused."""
    containers = ComposePeer(round.directory / "compose")
    with containers.harness.ownership:
        try:
            return await run(containers, round, target, runs)
        finally:
            await containers.stop()


async def failovers(peer: Peer, round: Round, target: FailoverTarget, runs: int) -> Measurement:
    """This many failovers, one after the other. Raises CaseFailed, PeerFailed."""
    found: list[FailoverRun] = []
    for number in range(runs):
        gaps = f", so far up to {max(each.gap_s for each in found):.3f} s" if found else ""
        round.progress(f"failover {number + 1} of {runs}{gaps}")
        found.append(await one_failover(peer, f"failover-{number}", target))
    gaps_s = sorted(each.gap_s for each in found)
    figures = {
        "median_gap_s": median(gaps_s),
        "worst_gap_s": gaps_s[-1],
        "best_gap_s": gaps_s[0],
        "errors": float(sum(each.errors for each in found)),
        "runs": float(runs),
    }
    names = sorted({name for each in found for name in each.step_times})
    for name in names:
        values = [each.step_times[name] for each in found if name in each.step_times]
        figures |= {f"median_{name}": median(values), f"worst_{name}": max(values)}
    return Measurement(
        {name: round_to_ms(value) for name, value in figures.items()}, details=[describe(each) for each in found]
    )


def round_to_ms(value: float) -> float:
    return round(value, 3)


def describe(run: FailoverRun) -> str:
    """One line per run, to explain outliers."""
    steps = ", ".join(
        f"{name.removesuffix('_ms')} {value:.0f}" for name, value in sorted(run.step_times.items(), key=_at)
    )
    return f"gap {run.gap_s:.3f} s; ms from the signal: {steps}; {run.errors} errors"


def _at(item: tuple[str, float]) -> float:
    return item[1]


async def one_failover(peer: Peer, name: str, target: FailoverTarget) -> FailoverRun:
    """Raises CaseFailed if a broker of another role failed, or if an acknowledged record is missing."""
    topic, leader, controller = await topic_that_suits(peer, name, target)
    victim = target.victim(leader, controller)
    async with running_load(peer, "failover", topic=topic, record_bytes=RECORD_BYTES, pace_ms=PACE_MS) as load:
        await load.wait_for("started")
        await asyncio.sleep(STEADY_BEFORE_S)
        await check_roles(peer, topic, leader, controller)
        signalled_ns, signalled_s = time.monotonic_ns(), time.time()
        await peer.signal_broker(victim, target.number)
        await steady_again(load, signalled_ns)
        await check_succession(peer, topic, target, leader, controller)
        await load.send_command("end")
        report = await load.report()
    if target.number == signal.SIGSTOP:
        await peer.signal_broker(victim, signal.SIGCONT)
    else:
        await peer.start_broker(victim)
    await peer.wait_in_sync()
    await peer.delete_topic(topic)
    return checked_run(report, signalled_ns, await log_steps(peer, signalled_s, report, signalled_ns))


def checked_run(report: dict[str, Any], signalled_ns: int, steps: dict[str, float]) -> FailoverRun:
    """Raises CaseFailed."""
    if report["lost"]:
        raise CaseFailed(f"{report['lost']} acknowledged records are not in the log: {report['errors'][:2]}")
    if report["duplicates"]:
        raise CaseFailed(f"twice in the log: {counted(report['duplicates'], 'record')} of an idempotent producer")
    gap = longest_gap(report["acknowledged_ns"], signalled_ns)
    if gap is None:
        raise CaseFailed("nothing was acknowledged after the signal")
    ends = {"last_before_ms": gap.starts_ms, "first_after_ms": gap.ends_ms}
    return FailoverRun(gap_s=gap.seconds, errors=report["error_count"], step_times=steps | ends)


async def topic_that_suits(peer: Peer, name: str, target: FailoverTarget) -> tuple[str, int, int]:
    """A topic of one partition whose leader has the wanted role; its name, its leader, the controller."""
    for attempt in range(TOPIC_ATTEMPTS):
        topic = f"{name}-{attempt}"
        await peer.make_topic(topic)
        leader, controller = await peer.leader_of(topic), await peer.controller()
        if target.suits(leader, controller):
            return topic, leader, controller
        await peer.delete_topic(topic)
    raise CaseFailed(f"none of {TOPIC_ATTEMPTS} topics had a leader with the wanted role")


async def check_roles(peer: Peer, topic: str, leader: int, controller: int) -> None:
    """Just before the signal: the roles have not moved."""
    found = await peer.leader_of(topic), await peer.controller()
    if found != (leader, controller):
        raise CaseFailed(f"leader and controller were {leader, controller}, and are {found} before the signal")


async def check_succession(peer: Peer, topic: str, target: FailoverTarget, leader: int, controller: int) -> None:
    """After the signal: the roles of the target have moved, other roles have not."""
    deadline = time.monotonic() + ROLE_TIMEOUT_S
    while True:
        leads, controls = await peer.leader_of(topic), await peer.controller()
        if (leads != leader, controls not in (controller, -1)) == (target.leader, target.controller):
            return
        if time.monotonic() > deadline:
            raise CaseFailed(
                f"target {target}: the leader was {leader} and is {leads},"
                f" the controller was {controller} and is {controls}"
            )
        await asyncio.sleep(0.2)


async def steady_again(load: LoadProcess, signalled_ns: int) -> None:
    """Wait until acknowledgements have come for a while without a long pause."""
    steady_since: int | None = None
    deadline = time.monotonic() + RECOVER_TIMEOUT_S
    while time.monotonic() < deadline:
        beat = await load.wait_for("beat")
        now = time.monotonic_ns()
        if beat["last_ns"] < signalled_ns or now - beat["last_ns"] > STEADY_PAUSE_S * 1e9:
            steady_since = None
        elif steady_since is None:
            steady_since = now
        elif now - steady_since > STEADY_AFTER_S * 1e9:
            return
    raise CaseFailed(f"writes did not resume within {RECOVER_TIMEOUT_S:g} s")


async def log_steps(peer: Peer, signalled_s: float, report: dict[str, Any], signalled_ns: int) -> dict[str, float]:
    """The times of the steps in the brokers' logs; empty for a peer whose logs are not read."""
    if not isinstance(peer, MinibrokerPeer) or not report["acknowledged_ns"]:
        return {}
    until_s = signalled_s + (report["acknowledged_ns"][-1] - signalled_ns) / 1e9
    events: list[LoggedEvent] = []
    for broker_id in range(1, BROKERS + 1):
        events += parse_log(broker_id, await peer.read_broker_log(broker_id))
    return step_times(events, signalled_s, until_s)


def _case(
    name: str,
    title: str,
    target: FailoverTarget,
    runs: int = RUNS,
    peers: tuple[str, ...] = (MINIBROKER,),
    run_case: Callable[[Peer, Round, FailoverTarget, int], Awaitable[Measurement]] = run,
) -> Case:
    async def run_on_peer(peer: Peer, round: Round) -> Measurement:
        return await run_case(peer, round, target, runs)

    return Case(
        name=f"failover-{name}",
        title=title,
        figure="median_gap_s",
        unit="s",
        higher_is_better=False,
        run=run_on_peer,
        peers=peers,
        own_cluster=True,
        rounds=1,
        about_s=ABOUT_S * runs,
    )


LEADER = FailoverTarget(leader=True, controller=False, number=signal.SIGKILL)
CONTROLLER = FailoverTarget(leader=False, controller=True, number=signal.SIGKILL)
BOTH = FailoverTarget(leader=True, controller=True, number=signal.SIGKILL)
STOPPED = FailoverTarget(leader=True, controller=False, number=signal.SIGTERM)
PAUSED = FailoverTarget(leader=True, controller=False, number=signal.SIGSTOP)

TARGETS = (
    ("leader", "SIGKILL of the leader", LEADER, RUNS),
    ("controller", "SIGKILL of the controller", CONTROLLER, RUNS),
    ("both", "SIGKILL of the leader that is controller, too", BOTH, RUNS),
    ("leader-stopped", "SIGTERM of the leader", STOPPED, RUNS),
    ("leader-paused", "SIGSTOP of the leader", PAUSED, PAUSED_RUNS),
)
CASES = (
    *(
        _case(
            name, f"writes stop after {what}", target, runs, (MINIBROKER, KAFKA) if target is LEADER else (MINIBROKER,)
        )
        for name, what, target, runs in TARGETS
    ),
    *(
        _case(f"compose-{name}", f"writes stop after {what}, in compose", target, runs, run_case=run_in_compose)
        for name, what, target, runs in TARGETS
    ),
)
