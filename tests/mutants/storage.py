"""Changes of role, data on the disk, what a consumer may see, and what a start trusts."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, Schedule

ROLES = (
    Mutant(
        name="B35a",
        title="a new follower aligns first and stops acting as leader afterwards",
        origin="KAFKA-1154",
        rule="a new follower stops acting as leader, then answers waiting producers, then aligns (section 7)",
        breaks=("I33", "I36"),
        edits=(
            Edit(
                "broker.replication.replica",
                '    leave_leadership(state, "leadership moved", effects)\n    state.role = Role.FOLLOWER\n',
                "    state.role = Role.FOLLOWER\n",
            ),
            Edit(
                "broker.replication.replica",
                "        begin_following(state, effects)\n",
                '        begin_following(state, effects)\n    leave_leadership(state, "leadership moved", effects)\n',
            ),
        ),
        schedule=Schedule("strict:leader_dies_among_living_members"),
    ),
    Mutant(
        name="B35c",
        title="a repeated order of the controller is ignored though the first one failed",
        origin="KAFKA-9769",
        rule="after fencing, a stop or a failed log the same LeaderAndIsr counts again (section 7)",
        breaks=("I36", "I38"),
        edits=(
            Edit(
                "broker.replication.replica",
                "    return event.partition_epoch < state.partition_epoch and not (state.fenced and state.is_leader)\n",
                "    return event.partition_epoch <= state.partition_epoch\n",
            ),
        ),
        schedule=Schedule("deposed:session_of_a_leader_is_replaced_unnoticed"),
    ),
)

MARKS = (
    Mutant(
        name="B36a",
        title="high watermarks are checkpointed before the partitions know theirs",
        origin="KAFKA-769",
        rule="a replica starts with the high watermark of the checkpoint, so that the next checkpoint still has it",
        breaks=("I11", "I23"),
        edits=(Edit("broker.replicas.replica_manager", "high_watermarks.get(topic_partition, 0)\n", "0\n"),),
        schedule=Schedule("storage:high_watermarks_over_a_restart"),
    ),
    Mutant(
        name="B36b",
        title="a checkpoint of some high watermarks drops the others",
        origin="KAFKA-851, KAFKA-858, KAFKA-1647",
        rule="a log that is not in the update keeps its high watermark in the checkpoint",
        breaks=("I11", "I23"),
        edits=(
            Edit(
                "broker.log.side_files.offset_checkpoints",
                "        merged = {**self.high_watermarks, **high_watermarks}\n",
                "        merged = dict(high_watermarks)\n",
            ),
        ),
        schedule=Schedule("storage:high_watermarks_over_a_deletion_and_a_restart"),
    ),
)

READERS = (
    Mutant(
        name="B37a",
        title="the log's end moves before the bytes are written",
        origin="KAFKA-698",
        rule="bytes first, then the log's end (section 1)",
        breaks=("I10", "I12"),
        edits=(
            Edit(
                "broker.log.partition_log",
                "            segment.append(batches, parts)\n",
                "            self.log_end_offset = end\n            segment.append(batches, parts)\n",
            ),
        ),
        schedule=Schedule("storage:disk_is_full_for_a_moment"),
    ),
    Mutant(
        name="B37b",
        title="consumers read to the log's end",
        origin="KAFKA-727, KAFKA-9835",
        rule="consumers read to the high watermark, which is read once per request (section 5)",
        breaks=("I22",),
        edits=(
            Edit(
                "broker.replication.leader",
                "    return FetchGranted(fetch_offset, state.high_watermark, state.high_watermark, "
                "state.log_start_offset)\n",
                "    return FetchGranted(fetch_offset, state.log_end_offset, state.high_watermark, "
                "state.log_start_offset)\n",
            ),
        ),
        schedule=Schedule("in_sync_replicas:last_replica_standing"),
    ),
)

STARTS = (
    Mutant(
        name="B38a",
        title="the clean marker can come back after it was removed",
        origin="KAFKA-10471",
        rule="the marker is removed, durably, before anything is loaded (section 11)",
        breaks=("I12", "I15", "I20"),
        edits=(
            Edit(
                "broker.log.side_files.directory_files",
                "    disk.remove(file)\n    disk.sync_directory(path)\n",
                "    disk.remove(file)\n",
            ),
        ),
        schedule=Schedule("storage:power_loss_soon_after_a_clean_start"),
    ),
    Mutant(
        name="B38b",
        title="an aborted start leaves a clean marker",
        origin="KAFKA-15375",
        rule="a directory whose loading did not finish is left without a marker (section 11)",
        breaks=("I12", "I15", "I20"),
        edits=(
            Edit(
                "broker.log.log_directory",
                "        except BaseException as error:\n            lock.release()\n",
                "        except BaseException as error:\n            directory_files.write_clean_marker(disk, path, None)\n"
                "            lock.release()\n",
            ),
        ),
        schedule=Schedule("storage:start_aborted_while_it_recovers"),
    ),
    Mutant(
        name="B38c",
        title="the recovery point rises without an fsync of the records",
        origin="KAFKA-10101",
        rule="data is synced before the recovery point rises (section 1)",
        breaks=("I21", "I3"),
        edits=(
            Edit(
                "broker.log.flushing",
                "unsynced.sync(disk, paths)",
                "unsynced.sync(disk)",
            ),
        ),
        schedule=Schedule("elections:registration_of_a_dead_broker_remains"),
    ),
    Mutant(
        name="B38d",
        title="the file of leader epochs is replaced and never synced",
        origin="KAFKA-16541",
        rule="the epochs of synced records are synced, too, before the recovery point rises (sections 1 and 8)",
        breaks=("I13", "I20"),
        edits=(
            Edit(
                "broker.log.open_log",
                "        self._note_epoch_file()\n        self.unsynced.add(path)\n",
                "        self._note_epoch_file()\n",
            ),
            # and recovery does not complete the file: either rule would make up for the other
            Edit(
                "broker.log.recovery", "        self._complete_epochs(first, end)\n        epochs =", "        epochs ="
            ),
        ),
        schedule=Schedule("storage:epochs_of_closed_segments"),
    ),
    Mutant(
        name="B38e",
        title="after an IO error the directory is used again",
        origin="KAFKA-10778",
        rule="after an IO error nothing is appended until the process is restarted (section 1)",
        breaks=("I15",),
        edits=(Edit("broker.log.directory_health", "        if isinstance(error, DiskFull):\n", "        if True:\n"),),
        schedule=Schedule("storage:appends_after_an_io_error"),
    ),
)

EPOCHS = (
    Mutant(
        name="B39a",
        title="recovery skips epoch 0",
        origin="KAFKA-10432",
        rule="recovery rebuilds the epochs from batches with epoch >= 0, zero included (section 8)",
        breaks=("I13", "I7"),
        edits=(
            Edit(
                "broker.log.side_files.epoch_file",
                "        return self.entries[-1][0] if self.entries else NO_EPOCH\n",
                "        return self.entries[-1][0] if self.entries else 0\n",
            ),
        ),
        schedule=Schedule("storage:epochs_of_closed_segments"),
    ),
    Mutant(
        name="B39b",
        title="the undefined epoch is answered with the log's end",
        origin="KAFKA-6857",
        rule="the undefined epoch is never answered with the log end (section 8)",
        breaks=("I7", "I16"),
        edits=(
            Edit(
                "broker.replication.epoch_history",
                "        if epoch is None or not self.entries:\n            return None\n",
                "        if epoch is None:\n            return (self.latest_epoch or 0), log_end_offset\n"
                "        if not self.entries:\n            return None\n",
            ),
        ),
        schedule=Schedule("storage:undefined_epoch_is_asked"),
    ),
)

MUTANTS: tuple[Mutant, ...] = (*ROLES, *MARKS, *READERS, *STARTS, *EPOCHS)

CANNOT_APPLY: tuple[CannotApply, ...] = (
    CannotApply(
        name="B35b",
        title="the fetch position is taken before the old fetcher has stopped",
        origin="KAFKA-13266",
        reason=(
            "no fetcher keeps a position between two requests: `ReplicaFetcher._take_positions` reads the replica's own "
            "log end in the call that writes the request, every cut is followed by another FetchNext, and the core "
            "drops an answer that was asked at another offset, epoch or phase (with positions kept from `fetch_next` on, "
            "40 random seeds found nothing)"
        ),
    ),
    CannotApply(
        name="B39c",
        title="an epoch request reads epochs and log end of two leaderships",
        origin="KAFKA-5036",
        reason=(
            "there is nothing to lock: `answer_epoch_end` is one synchronous call on one state, on the event loop that "
            "alone changes it; without an await no other leadership can come in between"
        ),
    ),
)
