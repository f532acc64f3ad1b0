"""Transient and permanent disk errors, and how they are reported (hardening rule 13)."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, Schedule

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="D05",
        title="a sync that fails for lack of room is treated as transient",
        origin="fsync failures, ATC 2020",
        rule="any failed sync takes the directory offline until the broker starts again (hardening rule 13)",
        breaks=("I21", "I19"),
        edits=(
            Edit(
                "broker.log.directory_health",
                "        if isinstance(error, DiskFull):\n",
                '        if isinstance(error, DiskFull) or "no space" in str(error):\n',
            ),
        ),
        schedule=Schedule("disk_errors:sync_finds_no_room"),
    ),
    Mutant(
        name="D08a",
        title="a lack of file descriptors counts as a failed disk",
        origin="hardening rule 13",
        rule="EMFILE is transient: the failed operation is tried again (hardening rule 13)",
        breaks=("I36", "I37"),
        edits=(
            Edit(
                "broker.log.directory_health",
                "            self.on_no_descriptor(str(error))\n            return\n",
                "            self.on_no_descriptor(str(error))\n",
            ),
        ),
        schedule=Schedule("disk_errors:no_descriptors_for_a_moment"),
    ),
    Mutant(
        name="D08b",
        title="a connection that gets no file descriptor ends the process",
        origin="hardening rule 13",
        rule="a socket that cannot be opened is a transient network error like any other",
        breaks=("crash",),
        edits=(
            Edit(
                "runtime.ports",
                "class OutOfDescriptors(DiskError, NetworkError):\n",
                "class OutOfDescriptors(DiskError):\n",
            ),
        ),
        schedule=Schedule("disk_errors:no_descriptors_for_a_moment"),
    ),
    Mutant(
        name="D08c",
        title="a replica that could not be created for lack of a descriptor is never reported again",
        origin="hardening rule 13",
        rule="a replica that had to wait for a file descriptor is reported to the controller once there is one",
        breaks=("I36",),
        edits=(
            Edit(
                "broker.disk_faults.disk_errors",
                "        self._waiting_for_descriptor[topic_partition] = partition\n        if partition is not None:\n",
                "        if partition is not None:\n            self._waiting_for_descriptor[topic_partition] = partition\n",
            ),
        ),
        schedule=Schedule("disk_errors:topic_is_made_without_descriptors"),
    ),
    Mutant(
        name="D09",
        title="a truncation that fails half way leaves the log end where it was",
        origin="hardening rule 13",
        rule="after each step of a truncation the offsets in memory match the files (hardening rule 13)",
        breaks=("I12", "I16"),
        edits=(
            Edit(
                "broker.log.cutting",
                "    log.set_end(segment.base_offset)\n    discard_indexes(log, segment)\n",
                "    discard_indexes(log, segment)\n",
            ),
        ),
        schedule=Schedule("disk_errors:cut_finds_no_room"),
    ),
    Mutant(
        name="D12a",
        title="an error in a periodic task of the directory is not reported",
        origin="seeds 911468, 914494",
        rule="after an error in any task all replicas of the directory go offline (hardening rule 13)",
        breaks=("I36",),
        edits=(
            Edit(
                "broker.disk_faults.disk_errors",
                "        health.on_offline.append(lambda _: self._check_soon())\n",
                "        pass\n",
            ),
        ),
        schedule=Schedule("disk_errors:idle_leader_on_a_failed_disk"),
    ),
    Mutant(
        name="D16a",
        title="a replica on a full disk is not deleted",
        origin="hardening rule 13",
        rule="deletion and retention work on a full disk (hardening rule 13)",
        breaks=("I36",),
        edits=(
            Edit(
                "broker.replicas.replica_orders",
                "        if self._directory.offline and order.delete_partition:\n",
                "        if partition.state.role is Role.OFFLINE and order.delete_partition:\n",
            ),
        ),
        schedule=Schedule("disk_errors:topic_is_deleted_on_a_full_disk"),
    ),
    Mutant(
        name="D16d",
        title="a follower on a full disk waits for room",
        origin="hardening rule 13",
        rule="a replica that is offline for lack of room deletes up to its leader's low watermark (hardening rule 13)",
        breaks=("I36",),
        edits=(
            Edit(
                "broker.disk_faults.full_disk",
                "        return info.leader if info.leader != me else None\n",
                "        return None\n",
            ),
        ),
        schedule=Schedule("disk_errors:follower_on_a_full_disk"),
    ),
    Mutant(
        name="D16e",
        title="the only replica on a full disk waits for room",
        origin="hardening rule 13",
        rule="a replica that is alone in the ISR of a partition without a leader applies retention (hardening rule 13)",
        breaks=("I36",),
        edits=(
            Edit(
                "broker.disk_faults.full_disk",
                "            return me if info.isr == (me,) else None\n",
                "            return None\n",
            ),
        ),
        schedule=Schedule("disk_errors:only_replica_on_a_full_disk"),
    ),
    Mutant(
        name="D16f",
        title="a follower on a full disk applies retention by itself",
        origin="hardening rule 13",
        rule="the leader decides where a log starts, even on a full disk (hardening rule 13)",
        breaks=("I39", "I28"),
        edits=(
            Edit(
                "broker.disk_faults.full_disk",
                "        return info.leader if info.leader != me else None\n",
                "        return me\n",
            ),
        ),
        schedule=Schedule("disk_errors:leader_keeps_more_than_retention"),
    ),
    Mutant(
        name="D16c",
        title="a broker does not report that its log directory is offline",
        origin="hardening rule 13",
        rule="a request for the health of a cluster shows each directory that is not online (hardening rule 13)",
        breaks=("I42",),
        edits=(
            Edit(
                "broker.requests.replica_description",
                '        log_directory="offline" if health.offline else "full" if health.full else "online",\n',
                '        log_directory="online",\n',
            ),
        ),
        schedule=Schedule("disk_errors:broker_on_a_failed_disk_is_asked"),
    ),
    Mutant(
        name="D28",
        title="an entry that cannot be renamed takes the log directory offline",
        origin="external review: a partition's directory behind a link was deleted, and all replicas went offline",
        rule="an entry that cannot be used, renamed or removed concerns its partition alone (section 12)",
        breaks=("I36",),
        edits=(
            Edit(
                "broker.log.directory_health",
                "        if isinstance(error, StorageOffline | BadEntry):\n",
                "        if isinstance(error, StorageOffline):\n",
            ),
        ),
        schedule=Schedule("disk_errors:topic_is_deleted_whose_directory_cannot_be_renamed"),
    ),
    Mutant(
        name="D28b",
        title="a directory with a number too large for any message counts as a partition",
        origin="external review: `lines-4294967296` made a broker's DescribeReplicaState unreadable for all clients",
        rule="a name that no message can carry is no partition, and is left alone (section 12)",
        breaks=("I42",),
        edits=(
            Edit(
                "protocol.files.checkpoints",
                "    if match is None or not is_topic_name(match[1]) or int(match[2]) > MAX_PARTITION:\n",
                '    if match is None or match[1] in (".", ".."):\n',
            ),
        ),
        schedule=Schedule("disk_errors:directory_with_a_number_beyond_all_messages"),
    ),
    Mutant(
        name="D29",
        title="a file beyond its size limit prevents the broker's start",
        origin="external review: a checkpoint file of 30 GiB ended the process at every start",
        rule="a small file beyond its limit is not read, and counts as unreadable (section 12)",
        breaks=("crash", "I36"),
        edits=(
            Edit(
                "broker.log.side_files.directory_files",
                "    except (CorruptCheckpoint, FileTooLarge) as error:\n"
                '        observer.notify(FileNotUsed(path=file, reason=str(error), consequence="the stop counts as unclean"))\n',
                "    except CorruptCheckpoint as error:\n"
                '        observer.notify(FileNotUsed(path=file, reason=str(error), consequence="the stop counts as unclean"))\n',
            ),
        ),
        schedule=Schedule("disk_errors:marker_of_a_clean_stop_is_huge"),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = ()
