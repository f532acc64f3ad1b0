"""Consumers: they get what they asked for, and no record is wrongly called lost."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, Schedule, UnitTest

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="D03c",
        title="a consumer accepts any batch that ends beyond its position",
        origin="external review",
        rule="the first batch holds the requested offset, the others follow without a gap, epochs never fall (section 5)",
        breaks=("I22",),
        edits=(
            Edit(
                "client.consumer.fetcher",
                "                    misfit = cursor.misfit(header, last)  # rarely called: usually offset and epoch are as expected\n",
                "                    misfit = None\n"
                "                    if header.end_offset <= cursor.fetch_offset:\n"
                "                        continue\n",
            ),
        ),
        schedule=Schedule("reading:leader_reads_from_a_wrong_place"),
    ),
    Mutant(
        name="D11c",
        title="a fetch identifies the topic by name alone",
        origin="KIP-516, external review",
        rule="a position belongs to a topic id; under another id it means nothing (section 5)",
        breaks=("I22",),
        edits=(
            Edit(
                "broker.requests.fetch",
                "        if not partition.is_of_topic(topic.topic_id):\n",
                "        if False:\n",
            ),
        ),
        schedule=Schedule("reading:topic_made_again_under_a_consumer"),
    ),
    Mutant(
        name="D11f",
        title="a question for an epoch's end identifies the topic by name alone",
        origin="KIP-516, found by seed 34000004",
        rule="a position belongs to a topic id; under another id it means nothing (section 5)",
        breaks=("I22",),
        edits=(
            Edit(
                "broker.requests.offset_requests",
                "    return partition if partition.is_of_topic(topic_id) else ErrorCode.INCONSISTENT_TOPIC_ID\n",
                "    return partition\n",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/test_read_requests.py::test_question_about_another_topic_of_the_same_name_is_refused"
        ),
    ),
    Mutant(
        name="D12b",
        title="an epoch's end is compared with a record of a later epoch",
        origin="KIP-320, found by seeds 912015 and 914490",
        rule="an epoch's end concerns the record that was the last one when the request was sent (section 10)",
        breaks=("I22",),
        edits=(
            Edit(
                "client.consumer.cursor",
                "        if question.generation != self.generation or question.epoch != self.fetch_epoch:\n",
                "        if question.generation != self.generation:\n",
            ),
        ),
        schedule=Schedule("reading:a_record_lands_between_question_and_answer"),
    ),
    Mutant(
        name="D11g",
        title="a consumer looks at the end of the answered epoch, not at which epoch that is",
        origin="KIP-279, found by a reviewer: after two unclean elections it was told of no truncation, or skipped records",
        rule="an answer about an earlier epoch says that the leader lacks all later ones (section 5)",
        breaks=("I22",),
        edits=(
            Edit(
                "client.consumer.cursor",
                "        parting = None if undefined else self._parting(end)\n",
                "        parting = None if undefined else end.end_offset\n",
            ),
        ),
        schedule=UnitTest(
            "tests/simulation/test_truncated_consumers.py"
            "::test_a_consumer_is_told_where_records_of_a_later_epoch_are_gone",
        ),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = ()
