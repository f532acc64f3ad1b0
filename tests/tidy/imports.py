"""Which folder may import which."""

from __future__ import annotations

import sys

from tests.tidy.source import PACKAGES, SourceFile

# All else in runtime/ runs on any port, real or virtual, so the rules for portable code (tests/tidy/purity.py) apply.
ADAPTERS = "minibroker.runtime.adapters"

WHY_SIBLINGS = "broker, controller and client never import each other; only broker/__main__.py composes them"
WHY_PORTS = "the outside is reached through the ports of runtime/ports.py, never a real adapter (runtime/adapters/)"
WHY_AUDIT = "audit imports protocol only, so that a bug in the broker cannot excuse itself"
WHY_PROCESSES = "it treats brokers as processes, or simulates them: it uses client, protocol, audit and checkers"

# folder -> (modules it may import besides itself, why the others are banned)
ALLOWED: dict[str, tuple[tuple[str, ...], str]] = {
    "protocol": ((), "protocol imports nothing of the project, because all other folders depend on it"),
    "runtime": (("minibroker.protocol",), "runtime imports protocol only, and no real adapter outside adapters/"),
    "broker": (("minibroker.protocol", "minibroker.runtime"), f"{WHY_SIBLINGS}; {WHY_PORTS}"),
    "controller": (("minibroker.protocol", "minibroker.runtime"), f"{WHY_SIBLINGS}; {WHY_PORTS}"),
    "client": (("minibroker.protocol", "minibroker.runtime"), f"{WHY_SIBLINGS}; {WHY_PORTS}"),
    "audit": (("minibroker.protocol",), WHY_AUDIT),
    "simulation": (
        (
            "minibroker.protocol",
            "minibroker.broker",
            "minibroker.controller",
            "minibroker.client",
            "minibroker.audit",
            "minibroker.runtime",
            "minibroker.chaos.history",
        ),
        "simulation imports everything but the real adapters and the front door; of chaos/ only the pure checker",
    ),
    "minibroker": (
        (
            "minibroker.protocol",
            "minibroker.client",
            "minibroker.audit",
            "minibroker.runtime",
            "minibroker.simulation",
            "minibroker.scenarios",
            "minibroker.bench",
            "minibroker.chaos",
        ),
        WHY_PROCESSES,
    ),
    "scenarios": (
        (
            "minibroker",
            "minibroker.client",
            "minibroker.protocol",
            "minibroker.simulation",
            "minibroker.audit",
            "minibroker.broker.replication.state",
            "minibroker.runtime",
        ),
        "a story plays on simulated brokers, or on real processes; it reads a replica's state and changes none",
    ),
    "chaos": (
        ("minibroker", "minibroker.client", "minibroker.protocol", "minibroker.audit", "minibroker.simulation"),
        WHY_PROCESSES,
    ),
    "bench": (
        ("minibroker", "minibroker.client", "minibroker.protocol", "minibroker.audit", "minibroker.simulation.checks"),
        WHY_PROCESSES,
    ),
}

# The one file that composes a broker with a controller candidate and the real ports.
COMPOSER = "broker/__main__.py"
COMPOSER_ALLOWED = ("minibroker.protocol", "minibroker.broker", "minibroker.controller", "minibroker.runtime")

# The command that runs a broker process; all other commands use only its protocol.
BROKER_COMMAND = "minibroker/commands/broker.py"
BROKER_COMMAND_ALLOWED = ("minibroker.broker.__main__", "minibroker.broker.configuration.config")

# What a scenario takes out of brokers and controller to show what it is for; no other scenario knows a rule's inside.
SCENARIO_PATCHES = "scenarios/patches.py"
SCENARIO_PATCHES_ALLOWED = ("minibroker.broker.replication", "minibroker.controller.core")

PROTOCOL_LIBRARIES = {"msgpack", "msgspec", "crc32c", "google_crc32c"}


def check_imports(file: SourceFile) -> list[str]:
    if file.folder == "tests":
        return _check_flat_names(file)
    problems = _check_flat_names(file)
    allowed, why = ALLOWED[file.folder]
    if file.path == COMPOSER:
        allowed, why = (
            COMPOSER_ALLOWED,
            "broker/__main__.py composes broker, controller and the real ports, nothing else",
        )
    if file.path == BROKER_COMMAND:
        allowed += BROKER_COMMAND_ALLOWED
    if file.path == SCENARIO_PATCHES:
        allowed += SCENARIO_PATCHES_ALLOWED
    for item in file.imports:
        if _is_project(item.module) and not _may(file, item.module, allowed):
            problems.append(f"{file.path}:{item.line}: imports {item.module}: {why}")
        if file.folder == "protocol" and not _is_project(item.module):
            top = item.module.split(".")[0]
            if top not in PROTOCOL_LIBRARIES and top not in sys.stdlib_module_names:
                libraries = "the standard library, msgpack, msgspec and a CRC library"
                problems.append(f"{file.path}:{item.line}: imports {top}: protocol uses {libraries} only")
    return problems


def _is_project(module: str) -> bool:
    return module.split(".")[0] == "minibroker"


def _may(file: SourceFile, module: str, allowed: tuple[str, ...]) -> bool:
    if module == "minibroker":
        return True  # `import minibroker` alone, for its path or its version
    if _within(module, ADAPTERS) and not _may_use_adapters(file):
        return False
    if file.folder in PACKAGES and _within(module, f"minibroker.{file.folder}"):
        return True
    if file.folder == "minibroker" and not any(_within(module, f"minibroker.{name}") for name in PACKAGES):
        return True  # the files of minibroker/ itself
    if "minibroker" in allowed and not any(_within(module, f"minibroker.{name}") for name in PACKAGES):
        return True
    return any(_within(module, name) for name in allowed if name != "minibroker")


def _may_use_adapters(file: SourceFile) -> bool:
    return file.folder == "minibroker" or file.path == COMPOSER or is_adapter(file)


def is_adapter(file: SourceFile) -> bool:
    return _within(file.module, ADAPTERS)


def _within(module: str, parent: str) -> bool:
    """`from minibroker.runtime import ports` arrives here as minibroker.runtime.ports."""
    return module == parent or module.startswith(parent + ".")


def _check_flat_names(file: SourceFile) -> list[str]:
    return [
        f"{file.path}:{item.line}: imports {item.module}: write minibroker.{item.module} "
        "(a flat name would clash with modules of our users)"
        for item in file.imports
        if item.module.split(".")[0] in PACKAGES
    ]
