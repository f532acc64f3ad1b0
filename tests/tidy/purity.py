"""Which files are pure, and which may touch the outside directly."""

from __future__ import annotations

import ast
from fnmatch import fnmatch

from tests.tidy.imports import COMPOSER, is_adapter
from tests.tidy.source import SourceFile

PURE = (
    "broker/replication/*",
    "broker/requests/producer_name_rules.py",
    "controller/core/*",
    "client/producer/accumulator.py",
    "client/retry.py",
    "protocol/*",
    "audit/checks/*",
    "chaos/history/*",
    "chaos/plan/*",
)

# Modules that touch the outside: files, clocks, randomness, sockets, threads, processes, and libraries that use them.
OUTSIDE = {
    *("os", "io", "pathlib", "shutil", "tempfile", "glob", "fcntl", "mmap"),
    *("time", "datetime", "sched"),
    *("random", "secrets", "uuid"),
    *("socket", "socketserver", "select", "selectors", "ssl", "http", "urllib"),
    *("threading", "concurrent", "multiprocessing", "queue", "subprocess", "signal", "ctypes"),
    *("uvloop", "kazoo"),
}
PURE_BANS = OUTSIDE | {"asyncio", "logging", "contextvars", "warnings", "sys", "rich", "click", "prometheus_client"}
PURE_CALLS = {"open", "print", "input", "breakpoint"}

# Harmless parts of banned modules.
EXEMPT = {"pathlib.PurePath", "pathlib.PurePosixPath", "random.Random", "io.BytesIO", "io.StringIO"}

# These block or replace what real code on the virtual loop would use, so they must name it.
GUARDS = {
    "simulation/world/loop.py": {"threading", "concurrent", "signal"},
    "simulation/world/own_sockets.py": {"socket"},
    "simulation/world/real_waiting.py": {"socket", "threading", "time"},
    "simulation/world/background_work.py": {"threading"},
}

# Functions of asyncio that bypass the ports.
LOOP_ESCAPES = {
    *("open_connection", "start_server", "open_unix_connection", "start_unix_server", "to_thread"),
    *("create_connection", "create_server", "create_datagram_endpoint", "run_in_executor", "add_signal_handler"),
    *("create_subprocess_exec", "create_subprocess_shell", "sock_sendall", "sock_recv", "add_reader", "add_writer"),
    *("getaddrinfo", "getnameinfo", "call_soon_threadsafe", "run_coroutine_threadsafe"),
}

WHY_PURE = "this file is pure: it decides from its arguments; pass in what it needs, and act in the shell"
WHY_PORT = (
    "only runtime/adapters/ and the shells of minibroker/ and audit/ touch the outside; use a port of runtime.ports"
)


def is_pure(file: SourceFile) -> bool:
    return any(fnmatch(file.path, pattern) for pattern in PURE)


def is_portable(file: SourceFile) -> bool:
    """Code that runs unmodified on virtual ports."""
    if file.folder == "runtime":
        return not is_adapter(file)
    return file.folder in ("protocol", "broker", "controller", "client", "simulation") and file.path != COMPOSER


def check_purity(file: SourceFile) -> list[str]:
    if not is_pure(file):
        return []
    problems = _check_imports(file, PURE_BANS, WHY_PURE)
    for node in file.nodes:
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            problems.append(f"{file.path}:{node.lineno}: async: {WHY_PURE}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PURE_CALLS:
            problems.append(f"{file.path}:{node.lineno}: {node.func.id}(): {WHY_PURE}")
    return problems


def check_ports(file: SourceFile) -> list[str]:
    if not is_portable(file) or is_pure(file):
        return []
    problems = _check_imports(file, OUTSIDE - GUARDS.get(file.path, set()), WHY_PORT)
    for node in file.nodes:
        if isinstance(node, ast.Attribute) and node.attr in LOOP_ESCAPES and _is_loop(node.value):
            problems.append(f"{file.path}:{node.lineno}: .{node.attr}: {WHY_PORT}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            problems.append(f"{file.path}:{node.lineno}: open(): {WHY_PORT}")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("Random", "random.Random") and not node.args:
            problems.append(f"{file.path}:{node.lineno}: Random() without a seed: {WHY_PORT}")
    return problems


def _is_loop(node: ast.expr) -> bool:
    return "asyncio" in ast.unparse(node) or "loop" in ast.unparse(node)


def _check_imports(file: SourceFile, banned: set[str], why: str) -> list[str]:
    problems = []
    uses = {ast.unparse(node) for node in file.nodes if isinstance(node, ast.Attribute)}
    for item in file.imports:
        top = item.module.split(".")[0]
        if top not in banned or item.module in EXEMPT:
            continue
        touched = {use for use in uses if use.startswith(f"{top}.")}
        if item.module == top and touched and all(_exempt(use) for use in touched):
            continue
        problems.append(f"{file.path}:{item.line}: imports {item.module}: {why}")
    return problems


def _exempt(use: str) -> bool:
    return any(use == name or use.startswith(f"{name}.") for name in EXEMPT)
