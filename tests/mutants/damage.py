"""Bytes that rot on a disk: what is served, which replica leads, and how a damaged replica is repaired."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, Schedule, UnitTest

SEGMENT = "broker.log.segments.segment"
DAMAGE = "broker.replication.damage"
NO_EPOCH_CHECK = Edit(SEGMENT, "    if header.partition_leader_epoch != epoch:\n", "    if False:\n")

READS = (
    Mutant(
        name="D03a",
        title="a read does not check its first batch",
        origin="fault injection: a bit of a base offset, which lies outside of the CRC",
        rule="the first batch of a read holds the requested offset, and each batch follows the one before (section 12)",
        breaks=("I22",),
        edits=(
            Edit(
                SEGMENT,
                "            if offset is not None and found[1].base_offset != offset:\n",
                "            if False:\n",
            ),
        ),
        schedule=Schedule("damage:leader_reads_a_flipped_offset"),
    ),
    Mutant(
        name="D03b",
        title="a read does not check the epochs of the batches",
        origin="fault injection: a bit of a leader epoch, which lies outside of the CRC",
        rule="a batch that is read has the epoch that the epoch history gives for its offset (section 12)",
        breaks=("I16",),
        edits=(NO_EPOCH_CHECK,),
        schedule=Schedule("damage:follower_copies_a_flipped_epoch"),
    ),
)

REPAIR = (
    Mutant(
        name="D03j",
        title="a leader with a damaged log never hands over",
        origin="fault injection: CORRUPT_MESSAGE for ever, with two sound replicas in sync",
        rule="a damaged leader goes offline alone where another in-sync replica can take over (section 12)",
        breaks=("I23",),
        edits=(
            Edit(
                DAMAGE,
                "    if state.role is Role.OFFLINE or (state.is_leader and not _can_hand_over(state)):\n",
                "    if state.role is Role.OFFLINE or state.is_leader:\n",
            ),
        ),
        schedule=Schedule("damage:leader_reads_a_flipped_payload"),
    ),
    Mutant(
        name="D03d",
        title="a damaged replica resets its log while it is in the ISR",
        origin="derived: a new controller does not know of the damage",
        rule="a damaged log is dropped only on an order whose ISR is without the replica (section 12)",
        breaks=("I40",),
        edits=(
            Edit(
                DAMAGE,
                "    if leader_id in (None, me) or me in in_sync_replicas:\n",
                "    if leader_id in (None, me):\n",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/replication/test_damage.py"
            "::test_a_damaged_replica_starts_empty_only_when_no_replica_can_count_on_it",
        ),
    ),
    Mutant(
        name="D03e",
        title="a damaged replica never resets its log",
        origin="issue: damage that was found stayed until an operator came",
        rule="a damaged replica outside of the ISR fetches its log again (section 12)",
        breaks=("I36",),
        edits=(
            Edit(
                DAMAGE,
                "    return state.leader_epoch is None or leader_epoch > state.leader_epoch\n",
                "    return False\n",
            ),
        ),
        schedule=Schedule("damage:leader_reads_a_flipped_payload"),
    ),
    Mutant(
        name="D03f",
        title="a replica that goes offline outside of the ISR starts no epoch",
        origin="derived: no election concerns it, so no order would let it reset its log",
        rule="a replica that goes offline begins a new epoch, in the ISR or not (section 12)",
        breaks=("I36",),
        edits=(
            Edit(
                "controller.core.broker_requests",
                "    if before is None or before.leader not in state.brokers or broker_id in before.in_sync_replicas:\n",
                "    if True:\n",
            ),
        ),
        schedule=Schedule("damage:damage_outside_of_the_isr"),
    ),
    Mutant(
        name="D03g",
        title="a damaged log that was set aside is never used",
        origin="Protocol-Aware Recovery (FAST'18): copies that rot at different places hold all records together",
        rule="where the leader's log is damaged, a replica that reset its log takes records from its old log (section 12)",
        breaks=("I36",),
        edits=(
            Edit(
                "broker.disk_faults.repairs",
                "        if found is not None:\n",
                "        if (found := None) is not None:\n",
            ),
        ),
        schedule=Schedule("damage:two_copies_rot_at_different_places"),
    ),
    Mutant(
        name="D03h",
        title="the scrubber does not check batches",
        origin="latent sector errors: the last good copy rots before the damage of the first is found",
        rule="the scrubber reads every batch with every check; every failed check is damage (section 12)",
        breaks=("audit:bad-checksum",),
        edits=(
            Edit(
                "broker.disk_faults.scrubber",
                "                partition.log.check_at(scrub.offset)\n",
                "                pass\n",
            ),
        ),
        schedule=Schedule("damage:rot_in_records_that_are_never_read"),
    ),
    Mutant(
        name="D03i",
        title="a restart forgets that a log is damaged",
        origin="derived: closed segments are not scanned at a start",
        rule="a note in its directory keeps a damaged log out of use over a restart (section 12)",
        breaks=("audit:bad-checksum",),
        edits=(
            Edit(
                "broker.log.ownership",
                "        noted = read_damage_note(disk, directory)\n",
                "        noted = None\n",
            ),
        ),
        schedule=Schedule("damage:restart_with_a_damaged_log"),
    ),
)

OTHERS = (
    Mutant(
        name="D10",
        title="a log that matches its leader's nowhere is aligned for ever",
        origin="fault injection: a flipped epoch bit made alignment spin at round-trip speed",
        rule="an alignment that changes nothing backs off, and the second one drops the log (section 4)",
        breaks=("I38",),
        edits=(
            Edit(
                "broker.replication.follower",
                "        _align_again(state, effects)  # in the leader's range, and yet refused: the leader does not know the epoch\n",
                "        _align(state, effects)\n",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/replication/test_diverging_replies.py::"
            "test_a_log_with_an_epoch_that_no_leader_had_is_reported_as_damaged"
        ),
    ),
    Mutant(
        name="D16b",
        title="an entry that cannot be used stops the broker",
        origin="fault injection: a directory named as a segment",
        rule="a bad entry in a partition's directory stops that partition alone (section 1)",
        breaks=("crash", "I36"),
        edits=(
            Edit(
                "broker.log.ownership",
                "    except (BadEntry, FileMissing) as error:  # stops this partition, not the broker\n",
                "    except FileMissing as error:\n",
            ),
        ),
        schedule=Schedule("damage:directory_where_a_segment_belongs"),
    ),
)

MUTANTS: tuple[Mutant, ...] = (*READS, *REPAIR, *OTHERS)
CANNOT_APPLY: tuple[CannotApply, ...] = ()
