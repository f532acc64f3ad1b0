"""A plan comes from its seed, survives its file, and fits its back end."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.chaos.plan.drawing import BadPlan, draw_plan, parse_faults, parse_plan
from minibroker.chaos.plan.fault_kinds import BACKENDS, BY_NAME, Backend


@given(st.integers(0, 10_000), st.sampled_from(BACKENDS), st.floats(5, 600))
def test_a_drawn_plan_fits_its_back_end_and_its_time(seed: int, backend: Backend, duration_s: float) -> None:
    plan = draw_plan(seed, duration_s, backend)
    assert plan == draw_plan(seed, duration_s, backend)
    assert parse_plan(msgspec.json.encode(plan), backend) == plan
    for fault in plan.faults:
        kind = BY_NAME[fault.kind]
        assert backend in kind.backends
        assert fault.target in kind.targets
        assert 0 < fault.at_s < duration_s


def test_seeds_differ_and_together_use_every_kind() -> None:
    plans = [draw_plan(seed, 60, "processes") for seed in range(60)]
    used = {fault.kind for plan in plans for fault in plan.faults}
    assert used == {name for name, kind in BY_NAME.items() if "processes" in kind.backends}
    assert len({plan.faults for plan in plans}) == 60


def test_named_faults_are_the_only_ones() -> None:
    plan = draw_plan(1, 60, "processes", parse_faults("kill, pause:leader"))
    assert {fault.kind for fault in plan.faults} == {"kill", "pause"}
    assert {fault.target for fault in plan.faults if fault.kind == "pause"} == {"leader"}


@pytest.mark.parametrize(
    ("names", "part"),
    [
        ("burn", "no fault 'burn'"),
        ("burn,kil", r"no fault 'burn', 'kil' \(did you mean 'kill'\?\): "),
        ("Pauze", "did you mean 'pause'"),
        ("kill:king", "no target 'king'"),
        (" , ", "no fault is named"),
    ],
)
def test_wrong_names_get_one_sentence(names: str, part: str) -> None:
    with pytest.raises(BadPlan, match=part):
        parse_faults(names)


SOUND = b'{"seed":1,"duration_s":9,"overlap_max":1,"faults":[{"at_s":2,"kind":"kill","target":"leader","for_s":3}]}'


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"overlap_max":1', b'"overlap_max":0'),  # no fault would ever begin, and the run never end
        (b'"at_s":2', b'"at_s":1e300'),
        (b'"at_s":2', b'"at_s":10'),
        (b'"at_s":2', b'"at_s":-1'),
        (b'"for_s":3', b'"for_s":1e300'),
        (b'"for_s":3', b'"for_s":-1'),
        (b'"for_s":3', b'"for_s":3,"partition":4'),
        (b'"duration_s":9', b'"duration_s":1e308'),
        (b'"duration_s":9', b'"duration_s":0'),
        (b'"kill"', b'"\xff"'),
        (b'"seed"', b'"deep":' + b"[" * 100_000 + b"]" * 100_000 + b',"seed"'),
    ],
)
def test_a_plan_that_cannot_be_followed_is_refused(old: bytes, new: bytes) -> None:
    assert parse_plan(SOUND, "compose").faults
    assert old in SOUND
    with pytest.raises(BadPlan):
        parse_plan(SOUND.replace(old, new), "compose")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"{", "this is no plan"),
        (b'{"seed":1,"duration_s":9,"faults":[{"at_s":1,"kind":"burn","target":"leader"}]}', "there is no 'burn'"),
        (b'{"seed":1,"duration_s":9,"faults":[{"at_s":1,"kind":"reset","target":"all"}]}', "no target 'all'"),
        (b'{"seed":1,"duration_s":9,"faults":[{"at_s":1,"kind":"slow","target":"leader"}]}', "not possible on"),
    ],
)
def test_wrong_plans_get_one_sentence(content: bytes, part: str) -> None:
    with pytest.raises(BadPlan, match=part):
        parse_plan(content, "compose")
