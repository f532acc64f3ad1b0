"""Interaction tests: commands, then the expected messages and the table of all replicas.

Each file of testdata/ is one test. A block has commands (separated by ';' or newlines), a line '----', and the expected
output, up to an empty line. `make test REWRITE=1` rewrites the expected output; review the diff.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.broker.replication.core_cluster import CoreCluster

TESTDATA = Path(__file__).parent / "testdata"


def run_command(cluster: CoreCluster | None, command: str) -> CoreCluster:
    """One command of the test language, for example `fetch 2 hold=x`."""
    verb, *words = command.split()
    options = dict(word.split("=", 1) for word in words if "=" in word)
    plain = [word for word in words if "=" not in word]
    if verb == "cluster":
        return CoreCluster(
            int(plain[0]),
            min_insync=int(options.get("min_insync", "1")),
            flush="flush" in plain,
            rule=options.get("rule", "leader-epoch"),
        )
    assert cluster is not None, "a test begins with `cluster N`"
    _COMMANDS[verb](cluster, plain, options)
    return cluster


def _members(text: str | None) -> tuple[int, ...] | None:
    return None if text is None else tuple(int(b) for b in text.split(","))


def _elect(cluster: CoreCluster, plain: list[str], options: dict[str, str]) -> None:
    leader = None if plain[0] == "none" else int(plain[0])
    cluster.elect(leader, _members(options.get("isr")), _members(options.get("to")))


def _produce(cluster: CoreCluster, plain: list[str], options: dict[str, str]) -> None:
    acks = {"all": -1, "1": 1, "0": 0}[options.get("acks", "all")]
    for value in plain[1:]:
        producer = tuple(int(x) for x in options["producer"].split(",")) if "producer" in options else None
        cluster.produce(int(plain[0]), value, acks, producer)  # type: ignore[arg-type]


def _fetch(cluster: CoreCluster, plain: list[str], options: dict[str, str]) -> None:
    for follower in plain:
        numbers = {k: int(options[k]) for k in ("leader", "epoch", "at", "broker_epoch") if k in options}
        cluster.fetch(int(follower), hold=options.get("hold"), eligible="ineligible" not in options, **numbers)


def _follow(cluster: CoreCluster, plain: list[str], options: dict[str, str]) -> None:
    for follower in plain:
        cluster.follow(int(follower))


def _restart(cluster: CoreCluster, plain: list[str], options: dict[str, str]) -> None:
    cluster.replicas[int(plain[0])].restart(int(options["keep"]) if "keep" in options else None)


_COMMANDS: dict[str, Callable[[CoreCluster, list[str], dict[str, str]], Any]] = {
    "elect": _elect,
    "order": lambda s, p, o: s.send_order(tuple(int(b) for b in p)),
    "produce": _produce,
    "fetch": _fetch,
    "ask": lambda s, p, o: s.ask(int(p[0]), hold=o.get("hold")),
    "follow": _follow,
    "ends": lambda s, p, o: s.ends(int(p[0])),
    "deliver": lambda s, p, o: s.deliver(p[0]),
    "read": lambda s, p, o: s.print(f"reads {s.read(int(p[0]), int(o.get('at', '0')))}"),
    "time": lambda s, p, o: s.pass_time(int(p[0])),
    "lag": lambda s, p, o: s.check_lag(int(p[0])),
    "alter": lambda s, p, o: s.alter(int(p[0]), p[1]),
    "sync": lambda s, p, o: s.sync(int(p[0])),
    "restart": _restart,
    "show": lambda s, p, o: None,
}


def blocks(text: str) -> list[tuple[str, str]]:
    """(commands, expected) pairs."""
    found = []
    for block in text.strip().split("\n\n"):
        commands, _, expected = block.partition("\n----")
        found.append((commands, expected.strip("\n")))
    return found


def play(text: str) -> list[tuple[str, str]]:
    """Run one test; returns the actual output of each block."""
    cluster: CoreCluster | None = None
    results = []
    for commands, _ in blocks(text):
        for line in commands.splitlines():
            for command in line.split("#")[0].split(";"):
                if command.strip():
                    cluster = run_command(cluster, command.strip())
        assert cluster is not None
        lines = [*cluster.printed, *cluster.table()] if "----" in text else []
        cluster.printed.clear()
        results.append((commands, "\n".join(lines)))
    return results


def _stories() -> list[Any]:
    """One test for each file, which names its invariants in the first line, as in `# I5 I7: ...`."""
    found = []
    for path in sorted(TESTDATA.glob("*.txt")):
        named = re.findall(r"\bI\d+\b", path.read_text().split(":")[0])
        found.append(pytest.param(path, id=path.stem, marks=[pytest.mark.invariant(*named)] if named else []))
    return found


@pytest.mark.parametrize("path", _stories())
def test_story(path: Path) -> None:
    text = path.read_text()
    results = play(text)
    if os.environ.get("REWRITE"):
        path.write_text("\n\n".join(f"{commands}\n----\n{out}" for commands, out in results) + "\n")
        return
    for (commands, out), (_, expected) in zip(results, blocks(text), strict=True):
        assert out == expected, f"{path.name}: after\n{commands}"
