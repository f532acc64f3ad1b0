"""Settings must be described as the run made them, except those that an operator changes meanwhile."""

import asyncio
import random
from types import SimpleNamespace

from minibroker.client.descriptions import ConfigEntry
from minibroker.simulation.swarm.loads.describer import Describer
from minibroker.simulation.swarm.loads.load_options import TOPIC

NAME = "message.max.bytes"


class StandInAdmin:
    """Every broker describes this value."""

    async def describe_configs(self, **_: object) -> dict[str, ConfigEntry]:
        return {NAME: ConfigEntry(NAME, "8192", "dynamic-broker", False, False, "")}


def findings(broker_changes: dict[str, tuple[str | None, ...]]) -> list[str]:
    found: list[str] = []
    scene = SimpleNamespace(
        options=SimpleNamespace(topic_settings={TOPIC: {}}, changes={}, broker_changes=broker_changes),
        settings={NAME: "4096"},
        cluster=SimpleNamespace(broker_ids=(1,)),
        find=lambda promise, text: found.append(f"{promise}: {text}"),
    )
    describer = Describer(scene, random.Random(1))  # type: ignore[arg-type]
    describer._admin = StandInAdmin()  # type: ignore[assignment]
    asyncio.run(describer.describe_configs())
    return found


def test_setting_that_a_broker_does_not_have_is_found_unless_it_may_have_been_changed() -> None:
    assert len(findings({})) == 1
    assert findings({NAME: ("8192",)}) == []
