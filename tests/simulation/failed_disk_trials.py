"""The story of a failing disk, with what fails drawn at random.

`python -m tests.simulation.failed_disk_trials 0-99` makes a trial of each number, which draws the broker, the call, for
how long calls fail, maybe a second failing call, disk threads, and something else that happens soon after the first.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import logging
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from minibroker.client.errors import MinibrokerError
from minibroker.harness.cluster import Misuse
from tests.simulation.failed_disk_calls import MAY_FAIL, OF_THE_DIRECTORY, Failure, Kind, Moment, Outcome, Story, told


async def _nothing(story: Story, rng: random.Random) -> None:
    pass


async def _expire_session(story: Story, rng: random.Random) -> None:
    await story.c.expire_session(story.broker_id)


async def _kill_another(story: Story, rng: random.Random) -> None:
    other = rng.choice(story.others)
    await story.c.kill(other)
    await asyncio.sleep(rng.choice([0.05, 0.7, 3]))
    await story.c.start(other)


async def _stop_zookeeper(story: Story, rng: random.Random) -> None:
    await story.c.stop_zookeeper()
    await asyncio.sleep(rng.uniform(0, 2))
    await story.c.start_zookeeper()


async def _isolate(story: Story, rng: random.Random) -> None:
    await story.c.isolate(story.broker_id)
    await asyncio.sleep(rng.uniform(0, 3))
    await story.c.heal()


CHANGES = (_nothing, _nothing, _expire_session, _kill_another, _stop_zookeeper, _isolate)


class Trial(NamedTuple):
    """What one number draws."""

    failures: tuple[Failure, ...]
    broker_id: int
    seed: int
    change: Callable[[Story, random.Random], Awaitable[None]]
    goes_on: bool
    has_disk_threads: bool


@functools.cache
def _moments(broker_id: int, seed: int) -> dict[Moment, int]:
    """Those of a story without a failure; after one, and in threads, there may be others."""
    return told(broker_id=broker_id, seed=seed).counts


def drawn(number: int) -> Trial:
    rng = random.Random(number)
    broker_id, seed = rng.choice([1, 2, 3]), rng.randrange(3)
    kind: Kind = rng.choice(["entry", "entry", "entry", "full", "descriptor", "io"])
    failures = []
    for _ in range(rng.choice([1, 1, 2])):
        counts = {
            each: count
            for each, count in _moments(broker_id, seed).items()
            if each.call in MAY_FAIL[kind]
            and (kind != "entry" or each.file.removesuffix(".tmp") not in OF_THE_DIRECTORY)
        }
        places = sorted({(call, file) for _, call, file in counts})
        call, file = rng.choice(places)  # first, so that rare calls come as often
        moment = rng.choice([each for each in counts if (each.call, each.file) == (call, file)])
        seconds = 0.0 if kind == "io" else rng.choice([0.0, 0.3, 1.5])
        failures.append(Failure(kind, moment, rng.randint(1, counts[moment]), seconds))
    return Trial(tuple(failures), broker_id, seed, rng.choice(CHANGES), rng.random() < 0.3, rng.random() < 0.3)


def tried(number: int) -> Outcome:
    trial, rng = drawn(number), random.Random(f"after {number}")

    async def meanwhile(story: Story) -> None:
        while not story.disk.failed:  # noqa: ASYNC110  (nothing signals it)
            await asyncio.sleep(0.01)
        await asyncio.sleep(rng.choice([0, 0.005, 0.02, 0.1, 0.5, 1.0]) * rng.uniform(0, 2))
        with contextlib.suppress(Misuse, MinibrokerError):  # the story may have killed that broker, or started it
            await trial.change(story, rng)

    return told(
        trial.failures,
        trial.broker_id,
        trial.seed,
        meanwhile,
        goes_on=trial.goes_on,
        has_disk_threads=trial.has_disk_threads,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Tell the story with failing calls that are drawn at random.")
    parser.add_argument("numbers", metavar="N-M", help="of the trials")
    first, _, last = parser.parse_args().numbers.partition("-")
    logging.disable(logging.CRITICAL)
    reached = found = 0
    numbers = range(int(first), int(last or first) + 1)
    for number in numbers:
        outcome = tried(number)
        reached += bool(outcome.failed)
        if outcome.problems:
            found += 1
            print(f"trial {number}: {drawn(number)}", *outcome.failed, *outcome.problems, sep="\n  ", flush=True)
    print(f"{len(numbers)} trials; a call failed in {reached}; problems in {found}")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
