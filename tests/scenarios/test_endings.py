"""How each scenario ends: the last rows and the audit's findings, by variant and truncation rule.

The scripts themselves expect much more on the way; these endings are recorded independently of them.
"""

import pytest

from minibroker.scenarios.catalogue import all_scenarios
from minibroker.scenarios.pages import played_variant
from minibroker.scenarios.staging.rows import shortened
from minibroker.scenarios.staging.scenario import HIGH_WATERMARK, LEADER_EPOCH, TruncationRule

Key = tuple[str, str, TruncationRule]
End = tuple[tuple[str, ...], tuple[str, ...]]

DIVERGED = ("diverged-below-high-watermark",)

ENDS: dict[Key, End] = {
    ("two-rounds", "", LEADER_EPOCH): (
        (
            "A leader epoch 0 LEO 1 HW 1: m0",
            "B follower epoch 0 LEO 1 HW 1: m0",
        ),
        (),
    ),
    ("two-rounds", "", HIGH_WATERMARK): (
        (
            "A leader epoch 0 LEO 1 HW 1: m0",
            "B follower epoch 0 LEO 1 HW 1: m0",
        ),
        (),
    ),
    ("loss", "new-epoch", LEADER_EPOCH): (
        (
            "A follower epoch 2 LEO 2 HW 2: m0 m1",
            "B leader epoch 2 LEO 2 HW 2: m0 m1",
            "C follower epoch 2 LEO 2 HW 2: m0 m1",
        ),
        (),
    ),
    ("loss", "new-epoch", HIGH_WATERMARK): (
        (
            "A follower epoch 2 LEO 1 HW 1: m0",
            "B leader epoch 2 LEO 1 HW 1: m0",
            "C follower epoch 2 LEO 1 HW 1: m0",
        ),
        ("acked-missing",),
    ),
    ("loss", "restart-as-told", LEADER_EPOCH): (
        (
            "A follower epoch 1 LEO 2 HW 2: m0 m1",
            "B leader epoch 1 LEO 2 HW 2: m0 m1",
        ),
        (),
    ),
    ("loss", "restart-as-told", HIGH_WATERMARK): (
        (
            "A follower epoch 1 LEO 1 HW 1: m0",
            "B leader epoch 1 LEO 1 HW 1: m0",
        ),
        ("acked-missing",),
    ),
    ("loss", "restart", LEADER_EPOCH): (
        (
            "A leader epoch 3 LEO 2 HW 2: m0 m1",
            "B follower epoch 3 LEO 2 HW 2: m0 m1",
        ),
        (),
    ),
    ("loss", "restart", HIGH_WATERMARK): (
        (
            "A leader epoch 3 LEO 2 HW 2: m0 m1",
            "B follower epoch 3 LEO 2 HW 2: m0 m1",
        ),
        (),
    ),
    ("divergence", "unclean", LEADER_EPOCH): (
        (
            "A follower epoch 1 LEO 2 HW 2: m0 m2",
            "B leader epoch 1 LEO 2 HW 2: m0 m2",
        ),
        (),
    ),
    ("divergence", "unclean", HIGH_WATERMARK): (
        (
            "A follower epoch 1 LEO 3 HW 3: m0 m1 m3",
            "B leader epoch 1 LEO 3 HW 3: m0 m2 m3",
        ),
        DIVERGED,
    ),
    ("divergence", "power", LEADER_EPOCH): (
        (
            "A follower epoch 2 LEO 2 HW 2: m0 m2",
            "B leader epoch 2 LEO 2 HW 2: m0 m2",
        ),
        (),
    ),
    ("divergence", "power", HIGH_WATERMARK): (
        (
            "A follower epoch 2 LEO 3 HW 3: m0 m1 m3",
            "B leader epoch 2 LEO 3 HW 3: m0 m2 m3",
        ),
        DIVERGED,
    ),
    ("epochs", "", LEADER_EPOCH): (
        (
            "A follower epoch 1 LEO 60 HW 60: m0..m49 n0..n9",
            "B leader epoch 1 LEO 60 HW 60: m0..m49 n0..n9",
        ),
        (),
    ),
    ("epochs", "", HIGH_WATERMARK): (
        (
            "A follower epoch 1 LEO 60 HW 60: m0..m59",
            "B leader epoch 1 LEO 60 HW 60: m0..m49 n0..n9",
        ),
        DIVERGED,
    ),
    ("fast-failover", "kip-279", LEADER_EPOCH): (
        (
            "A leader epoch 3 LEO 3 HW 3: m0 m1 m2",
            "B follower epoch 3 LEO 3 HW 3: m0 m1 m2",
            "C follower epoch 3 LEO 3 HW 3: m0 m1 m2",
        ),
        (),
    ),
    ("fast-failover", "kip-101", LEADER_EPOCH): (
        (
            "A leader epoch 3 LEO 3 HW 3: m0 m1 m2",
            "B follower epoch 3 LEO 3 HW 3: m0 n1 m2",
            "C follower epoch 3 LEO 3 HW 3: m0 m1 m2",
        ),
        DIVERGED,
    ),
    ("zombie-fetch", "", LEADER_EPOCH): (
        (
            "A leader epoch 2 LEO 2 HW 2: m0 m1",
            "B follower epoch 2 LEO 2 HW 2: m0 m1",
            "C dead epoch None LEO 1 HW 1: m0",
        ),
        (),
    ),
    ("empty-epoch", "", LEADER_EPOCH): (
        (
            "A follower epoch 2 LEO 2 HW 2: m0 m1",
            "B follower epoch 2 LEO 2 HW 2: m0 m1",
            "C leader epoch 2 LEO 2 HW 2: m0 m1",
        ),
        (),
    ),
    ("slow-follower", "", LEADER_EPOCH): (
        (
            "A leader epoch 0 LEO 240 HW 240: m0..m239",
            "B follower epoch 0 LEO 240 HW 240: m0..m239",
            "C follower epoch 0 LEO 240 HW 240: m0..m239",
        ),
        (),
    ),
    ("stuck-follower", "", LEADER_EPOCH): (
        (
            "A leader epoch 0 LEO 3 HW 3: m0 m1 m2",
            "B follower epoch 0 LEO 3 HW 3: m0 m1 m2",
            "C follower epoch 0 LEO 3 HW 3: m0 m1 m2",
        ),
        (),
    ),
    ("bootstrapping-follower", "", LEADER_EPOCH): (
        (
            "A leader epoch 1 LEO 42 HW 42: m0..m39 n0..n1",
            "B follower epoch 1 LEO 42 HW 42: m0..m39 n0..n1",
            "C follower epoch 1 LEO 42 HW 42: m0..m39 n0..n1",
        ),
        (),
    ),
    ("burst-lag", "messages", LEADER_EPOCH): (
        (
            "A leader epoch 0 LEO 4801 HW 4801: m0..m4800",
            "B follower epoch 0 LEO 4801 HW 4801: m0..m4800",
            "C follower epoch 0 LEO 4801 HW 4801: m0..m4800",
        ),
        (),
    ),
    ("burst-lag", "time", LEADER_EPOCH): (
        (
            "A leader epoch 0 LEO 4401 HW 4401: m0..m4400",
            "B follower epoch 0 LEO 4401 HW 4401: m0..m4400",
            "C follower epoch 0 LEO 4401 HW 4401: m0..m4400",
        ),
        (),
    ),
    ("catching-up", "", LEADER_EPOCH): (
        (
            "A leader epoch 0 LEO 3 HW 3: m0 m1 m2",
            "B follower epoch 0 LEO 3 HW 3: m0 m1 m2",
        ),
        (),
    ),
    ("min-isr", "", LEADER_EPOCH): (
        (
            "A leader epoch 0 LEO 3 HW 3: m0 m1 m3",
            "B follower epoch 0 LEO 3 HW 3: m0 m1 m3",
            "C follower epoch 0 LEO 3 HW 3: m0 m1 m3",
        ),
        (),
    ),
    ("unclean-election", "false", LEADER_EPOCH): (
        (
            "A leader epoch 2 LEO 2 HW 2: m0 m1",
            "B follower epoch 2 LEO 2 HW 2: m0 m1",
        ),
        (),
    ),
    ("unclean-election", "true", LEADER_EPOCH): (
        (
            "A follower epoch 1 LEO 2 HW 2: m0 m2",
            "B leader epoch 1 LEO 2 HW 2: m0 m2",
        ),
        ("acked-changed", "acked-twice"),
    ),
    ("stale-metadata", "traffic", LEADER_EPOCH): (
        (
            "A follower epoch 1 LEO 2 HW 2: m0 m1",
            "B leader epoch 1 LEO 2 HW 2: m0 m1",
        ),
        (),
    ),
    ("stale-metadata", "idle", LEADER_EPOCH): (
        (
            "A follower epoch 1 LEO 2 HW 2: m0 m1",
            "B leader epoch 1 LEO 2 HW 2: m0 m1",
        ),
        (),
    ),
    ("read-your-writes", "", LEADER_EPOCH): (
        (
            "A leader epoch 0 LEO 3 HW 3: m0 m1 m2",
            "B follower epoch 0 LEO 3 HW 3: m0 m1 m2",
        ),
        (),
    ),
    ("monotonic-reads", "", LEADER_EPOCH): (
        (
            "A dead epoch None LEO 2 HW None: m0 m1",
            "B leader epoch 1 LEO 2 HW 2: m0 m1",
            "C follower epoch 1 LEO 2 HW 2: m0 m1",
        ),
        (),
    ),
    ("zombie-leader", "writes", LEADER_EPOCH): (
        (
            "A follower epoch 1 LEO 3 HW 3: m0 n1 m1",
            "B leader epoch 1 LEO 3 HW 3: m0 n1 m1",
            "C follower epoch 1 LEO 3 HW 3: m0 n1 m1",
        ),
        (),
    ),
    ("zombie-leader", "fetches", LEADER_EPOCH): (
        (
            "A follower epoch 1 LEO 2 HW 2: m0 m1",
            "B leader epoch 1 LEO 2 HW 2: m0 m1",
            "C follower epoch 1 LEO 2 HW 2: m0 m1",
        ),
        (),
    ),
    ("zombie-controller", "", LEADER_EPOCH): (
        (
            "A follower epoch 2 LEO 2 HW 2: m0 m1",
            "B leader epoch 2 LEO 2 HW 2: m0 m1",
            "C follower epoch 2 LEO 2 HW 2: m0 m1",
        ),
        (),
    ),
    ("pending-isr", "expand", LEADER_EPOCH): (
        (
            "A follower epoch 1 LEO 3 HW 3: m0 m1 m2",
            "B leader epoch 1 LEO 3 HW 3: m0 m1 m2",
        ),
        (),
    ),
    ("pending-isr", "shrink", LEADER_EPOCH): (
        (
            "A leader epoch 0 LEO 2 HW 2: m0 m1",
            "B follower epoch 0 LEO 2 HW 2: m0 m1",
        ),
        (),
    ),
    ("last-replica-standing", "minimum-2", LEADER_EPOCH): (
        (
            "A leader epoch 2 LEO 2 HW 2: m0 m1",
            "B follower epoch 2 LEO 2 HW 2: m0 m1",
            "C follower epoch 2 LEO 2 HW 2: m0 m1",
        ),
        (),
    ),
    ("last-replica-standing", "minimum-1", LEADER_EPOCH): (
        (
            "A leader epoch 2 LEO 0 HW 0: ",
            "B follower epoch 2 LEO 0 HW 0: ",
            "C follower epoch 2 LEO 0 HW 0: ",
        ),
        ("acked-missing",),
    ),
    ("zookeeper-outage", "quiet", LEADER_EPOCH): (
        (
            "A leader epoch 0 LEO 2 HW 2: m0 m1",
            "B follower epoch 0 LEO 2 HW 2: m0 m1",
            "C follower epoch 0 LEO 2 HW 2: m0 m1",
        ),
        (),
    ),
    ("zookeeper-outage", "partitioned", LEADER_EPOCH): (
        (
            "A leader epoch 0 LEO 2 HW 2: m0 m1",
            "B follower epoch 0 LEO 2 HW 2: m0 m1",
            "C follower epoch 0 LEO 2 HW 2: m0 m1",
        ),
        (),
    ),
    ("retention-vs-slow-follower", "", LEADER_EPOCH): (
        (
            "A leader epoch 0 LEO 60 HW 60: m28..m59",
            "B follower epoch 0 LEO 60 HW 60: m28..m59",
        ),
        (),
    ),
}

PLAYED = [
    (each.name, variant.name, rule) for each in all_scenarios() for variant in each.variants for rule in each.rules
]


@pytest.mark.parametrize(("name", "variant", "rule"), PLAYED, ids=lambda part: getattr(part, "value", part))
def test_each_scenario_ends_as_recorded(name: str, variant: str, rule: TruncationRule) -> None:
    played = played_variant(name, variant, rule)
    rows = tuple(
        f"{row.broker} {row.role} epoch {row.leader_epoch} LEO {row.log_end_offset} HW {row.high_watermark}:"
        f" {shortened(row.records)}"
        for row in played.steps[-1].rows
    )
    assert played.problem is None
    assert (rows, played.verdict.findings) == ENDS[name, variant, rule]


def test_every_recorded_ending_is_played() -> None:
    assert set(ENDS) == set(PLAYED)
