"""Hazards that are visible in the source: order by hash, changing what is iterated, blind writes, sleeping in tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.tidy.purity import is_portable
from tests.tidy.source import SourceFile, project_files

WHY_ORDER = (
    "the order of a set differs from process to process, but a run must repeat from its seed: iterate sorted(...)"
)
WHY_HASH = "hash() and id() differ from process to process, but a run must repeat from its seed: use a CRC or a counter"
MUTATORS = {"append", "remove", "pop", "popitem", "clear", "add", "discard", "insert", "extend", "update", "setdefault"}
VIEWS = {"keys", "values", "items"}
ORDER_FREE = {"sorted", "set", "frozenset", "sum", "min", "max", "len", "any", "all"}

Loop = ast.For | ast.AsyncFor


def check_hash_order(file: SourceFile) -> list[str]:
    if not is_portable(file):
        return []
    problems = []
    order_free = {id(generator) for generator in _order_free_generators(file)}
    for node in file.nodes:
        if isinstance(node, ast.For) and _is_set(node.iter):
            problems.append(f"{file.path}:{node.lineno}: iterates a set: {WHY_ORDER}")
        elif isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp) and id(node) not in order_free:
            if any(_is_set(generator.iter) for generator in node.generators):
                problems.append(f"{file.path}:{node.lineno}: iterates a set: {WHY_ORDER}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("list", "tuple") and node.args and _is_set(node.args[0]):
                problems.append(f"{file.path}:{node.lineno}: {node.func.id}() of a set: {WHY_ORDER}")
            elif node.func.id in ("hash", "id") and not _inside_dunder_hash(file, node):
                problems.append(f"{file.path}:{node.lineno}: {node.func.id}(): {WHY_HASH}")
    return problems


ARGUMENTS_WITH_VERSION = {"set": 3, "delete": 2}
MAY_WRITE_BLINDLY = {
    "broker/replicas/witness.py": "a broker's notes are its own, and each replaces the whole",
    "broker/requests/producer_name_admin.py": "an operator deletes the name, whatever it holds",
}


def check_conditional_writes(file: SourceFile) -> list[str]:
    """A change of a node in ZooKeeper names the version that was read: else it undoes what another broker did since.

    Operations of a multi are left out: those of a controller check its fence instead.
    """
    if file.folder not in ("broker", "controller") or file.path in MAY_WRITE_BLINDLY:
        return []
    problems = []
    for node in file.nodes:
        if not isinstance(node, ast.Call):
            continue
        owner, _, method = ast.unparse(node.func).rpartition(".")
        wanted = ARGUMENTS_WITH_VERSION.get(method, 0) if owner.endswith("coordination") else 0
        if len(node.args) + sum(each.arg == "version" for each in node.keywords) < wanted:
            what = "names no version: it may undo what another broker has written since"
            problems.append(f"{file.path}:{node.lineno}: {ast.unparse(node.func)} {what}")
    return problems


def check_iteration(file: SourceFile) -> list[str]:
    """A container that changes while it is iterated: in the loop's body, or in other tasks during an await there."""
    problems = []
    for loop in file.nodes:
        if not isinstance(loop, Loop):
            continue
        container = _container(loop.iter)
        if container is None:
            continue
        for node in _changes_before_going_on(loop.body, container):
            copy = f"iterate tuple({ast.unparse(loop.iter)})"
            problems.append(f"{file.path}:{node.lineno}: changes {container} while iterating it: {copy}")
        shared = container.startswith("self.") and isinstance(loop, ast.For) and file.folder != "tests"
        if shared and _awaits(loop.body):
            copy = f"iterate tuple({ast.unparse(loop.iter)})"
            problems.append(f"{file.path}:{loop.lineno}: awaits while iterating {container}, which may change: {copy}")
    return problems


def check_sleep(file: SourceFile) -> list[str]:
    """Real sleeping is banned. asyncio.sleep is fine where the simulation is used, because virtual time costs nothing.

    A line with `noqa: ASYNC251` sleeps to test that the virtual loop refuses it.
    """
    if file.folder != "tests" or file.path.startswith("tests/system/"):
        return []
    virtual = uses_simulation(file)
    lines = file.text.splitlines()
    problems = []
    for node in file.nodes:
        if not isinstance(node, ast.Call) or "noqa: ASYNC251" in lines[node.lineno - 1]:
            continue
        name = ast.unparse(node.func)
        zero = bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
        if not zero and (name == "time.sleep" or (name == "asyncio.sleep" and not virtual)):
            what = "wait for an event with a deadline, or run on the virtual loop; real sleeping is for tests/system"
            problems.append(f"{file.path}:{node.lineno}: {name}: {what}")
    return problems


def uses_simulation(file: SourceFile) -> bool:
    """Does the file, or a module of tests/ that it imports, import the simulation?"""
    tests = {other.path.removesuffix(".py").replace("/", "."): other for other in project_files("tests")}
    pending, seen = [file], {file.path}
    while pending:
        for item in pending.pop().imports:
            if item.module.startswith(("minibroker.simulation", "minibroker.testing")):
                return True
            for name in (item.module, item.module.rpartition(".")[0]):
                if name in tests and tests[name].path not in seen:
                    seen.add(tests[name].path)
                    pending.append(tests[name])
    return False


def _is_set(node: ast.expr) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("set", "frozenset")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
        return _is_set(node.left) or _is_set(node.right)
    return False


def _order_free_generators(file: SourceFile) -> Iterator[ast.AST]:
    for node in file.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ORDER_FREE:
            yield from node.args


def _inside_dunder_hash(file: SourceFile, call: ast.Call) -> bool:
    functions = [node for node in file.nodes if isinstance(node, ast.FunctionDef) and node.name == "__hash__"]
    return any(call in ast.walk(function) for function in functions)


def _container(iterated: ast.expr) -> str | None:
    """`d` of `d` and `d.items()`; None for a copy or another call."""
    if isinstance(iterated, ast.Call):
        function = iterated.func
        if not (isinstance(function, ast.Attribute) and function.attr in VIEWS and not iterated.args):
            return None
        iterated = function.value
    return ast.unparse(iterated) if isinstance(iterated, ast.Name | ast.Attribute) else None


def _changes_before_going_on(body: list[ast.stmt], container: str) -> Iterator[ast.stmt]:
    """Statements that change the container, unless their block then leaves the loop."""
    leaves = bool(body) and isinstance(body[-1], ast.Break | ast.Return | ast.Raise)
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        blocks = [block for block in _blocks(statement) if block]
        for block in blocks:
            if not leaves:
                yield from _changes_before_going_on(block, container)
        if not blocks and not leaves and _changes(statement, container):
            yield statement


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])
    for handler in getattr(statement, "handlers", []):
        yield handler.body
    for case in getattr(statement, "cases", []):
        yield case.body


def _changes(statement: ast.stmt, container: str) -> bool:
    if isinstance(statement, ast.Delete):
        return any(isinstance(t, ast.Subscript) and ast.unparse(t.value) == container for t in statement.targets)
    if isinstance(statement, ast.Return):
        return False
    calls = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
    methods = [function for function in calls if isinstance(function, ast.Attribute)]
    return any(method.attr in MUTATORS and ast.unparse(method.value) == container for method in methods)


def _awaits(body: list[ast.stmt]) -> bool:
    waits = (ast.Await, ast.AsyncFor, ast.AsyncWith)
    return any(isinstance(node, waits) for statement in body for node in ast.walk(statement))


PATCHING = re.compile(r"\bsetattr\(|type: ignore\[[^\]]*method-assign")
MAY_PATCH = {
    "scenarios/patches.py": "a scenario takes a rule out on purpose",
    "simulation/world/real_waiting.py": "while virtual time runs, Python's sleep and thread start refuse to be called",
}


def check_patching(file: SourceFile) -> list[str]:
    """No function is replaced at run time, neither of the program nor of the simulated world: both report."""
    if file.folder == "tests" or file.path in MAY_PATCH:
        return []
    lines = [number for number, line in enumerate(file.text.splitlines(), start=1) if PATCHING.search(line)]
    if file.folder == "simulation":
        lines += [node.lineno for node in _replaced_functions(file)]
    what = "subscribe to the observer (runtime/observer.py, simulation/world/observations.py)"
    return [f"{file.path}:{number}: replaces code at run time: {what}" for number in sorted(set(lines))]


def _replaced_functions(file: SourceFile) -> Iterator[ast.Assign]:
    """Assignments of a function that is made on the spot to an attribute of another object, whatever its type."""
    functions = [node for node in file.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    made = {
        inner.name
        for outer in functions
        for inner in ast.walk(outer)
        if inner is not outer and isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for node in file.nodes:
        if not isinstance(node, ast.Assign):
            continue
        value = node.value.func if isinstance(node.value, ast.Call) else node.value
        is_function = isinstance(value, ast.Lambda) or (isinstance(value, ast.Name) and value.id in made)
        if is_function and any(_is_of_another(target) for target in node.targets):
            yield node


def _is_of_another(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and not (isinstance(target.value, ast.Name) and target.value.id == "self")
