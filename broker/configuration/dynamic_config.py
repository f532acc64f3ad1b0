"""Settings of a broker that change while it runs: /config/brokers/<id> overrides the settings of its start.

Owns: the currently effective BrokerConfig, and the watch that renews it. Leaves to others: what a setting does; its
users read `current` each time, or register `on_change`.

The values in the znode were checked when they were written. Still, a value that this broker does not understand, or may
not change while it runs, is skipped with one log line: a setting never stops a running broker.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from minibroker.broker.configuration.config import broken_rule
from minibroker.broker.configuration.config_table import BrokerConfig
from minibroker.broker.configuration.config_values import BadValue, NotChangeable, canonical_value, parse_value
from minibroker.broker.configuration.settings import SETTINGS
from minibroker.protocol.events.broker_events import NodeUnreadable, SettingIgnored, SettingsChanged
from minibroker.protocol.similar_names import similar_name
from minibroker.protocol.znodes import ConfigNode, CorruptZnode, broker_config_path
from minibroker.runtime.observer import UNOBSERVED, Observer
from minibroker.runtime.ports import (
    Coordination,
    CoordinationError,
    CoordinationUnavailable,
    NoNode,
    NotAuthorized,
    SessionEvent,
    SessionExpired,
    WriteOutcomeUnknown,
)

RETRY_SECONDS = 0.5
REFUSED_SECONDS = 10.0
"""Pause after ZooKeeper refused: a right is missing, or it gives an answer that nothing here expects. It tells no
client when that is over."""

log = logging.getLogger("minibroker.config")


def accepted_broker_value(config: BrokerConfig, name: str, value: str) -> str:
    """The value as it is stored; raises BadValue with why this setting of a running broker cannot be changed so, as a
    sentence."""
    setting = SETTINGS.get(name)
    if setting is None:
        near = similar_name(name, SETTINGS)
        raise NotChangeable(f"{name!r:.200} is not a broker setting." + (f" Did you mean {near}?" if near else ""))
    if not setting.key.dynamic:
        raise NotChangeable(
            f"{name} cannot be changed while a broker runs: set it in its configuration and restart it."
        )
    try:
        accepted = canonical_value(setting, value)
    except BadValue as problem:
        raise BadValue(f"{name}={value.strip()!r:.200}: {problem}.") from None
    broken = broken_rule(msgspec.structs.replace(config, **{setting.field: parse_value(setting, accepted)}))
    if broken is not None:
        raise BadValue(broken)
    return accepted


def apply_overrides(static: BrokerConfig, overrides: Mapping[str, str], source: str) -> tuple[BrokerConfig, list[str]]:
    """The effective settings, and the problems of the skipped ones."""
    config, problems = static, []
    for name, value in sorted(overrides.items()):
        try:
            accepted = accepted_broker_value(config, name, value)
        except BadValue as problem:
            problems.append(str(problem))
            continue
        changed: dict[str, Any] = {
            SETTINGS[name].field: parse_value(SETTINGS[name], accepted),
            "sources": {**config.sources, name: source},
        }
        config = msgspec.structs.replace(config, **changed)
    return config, problems


class UnreadableSettings(Exception):
    """The node of this broker's settings cannot be parsed."""


class DynamicConfig:
    """Keeps `current` in line with ZooKeeper. Use: `start`, then `run` in a task of the owner."""

    def __init__(self, coordination: Coordination, static: BrokerConfig, observer: Observer = UNOBSERVED) -> None:
        self.static = static
        self.current = static
        self.overrides: dict[str, str] = {}
        """The effective part of /config/brokers/<id>."""
        self.changes = 0
        """Times that they were other ones than before."""
        self.on_change: Callable[[BrokerConfig], None] = lambda config: None
        self._observer = observer
        self._coordination = coordination
        self._path = broker_config_path(static.broker_id)
        self._attention = asyncio.Event()
        self._problems: list[str] = []
        coordination.add_session_listener(self._on_session_event)

    async def start(self) -> BrokerConfig:
        """Read once; if ZooKeeper does not answer, the static settings apply until it does. Raises UnreadableSettings:
        the static settings could delete records that the unreadable ones keep."""
        try:
            await self._read()
        except CorruptZnode as error:
            cure = "correct that node or delete it, then start this broker"
            raise UnreadableSettings(f"{self._path} in ZooKeeper is not readable ({error}): {cure}") from None
        except NotAuthorized as error:
            cure = "give brokers the right to read it, or delete it, then start this broker"
            raise UnreadableSettings(
                f"{self._path} in ZooKeeper is not readable (no right to {error}): {cure}"
            ) from None
        except (CoordinationUnavailable, WriteOutcomeUnknown, SessionExpired):
            self._attention.set()
        return self.current

    async def run(self) -> None:
        is_refused = False
        while True:
            await self._attention.wait()
            self._attention.clear()
            try:
                if is_refused:  # without a watch: each attempt would leave one, until the node changes
                    with contextlib.suppress(NoNode):
                        await self._coordination.get(self._path)
                await self._read()
                is_refused = False
            except CorruptZnode as error:
                self._report_unreadable(str(error))
            except (CoordinationUnavailable, WriteOutcomeUnknown, SessionExpired):
                await asyncio.sleep(RETRY_SECONDS)
                self._attention.set()
            except CoordinationError as error:
                if not is_refused:
                    self._report_unreadable(f"no right to {error}" if isinstance(error, NotAuthorized) else str(error))
                is_refused = True
                await asyncio.sleep(REFUSED_SECONDS)
                self._attention.set()

    def _report_unreadable(self, reason: str) -> None:
        consequence = "its settings stay as they were"
        self._observer.notify(NodeUnreadable(path=self._path, consequence=consequence, reason=reason))

    async def _read(self) -> None:
        # Watch first for the node to appear: between a failed `get` and a watch it could be created unseen.
        if await self._coordination.exists(self._path, self._attention.set) is None:
            self._take({})
            return
        try:
            content, _ = await self._coordination.get(self._path)
        except NoNode:
            return  # gone meanwhile: the watch reports it
        self._take(ConfigNode.decode(content).config)

    def _take(self, overrides: Mapping[str, str]) -> None:
        source = f"ZooKeeper {self._path}"
        config, problems = apply_overrides(self.static, overrides, source)
        for problem in problems:
            if problem not in self._problems:
                self._observer.notify(SettingIgnored(path=self._path, reason=problem))
        self._problems = problems
        if config == self.current:
            return
        changed = sorted(
            name
            for name, setting in SETTINGS.items()
            if getattr(config, setting.field) != getattr(self.current, setting.field)
        )
        self._observer.notify(SettingsChanged(settings=changed))
        self.current = config
        self.changes += 1
        self.overrides = {name: value for name, value in overrides.items() if config.source(name) == source}
        self.on_change(config)

    def _on_session_event(self, event: SessionEvent) -> None:
        if event.kind != "suspended":
            self._attention.set()
