"""Mutants in the form that the small model can show, where that differs from the catalogue's."""

from tests.mutants.mutant import Edit, Mutant

VARIANTS = (
    Mutant(
        name="B03-offset",
        title="the leader names an offset for the epoch it was asked about, whether it knows that epoch or not",
        origin="KAFKA-6361, KIP-279: the reply before it, which held an offset only",
        rule="the leader names its largest epoch not above the asked one, and that epoch's end",
        breaks=("I16", "I7"),
        edits=(
            Edit(
                "broker.replication.epoch_history",
                "                return (epoch if floor is None else floor), start_offset\n",
                "                return epoch, start_offset\n",
            ),
        ),
    ),
    Mutant(
        name="B06-unchecked",
        title="an epoch is entered in the history at the first append only, and the replica does not notice",
        origin="KAFKA-7415",
        rule="a leader enters (epoch, log end) before it serves anything, also if it never appends",
        breaks=("I7", "I16"),
        edits=(
            Edit(
                "broker.replication.replica",
                "    if state.epoch_history.assign(event.leader_epoch, state.log_end_offset):\n"
                "        effects += (ev.WriteEpochHistory(), ev.SyncEpochHistorySoon())\n",
                "",
            ),
            Edit(
                "broker.replication.leader",
                "    state.log_end_offset = event.end_offset\n",
                "    assert state.leader_epoch is not None\n"
                "    state.epoch_history.assign(state.leader_epoch, event.base_offset)\n"
                "    state.log_end_offset = event.end_offset\n",
            ),
            Edit(
                "broker.replication.invariants",
                "    assert state.epoch_history.latest_epoch == state.leader_epoch, "
                '"I13: a leader\'s epoch is in its history"\n',
                "",
            ),
        ),
    ),
    Mutant(
        name="B21-forgotten",
        title="a leader forgets a proposal that was not answered, though it may be applied",
        origin="KAFKA-8836, KIP-497; planted for the bounds that begin behind a lost answer",
        rule="a proposal stays pending until it is answered, or a LeaderAndIsr settles it (section 6)",
        breaks=("I4", "I3"),
        edits=(
            Edit(
                "broker.replication.isr",
                "    if pending is not None and pending.proposal_id == event.proposal_id and state.is_leader:\n"
                "        _send(",
                "    state.pending_isr, pending = None, None\n"
                "    if pending is not None and pending.proposal_id == event.proposal_id and state.is_leader:\n"
                "        _send(",
            ),
        ),
    ),
    Mutant(
        name="B21-unapplied",
        title="each refusal of a proposal counts as proof that it was not applied",
        origin="KAFKA-8836, KIP-497; planted, and missed by `proposals`, `power` and `copying`",
        rule="only INELIGIBLE_REPLICA and OPERATION_NOT_ATTEMPTED prove that a proposal was not applied (section 6)",
        breaks=("I3", "I4"),
        edits=(
            Edit(
                "broker.replication.isr",
                "    elif event.error_code in NOT_APPLIED:\n",
                "    elif event.error_code in NOT_APPLIED | OUTCOME_UNKNOWN:\n",
            ),
        ),
    ),
    Mutant(
        name="B24-resent",
        title="a proposal that is sent again names the registrations of now",
        origin="this project's own: the small model found it",
        rule="a proposal names the registrations under which its members were judged (KIP-903)",
        breaks=("I6", "I3"),
        edits=(
            Edit(
                "broker.replication.isr",
                "            new_isr_with_epochs=state.pending_isr.members,\n",
                "            new_isr_with_epochs=tuple(\n"
                "                (b, state.remotes[b].broker_epoch if b in state.remotes else None)\n"
                "                for b in state.pending_isr.in_sync_replicas\n"
                "            ),\n",
            ),
        ),
    ),
)
"""In B06 the replica's own assertion ends the process at the first election. This variant also removes the assertion,
so that the trace shows the purpose of the rule."""
