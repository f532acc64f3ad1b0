"""Each rule finds planted violations, and passes what is allowed."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tidy.cycles import check_cycles, check_type_checking
from tests.tidy.docstrings import check_docstrings
from tests.tidy.documents import anchors, check_files, check_links
from tests.tidy.hazards import (
    check_conditional_writes,
    check_hash_order,
    check_iteration,
    check_patching,
    check_sleep,
)
from tests.tidy.imports import check_imports
from tests.tidy.purity import check_ports, check_purity
from tests.tidy.references import Page, check_references
from tests.tidy.replica_state import check_replica_state
from tests.tidy.shape import check_definitions, check_finished, check_name, check_size
from tests.tidy.source import SourceFile

Rule = Callable[[SourceFile], list[str]]


def file(path: str, text: str) -> SourceFile:
    return SourceFile(path, textwrap.dedent(text))


@pytest.mark.parametrize(
    ("path", "statement", "word"),
    [
        ("broker/replicas/partition.py", "from minibroker.controller import election", "never import each other"),
        ("client/producer/producer.py", "import minibroker.broker.configuration.config", "never import each other"),
        ("controller/service.py", "from ..client import admin", "never import each other"),
        ("broker/replicas/partition.py", "from minibroker.runtime.adapters.disk import RealDisk", "real adapter"),
        ("broker/replicas/partition.py", "from minibroker.runtime.adapters import zookeeper", "real adapter"),
        ("broker/__main__.py", "from minibroker.client import Producer", "composes"),
        ("audit/checks/rules.py", "from minibroker.broker.log import segment", "excuse"),
        ("audit/job.py", "from minibroker.runtime import ports", "protocol only"),
        ("runtime/rpc.py", "from minibroker.broker import config", "protocol only"),
        ("runtime/rpc.py", "from minibroker.runtime.adapters.network import RealNetwork", "protocol only"),
        ("protocol/wire/codec.py", "from minibroker.runtime.ports import Disk", "imports nothing of the project"),
        ("protocol/wire/codec.py", "import numpy", "msgspec"),
        ("simulation/world/disk.py", "from minibroker.runtime.adapters.disk import RealDisk", "real adapters"),
        ("minibroker/topic.py", "from minibroker.broker.configuration.config import BrokerConfig", "processes"),
        ("bench/load.py", "from minibroker.simulation import loop", "processes"),
        ("broker/replicas/partition.py", "def f():\n    import minibroker.client", "never import each other"),
        ("tests/client/test_x.py", "import client.producer", "minibroker.client.producer"),
    ],
)
def test_forbidden_import_is_named(path: str, statement: str, word: str) -> None:
    problems = check_imports(file(path, statement))
    assert len(problems) == 1
    assert problems[0].startswith(f"{path}:") and word in problems[0]


@pytest.mark.parametrize(
    ("path", "statement"),
    [
        ("broker/replicas/partition.py", "from minibroker.broker.log import segment"),
        ("broker/replicas/partition.py", "from .replication import leader"),
        ("broker/replicas/partition.py", "from minibroker.runtime import ports"),
        ("broker/replicas/partition.py", "from minibroker.runtime.rpc import Connection"),
        (
            "broker/__main__.py",
            "from minibroker.controller import service\nfrom minibroker.runtime.adapters.real import open_ports",
        ),
        ("minibroker/topic.py", "from minibroker import AdminClient\nfrom minibroker.client.errors import ClientError"),
        ("minibroker/topic.py", "from minibroker.simulation.checkers import linear"),
        ("minibroker/commands/broker.py", "from minibroker.broker.configuration.config import load_config"),
        ("scenarios/unclean.py", "from minibroker import Producer\nfrom minibroker.simulation import cluster"),
        ("runtime/adapters/disk.py", "from minibroker.runtime.ports import Disk"),
        ("runtime/rpc.py", "from minibroker.runtime.ports import Network\nfrom minibroker.protocol import codec"),
        ("protocol/wire/codec.py", "import struct\nimport msgspec\nfrom .errors import ProtocolError"),
    ],
)
def test_allowed_import_passes(path: str, statement: str) -> None:
    assert check_imports(file(path, statement)) == []


@pytest.mark.parametrize(
    "hidden",
    [
        "from minibroker.broker.first import First",
        "from minibroker.broker import first",
        "import minibroker.broker.first",
        "from .first import First",
        "if TYPE_CHECKING:\n    from minibroker.broker.first import First",
        "def f():\n    from minibroker.broker.first import First",
    ],
)
def test_import_cycle_is_named_wherever_its_imports_stand(hidden: str) -> None:
    files = [
        file("broker/first.py", "import asyncio\nfrom minibroker.broker.second import Second"),
        file("broker/second.py", "from minibroker.broker import third"),
        file("broker/third.py", hidden),
        file("broker/fourth.py", "from minibroker.broker.first import First"),
    ]
    line = hidden.count("\n") + 1
    (problem,) = check_cycles(files)
    assert "cycle of 3" in problem and f"broker/third.py:{line}: imports minibroker.broker.first" in problem
    assert check_cycles(files[:2]) == []


def test_each_cycle_is_named_once() -> None:
    files = [
        file("broker/a.py", "from minibroker.broker.b import B\nfrom minibroker.broker.c import C"),
        file("broker/b.py", "from minibroker.broker.a import A"),
        file("broker/c.py", "from minibroker.broker.a import A"),
    ]
    assert len(check_cycles(files)) == 2


@pytest.mark.parametrize(
    ("path", "imported", "count"),
    [
        ("broker/replicas/partition.py", "from minibroker.broker.replicas.observations import LogShortened", 1),
        ("audit/spark/spark_job.py", "from pyspark import SparkContext", 0),
        ("audit/spark/spark_job.py", "from pyspark import SparkContext\n    import minibroker.audit.job", 1),
        ("broker/replicas/partition.py", "T = int", 1),
        ("minibroker/commands/topic.py", "from minibroker.client.admin import AdminClient", 0),
    ],
)
def test_type_checking_saves_a_slow_import_and_hides_nothing(path: str, imported: str, count: int) -> None:
    assert len(check_type_checking(file(path, f"if TYPE_CHECKING:\n    {imported}"))) == count


@pytest.mark.parametrize(
    "text",
    ["import asyncio", "from time import time", "import logging", "async def f(): ...", "print(1)", "import pathlib"],
)
def test_pure_file_that_touches_the_outside_is_named(text: str) -> None:
    assert len(check_purity(file("broker/replication/leader.py", text))) == 1
    assert check_purity(file("broker/replicas/partition.py", text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import os",
        "from pathlib import Path",
        "import random\nx = random.random()",
        "import random\nx = random.Random()",
        "async def f(): await asyncio.to_thread(g)",
        "async def f(): await loop.create_connection(g)",
        "x = open('f')",
        "from kazoo.client import KazooClient",
    ],
)
def test_shell_that_bypasses_the_ports_is_named(text: str) -> None:
    assert len(check_ports(file("broker/replicas/partition.py", text))) == 1
    assert check_ports(file("runtime/adapters/disk.py", text)) == []
    assert check_ports(file("audit/reports/report.py", text)) == []


def test_seeded_random_and_pure_paths_pass() -> None:
    text = "import random\nfrom pathlib import PurePosixPath\ndef f(r: random.Random): return random.Random(7)"
    assert check_ports(file("simulation/faults.py", text)) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("broker/broker.py", "tree.transact = watched  # type: ignore[method-assign]"),
        ("client/cluster.py", "setattr(module, 'send', other)"),
        ("simulation/swarm/faults/faults.py", "end = lambda: setattr(disk, 'append', other)"),
        ("simulation/checks/control/fencing.py", "tree.transact = watched  # type: ignore[assignment, method-assign]"),
        ("simulation/checks/control/fencing.py", "def f(tree: Any):\n    def w(): ...\n    tree.transact = w"),
        ("simulation/swarm/run.py", "def f(disk: Any):\n    def w(call): ...\n    disk.check = w(disk.check)"),
        ("simulation/world/world.py", "def f(tree: Any):\n    tree.transact = lambda: None"),
    ],
)
def test_code_replaced_at_run_time_is_named(path: str, text: str) -> None:
    assert len(check_patching(file(path, text))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("simulation/checks/control/fencing.py", "def f(self):\n    def w(): ...\n    self.act = w"),
        ("simulation/checks/control/fencing.py", "def copied(x): ...\nstorage.root = copied(other)"),
    ],
)
def test_fields_and_own_functions_pass(path: str, text: str) -> None:
    assert check_patching(file(path, text)) == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("await self._coordination.delete(path)", 1),
        ("await coordination.set(path, content)", 1),
        ("await self._coordination.delete(path, stat.version)", 0),
        ("await coordination.set(path, content, version=stat.version)", 0),
        ("remove = DeleteOp(path=path)", 0),
        ("known.set(at)", 0),
    ],
)
def test_a_write_without_a_version_is_named(text: str, count: int) -> None:
    assert len(check_conditional_writes(file("broker/requests/producer_names.py", text))) == count
    assert check_conditional_writes(file("simulation/world/znode_tree.py", text)) == []


@pytest.mark.parametrize(
    "text",
    ["for x in {a, b}: ...", "x = [y for y in set(z)]", "x = list(set(z))", "x = hash(y)", "for x in a - set(b): ..."],
)
def test_order_by_hash_is_named(text: str) -> None:
    assert len(check_hash_order(file("controller/service.py", text))) == 1


def test_order_that_does_not_matter_passes() -> None:
    text = """
        for x in sorted({a, b}): ...
        total = sum(y for y in set(z))
        class Task:
            def __hash__(self): return id(self)
    """
    assert check_hash_order(file("simulation/world/loop.py", text)) == []


@pytest.mark.parametrize(
    "body",
    [
        "for k in d:\n    del d[k]",
        "for k in self.d.values():\n    if k:\n        self.d.pop(k)",
        "async def f(self):\n    for c in self.connections:\n        await c.close()",
    ],
)
def test_changing_an_iterated_container_is_named(body: str) -> None:
    assert len(check_iteration(file("broker/replicas/partition.py", body))) == 1


@pytest.mark.parametrize(
    "body",
    [
        "for k in tuple(d):\n    del d[k]",
        "for k in d:\n    if k:\n        del d[k]\n        break",
        "async def f(self):\n    for c in tuple(self.connections):\n        await c.close()",
        "for k in d:\n    other.append(k)",
    ],
)
def test_iterating_a_copy_or_leaving_passes(body: str) -> None:
    assert check_iteration(file("broker/replicas/partition.py", body)) == []


@pytest.mark.parametrize(
    "body",
    [
        "partition.state.fenced = True",
        "self.state.log_end_offset += 1",
        "self.state.assignment: tuple = ()",
        "del replica.state.remotes[2]",
        "replica.state.remotes[2].log_end_offset = 5",
        "state, log = partition.state, partition.log\nstate.fenced = True",
        "leader = partition.state\nleader.fenced = True",
        "for broker_id, remote in partition.state.remotes.items():\n    remote.eligible = False",
        "for waiter in [*state.waiters, *state.sync_waiters]:\n    waiter.leader_epoch = 3",
        "for remote in tuple(state.remotes.values()):\n    remote.eligible = False",
        "remotes = state.remotes\nif remote := remotes.get(2):\n    remote.eligible = False",
        "partition.state.waiters.clear()",
        "self.state.epoch_history.assign(3, 7)",
    ],
)
@pytest.mark.parametrize("path", ["broker/replicas/partition.py", "simulation/model/replica.py"])
def test_change_of_a_replica_state_outside_the_core_is_named(path: str, body: str) -> None:
    inside = "def f(self, partition, replica, state):\n" + textwrap.indent(body, "    ")
    assert len(check_replica_state(file(path, inside))) == 1
    assert check_replica_state(file("broker/replication/leader.py", inside)) == []
    assert check_replica_state(file("controller/core/election.py", inside)) == []


@pytest.mark.parametrize(
    "body",
    [
        "self.state = ReplicaState(config=config)",
        "replica.state = replace(replica.state, last_proposal_id=0)",
        "self.log.truncate_to(self.state.high_watermark)",
        "end = self.state.log_end_offset\nself.log_end_offset = end",
        "self.ends[partition.state.leader_epoch] = 3",
        "self.seen.update(partition.state.remotes)",
        "members = list(self.state.assignment)\nmembers.remove(3)",
    ],
)
def test_reading_a_replica_state_or_making_another_passes(body: str) -> None:
    inside = "def f(self, partition, replica):\n" + textwrap.indent(body, "    ")
    assert check_replica_state(file("broker/replicas/partition.py", inside)) == []


def test_sleep_belongs_to_system_tests_and_virtual_time() -> None:
    sleeping = "import asyncio\nasync def test_x(): await asyncio.sleep(0.1)"
    assert len(check_sleep(file("tests/client/test_x.py", sleeping))) == 1
    assert check_sleep(file("tests/system/test_x.py", sleeping)) == []
    assert check_sleep(file("tests/client/test_x.py", "from minibroker.simulation import loop\n" + sleeping)) == []
    assert check_sleep(file("tests/client/test_x.py", "async def test_x(): await asyncio.sleep(0)")) == []


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (check_size, "broker/replicas/partition.py", "x = 1\n" * 501),
        (check_size, "broker/replicas/partition.py", "def f():\n" + "    x = 1\n" * 70),
        (check_name, "broker/utils.py", ""),
        (check_name, "client/common/codes.py", ""),
        (check_definitions, "protocol/ids.py", "A = 1\nB = 2\nA = B"),
        (check_definitions, "protocol/ids.py", "class C:\n    limit: int = 1\n    limit: int = 2"),
        (check_finished, "broker/replicas/partition.py", "x = 1  # TO" + "DO: more"),
        (check_finished, "broker/replicas/partition.py", "raise NotImplemented" + "Error"),
    ],
)
def test_violation_of_shape_is_named(rule: Rule, path: str, text: str) -> None:
    assert len(rule(file(path, text))) == 1


def test_link_to_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# The `log`, and more\n")
    page = tmp_path / "a.md"
    page.write_text(
        "[x](b.md) [x](b.md#the-log-and-more) [x](https://example.org) [x](c.md) [x](b.md#nowhere) `[x](d.md)`"
    )
    assert [problem.split(": ")[1] for problem in check_links(page, tmp_path)] == ["link c.md", "link b.md#nowhere"]


def test_anchor_equals_the_one_that_repositories_use() -> None:
    assert anchors("## 3. What may import it?\n") == {"3-what-may-import-it"}


RULES_PAGE = Page.read(
    """# Replication
## 1. Storage
## 4. Follower fetch
## Hardening rules: stricter
1. **Incarnations.**
8. **The deadline.**
## 13. Invariants
| I1 | the leader is in the ISR | broker |
"""
)


@pytest.mark.parametrize(
    "text",
    [
        "replication rules, section 4.5",
        "replication rules, section 2",
        "replication rules, sections 1 and\n# 5",
        "replication rules, 4",
        "hardening 8",
        "Hardening rule 9",
        "hardening rules 1, 2",
        "stricter rule 1",
        "checks I2",
    ],
)
def test_a_reference_that_does_not_resolve_is_named(text: str) -> None:
    assert len(check_references("broker/x.py", text, RULES_PAGE)) == 1


@pytest.mark.parametrize(
    "text",
    ["(replication\n    rules, sections 1 and 4.)", "Hardening rules 1 to 8.", "I1", "replication rules", "INT1"],
)
def test_a_reference_that_resolves_passes(text: str) -> None:
    assert check_references("broker/x.py", text, RULES_PAGE) == []


def test_a_docstring_that_names_what_does_not_exist_is_named() -> None:
    framing = file("protocol/framing.py", "def read_frame(): ...")
    session = file("bench/session.py", "session = 1")
    wrong = file(
        "protocol/messages.py", '"""How a message is framed (`session`)."""\nclass A:\n    "Like `ReadFrame`."'
    )
    right = file(
        "protocol/codec.py", '"""Not `framing`, `read_frame()` or `bench`."""\nclass A:\n    "`ready`, `x y`."'
    )
    problems = check_docstrings([framing, session, wrong, right])
    assert [problem.split(": ")[:2] for problem in problems] == [
        ["protocol/messages.py:3", "`ReadFrame`"],
        ["protocol/messages.py", "`session`"],
    ]


def test_a_file_name_that_several_files_have_is_named(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    files = frozenset({"broker/log.py", "client/log.py", "tests/log.py", "client/errors.py", "docs/page.md"})
    page.write_text("`log.py` and `errors.py`, `gone.py`")
    assert [problem.split(": ")[1] for problem in check_files(page, tmp_path, files)] == ["`gone.py`", "`log.py`"]
    page.write_text("`broker/log.py`, then `log.py`")
    assert check_files(page, tmp_path, files) == []
