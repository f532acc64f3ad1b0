"""Rules on how long a fact about a log or a disk holds: for that log alone, and until its basis changes."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, Schedule, UnitTest

OLDER_ZOOKEEPER = (
    "tests/simulation/test_older_zookeeper.py::test_no_broker_starts_on_an_older_copy_and_all_start_on_the_youngest"
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="D44",
        title="the high watermark of an earlier topic with the same name counts",
        origin="derived: the disk of one broker as it was before the topic was made again",
        rule="a high watermark counts for logs of its own topic id (hardening rule 16)",
        breaks=("I36",),
        edits=(Edit("controller.core.restarted_members", "        and log.topic_id == topic_id\n", ""),),
        schedule=Schedule("stale_facts:disk_of_before_a_topic_was_made_again"),
    ),
    Mutant(
        name="D44b",
        title="a log of an earlier topic with the same name may lead",
        origin="derived: as D44",
        rule="a log of another topic does not count: its replica has no records (hardening rule 16)",
        breaks=("I28",),
        edits=(
            Edit(
                "controller.core.restarted_members",
                '    return log.topic_id not in ("", state.topics[partition.topic].topic_id)\n',
                "    return False\n",
            ),
        ),
        schedule=Schedule("stale_facts:disk_of_before_a_topic_was_made_again"),
    ),
    Mutant(
        name="D45",
        title="a broker's report on a log still counts after its replica went offline",
        origin="derived: a byte rots after the report",
        rule="a replica that goes offline, or comes back, has to report its log again (hardening rule 16)",
        breaks=("I36",),
        edits=(Edit("controller.core.broker_requests", "    state.forget_logs_of(broker_id, affected)\n", ""),),
        schedule=Schedule("stale_facts:log_is_damaged_after_it_was_asked_for"),
    ),
    Mutant(
        name="D46",
        title="the high watermark of a deleted topic is used for the next topic with its name",
        origin="external review: no replica could join the ISR of the new topic",
        rule="recovery points and high watermarks count for the topic id that they name (section 11)",
        breaks=("I5",),
        edits=(
            Edit(
                "broker.log.side_files.offset_checkpoints",
                "        return known is not None and log.topic_id not in (None, known)\n",
                "        return False\n",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/log/test_topics_made_again.py::"
            "test_a_kill_before_the_next_checkpoint_leaves_the_next_topic_no_high_watermark"
        ),
    ),
    Mutant(
        name="D46b",
        title="a follower's position in a deleted topic counts for the next topic with its name",
        origin="found by a reviewer's reading: acknowledged records were lost by one failure",
        rule="a fetch names the id of its topic; with another one it reports nothing (KIP-516)",
        breaks=("I5",),
        edits=(
            Edit(
                "broker.requests.fetch_sessions",
                "        if not partition.is_of_topic(topic_id):\n",
                "        if False:\n",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/test_read_requests.py"
            "::test_a_followers_position_in_another_topic_of_the_same_name_does_not_count",
        ),
    ),
    Mutant(
        name="D46c",
        title="a late proposal for a deleted topic changes the ISR of the next topic with its name",
        origin="found by a reviewer's reading: epochs and versions of both may be the same",
        rule="a proposal names the id of its topic; with another one it changes nothing (KIP-516)",
        breaks=("I8",),
        edits=(
            Edit(
                "controller.core.alter_partition",
                '    if topic_id not in ("", state.topics[partition.topic].topic_id):',
                "    if False:",
            ),
        ),
        schedule=UnitTest(
            "tests/controller/test_alter_partition.py"
            "::test_a_proposal_for_a_deleted_topic_does_not_change_the_next_one",
        ),
    ),
    Mutant(
        name="D47",
        title="logs count as undisturbed though their disk has failed",
        origin="derived from D32a: a disk fails, loses the last records, and a bit of the last remaining epoch flips",
        rule="a directory that fails breaks the chains of starts (hardening rule 16)",
        breaks=("I3", "I21"),
        edits=(
            Edit(
                "broker.log.log_directory", "        health.on_offline.append(lambda _: self.wholeness.forget())\n", ""
            ),
        ),
        schedule=Schedule("stale_facts:disk_fails_before_all_are_killed"),
    ),
    Mutant(
        name="D61a",
        title="a broker that starts believes ZooKeeper's data, however old",
        origin="safety review: an older copy was put in while all brokers were stopped, and 50 records were lost",
        rule="a start on data that lacks a change that the broker has noted is refused (decision 0032)",
        breaks=("I3", "I21"),
        edits=(Edit("broker.membership.noted_changes", "        if count < known_before:\n", "        if False:\n"),),
        schedule=UnitTest(OLDER_ZOOKEEPER),
    ),
    Mutant(
        name="D61b",
        title="a change is noted on the disk before it is noted in ZooKeeper",
        origin="planted with D61a: a kill in between, and the broker refuses to start for ever",
        rule="ZooKeeper's count is never the lower one (decision 0032)",
        breaks=("I3",),
        edits=(
            Edit(
                "broker.membership.noted_changes",
                "        content = NotedChangesNode(changes=count).encode()\n",
                "        content = NotedChangesNode(changes=count).encode()\n"
                "        await self._disk.in_background(\n"
                "            lambda: self._disk.replace_file(self._file, format_noted_changes(count))\n"
                "        )\n",
            ),
        ),
        schedule=UnitTest("tests/broker/test_noted_changes.py::test_zookeeper_counts_before_the_disk"),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = ()
