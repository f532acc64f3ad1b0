"""The replication core: every replication rule of one partition, as a pure state machine.

    step(state, event) -> effects

`state` is what one broker knows of one replica (`state.ReplicaState`). `step` takes one event, changes the state in
place and returns the effects. It does no I/O, awaits nothing, and reads no clock: an event carries the time, and the
leader epoch under which its question was asked. The shell (`broker/replicas/partition.py`) performs the effects in
order before the next event. What an effect on the log means is written once, in `broker/replicas/log_effects.py`, for
this shell and for those of the model and the tests. An effect that takes time starts there and comes back as an event:
SyncLog as Synced, ProposeIsr as AlterPartitionAnswered or AlterPartitionLost, AskEpochEnd as EpochEndAnswered. After
each step `invariants` checks the state, and a violation ends the process: replication repairs a crash, but not a silent
divergence.

Roles. A replica is LEADER, FOLLOWER, NONE (stopped, or no leader is known) or OFFLINE (its log directory failed, or its
log is damaged). LeaderAndIsr from the controller sets the role, StopReplica sets NONE. `fenced` comes on top: past its
ZooKeeper deadline a broker serves nothing as leader, because another leader may exist.

Leader epochs. Each election begins a new leader epoch, and each batch carries the epoch in which its leader appended
it. `epoch_history` holds the first offset of each epoch; a leader enters its own epoch there before it serves. If two
logs hold the same offset with the same epoch, they are identical up to there (I16). A new follower therefore first
aligns its log: it asks the leader where the epoch of its own last record ended, and truncates there, if need be in
several rounds (phase AskingEpochEnd). Then it fetches (Fetching). A follower outside of the leader's range asks for the
ends of the leader's log (AskingLeaderEnds). One that the leader fences under its current epoch waits for the controller
(Halted). An answer to a question of an older epoch changes nothing.

High watermark. The fetch offset of a follower tells its leader what the follower holds. The high watermark is the
smallest end among the leader's own copy, the ISR, and the caught-up replicas that may join the ISR. Only ends reported
in this leader epoch count, so it waits for the first fetch of each member. The leader's own copy counts up to its log
end; with flushing on, or while the ISR shrinks below min.insync.replicas, only up to its synced end (`counted_end`).
The high watermark never falls within a leader epoch, and does not rise while the ISR is smaller than
min.insync.replicas. Produce requests with acks=all wait for it, consumers read below it, and followers learn it from
the next fetch response.

ISR proposals. A leader asks the controller to remove a follower that lags for longer than the limit, and to add one
that holds everything up to the high watermark and up to the start of this leader epoch. One proposal is in flight at a
time. Until it is settled the controller may or may not have applied it, so the committed and the proposed members all
count (`maximal_in_sync_replicas`). An answer or a newer LeaderAndIsr settles it. After a lost answer the same proposal
is sent again.

A write of one record with acks=all, with leader 1 and follower 2 in the ISR:

    1  ProduceReceived    -> AppendBatches; the shell writes the batch and reports BatchesAppended
    1  BatchesAppended    -> the log end is 1; the request waits for the high watermark
    1  FollowerFetched 0  -> 2 may read the record; its end is still 0
    2  FetchAnswered      -> AppendFetched; the shell writes the batch and reports FetchedAppended
    2  FetchedAppended    -> the log end is 1; FetchNext
    1  FollowerFetched 1  -> 2 holds the record: HighWatermarkRose 1, AnswerProduce
    2  FetchAnswered      -> the high watermark is 1 here, too

Log starts. Only the leader raises the log start, for retention or DeleteRecords, and at most to the high watermark;
followers adopt it. Each replica records its start durably. The low watermark is the smallest start that all members of
the ISR have recorded, and segments are deleted only in front of it. So no member can become leader with a log start in
front of what another member has already deleted.

Damage. A replica with wrong stored bytes goes OFFLINE, and the controller removes it from the ISR. A damaged leader
stays until another in-sync replica can take over. The replica starts empty again only when nothing can rest on the
damaged log any more.

Modules: `state` and `events` hold the data, `replica` the table of events and the role changes. `leader`
answers produce and fetch requests, `high_watermark` and `isr` follow from them, `follower` aligns and copies,
`epoch_history` and `log_starts` hold the two ends' rules, `damage` and `leaving` end a role, `producer_state`
recognises repeated batches. docs/REPLICATION.md has all rules with their sources, and the numbered invariants.
"""
