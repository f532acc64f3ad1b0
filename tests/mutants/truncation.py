"""Where a follower cuts its log, and which answers of which leader epoch count."""

from tests.mutants.mutant import CannotApply, Edit, Mutant

MUTANTS = (
    Mutant(
        name="B01",
        title="a follower cuts its log to its own high watermark",
        origin="KAFKA-1211, KIP-101 scenario 1",
        rule="the log is kept until the leader has said where its epochs end",
        breaks=("I3", "I19", "I21", "I32"),
        edits=(
            Edit(
                "broker.replication.follower",
                "    if state.config.truncation_rule is TruncationRule.HIGH_WATERMARK:\n"
                '        _truncate(state, state.high_watermark, "high-watermark rule", effects)\n'
                "    _align(state, effects)\n",
                '    _truncate(state, state.high_watermark, "high-watermark rule", effects)\n'
                "    _align(state, effects)\n",
            ),
        ),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = ()
