"""A setting must be what was confirmed last, or what a change of unknown outcome made of it."""

from minibroker.simulation.swarm.loads.changed_settings import ChangedSettings


def test_confirmed_change_must_be_there_and_one_in_doubt_may_be() -> None:
    settings = ChangedSettings()
    settings.in_doubt("load", {"segment.ms": "1"})
    assert settings.owners() == []
    settings.confirmed("load", {"segment.ms": "2", "retention.ms": "3"})
    settings.confirmed("load", {"retention.ms": None})
    settings.confirmed(2, {"segment.ms": "4"})
    assert settings.owners() == [2, "load"]
    assert list(settings.wrong(2, {"segment.ms": "4"})) == []
    assert list(settings.wrong("load", {"segment.ms": "2"})) == []
    assert list(settings.wrong("load", {"segment.ms": "1"})) == []
    assert len(list(settings.wrong("load", {"segment.ms": "3", "retention.ms": "3"}))) == 2
    assert list(settings.wrong("other", {})) == []
