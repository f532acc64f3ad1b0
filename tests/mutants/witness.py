"""What a leader notes in ZooKeeper about committed records."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, UnitTest

MUTANTS = (
    Mutant(
        name="W1",
        title="the end of the log is noted as committed",
        origin="decision 0023",
        rule="a committed point counts when the high watermark has reached it (decision 0023)",
        breaks=("witness",),
        edits=(
            Edit(
                "broker.replicas.witness",
                "if self.pending is not None and high_watermark >= self.pending.end_offset:",
                "if self.pending is not None:",
            ),
        ),
        schedule=UnitTest("tests/broker/test_witness.py::test_a_record_that_a_follower_lacks_is_not_noted"),
    ),
    Mutant(
        name="W2",
        title="truncated batches stay in the digest",
        origin="decision 0023",
        rule="the digest of a segment covers exactly the batches in it (decision 0023)",
        breaks=("witness",),
        edits=(Edit("broker.log.segments.segment_digest", "            self._total -= lost\n", "            pass\n"),),
        schedule=UnitTest(
            "tests/broker/log/test_digests.py::test_a_power_cut_does_not_combine_an_older_file_with_newer_segments"
        ),
    ),
    Mutant(
        name="W3",
        title="the committed point of an earlier topic with the same name is noted for the new one",
        origin="seed 17003403",
        rule="a committed point belongs to one topic id and one leader epoch (decision 0023)",
        breaks=("witness",),
        edits=(
            Edit(
                "broker.replicas.witness",
                "(known.leader_epoch, known.topic_id) != (state.leader_epoch, topic_id)",
                "known.leader_epoch != state.leader_epoch",
            ),
            Edit(
                "broker.replicas.witness",
                "        is_the_same = (state.leader_epoch, partition.log.topic_id) == (self.leader_epoch, self.topic_id)\n",
                "        is_the_same = state.leader_epoch == self.leader_epoch\n",
            ),
            Edit(
                "broker.replicas.witness",
                '            topic_id=self.topic_id or "",\n',
                '            topic_id=partition.log.topic_id or "",\n',
            ),
        ),
        schedule=UnitTest("tests/broker/test_witness.py::test_a_recreated_topic_does_not_inherit_the_old_witness"),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = ()
