"""Errors of the disk that pass and those that do not, and who hears of them (hardening rule 13)."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, Schedule

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="D05",
        title="a sync that fails for lack of room heals",
        origin="fsync failures, ATC 2020",
        rule="any failed sync takes the directory offline until the broker starts again (hardening 13)",
        breaks=("I21", "I19"),
        edits=(
            Edit(
                "broker.log.storage",
                "        if isinstance(error, DiskFull):\n",
                '        if isinstance(error, DiskFull) or "no space" in str(error):\n',
            ),
        ),
        schedule=Schedule("disk_errors:sync_finds_no_room"),
    ),
    Mutant(
        name="D08a",
        title="a lack of file descriptors counts as a failed disk",
        origin="hardening 13",
        rule="EMFILE passes: what met it is tried again (hardening 13)",
        breaks=("I36", "I37"),
        edits=(
            Edit(
                "broker.log.storage",
                "            self.on_no_descriptor(str(error))\n            return\n",
                "            self.on_no_descriptor(str(error))\n",
            ),
        ),
        schedule=Schedule("disk_errors:no_descriptors_for_a_moment"),
    ),
    Mutant(
        name="D08b",
        title="a connection that gets no file descriptor ends the process",
        origin="hardening 13",
        rule="that no socket can be opened is an error of the network like any other, and passes",
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
        title="a replica that could not be created for want of a descriptor is never offered again",
        origin="hardening 13",
        rule="what had to wait for a file descriptor is offered to the controller anew once there is one",
        breaks=("I36",),
        edits=(
            Edit(
                "broker.disk_health",
                "        self._resting[topic_partition] = partition\n        if partition is not None:\n",
                "        if partition is not None:\n            self._resting[topic_partition] = partition\n",
            ),
        ),
        schedule=Schedule("disk_errors:topic_is_made_without_descriptors"),
    ),
    Mutant(
        name="D09",
        title="a cut that fails half way leaves the log's end where it was",
        origin="hardening 13",
        rule="after each step of a cut the offsets in memory are those of the files (hardening 13)",
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
        title="what a periodic task of the directory meets is told to nobody",
        origin="seeds 911468, 914494",
        rule="whoever meets an error, all replicas of the directory go offline (hardening 13)",
        breaks=("I36",),
        edits=(
            Edit(
                "broker.disk_health",
                "        storage.on_offline.append(lambda _: self._check_soon())\n",
                "        pass\n",
            ),
        ),
        schedule=Schedule("disk_errors:idle_leader_on_a_failed_disk"),
    ),
    Mutant(
        name="D16a",
        title="a replica on a full disk is not deleted",
        origin="hardening 13",
        rule="deletion and retention work on a full disk (hardening 13)",
        breaks=("I36",),
        edits=(
            Edit(
                "broker.replica_orders",
                "        if manager.log_directory.offline and order.delete_partition:\n",
                "        if partition.state.role is Role.OFFLINE and order.delete_partition:\n",
            ),
        ),
        schedule=Schedule("disk_errors:topic_is_deleted_on_a_full_disk"),
    ),
    Mutant(
        name="D16d",
        title="a follower on a full disk waits for room",
        origin="hardening 13",
        rule="a replica that is offline for lack of room deletes what its leader's low watermark allows (hardening 13)",
        breaks=("I36",),
        edits=(
            Edit(
                "broker.full_disk",
                "        return info.leader if info.leader != me else None\n",
                "        return None\n",
            ),
        ),
        schedule=Schedule("disk_errors:follower_on_a_full_disk"),
    ),
    Mutant(
        name="D16e",
        title="the only replica on a full disk waits for room",
        origin="hardening 13",
        rule="a replica that is the whole in-sync set of a partition without a leader applies retention (hardening 13)",
        breaks=("I36",),
        edits=(
            Edit(
                "broker.full_disk",
                "            return me if info.isr == (me,) else None\n",
                "            return None\n",
            ),
        ),
        schedule=Schedule("disk_errors:only_replica_on_a_full_disk"),
    ),
    Mutant(
        name="D16f",
        title="a follower on a full disk applies retention by itself",
        origin="hardening 13",
        rule="the leader decides where a log starts, on a full disk, too (hardening 13)",
        breaks=("I39", "I28"),
        edits=(
            Edit(
                "broker.full_disk",
                "        return info.leader if info.leader != me else None\n",
                "        return me\n",
            ),
        ),
        schedule=Schedule("disk_errors:leader_keeps_more_than_retention"),
    ),
    Mutant(
        name="D16c",
        title="a broker tells nobody that its log directory is offline",
        origin="hardening 13",
        rule="who asks for the health of a cluster hears of each directory that is not online (hardening 13)",
        breaks=("I42",),
        edits=(
            Edit(
                "broker.replica_description",
                '        log_directory="offline" if storage.offline else "full" if storage.full else "online",\n',
                '        log_directory="online",\n',
            ),
        ),
        schedule=Schedule("disk_errors:broker_on_a_failed_disk_is_asked"),
    ),
    Mutant(
        name="D28",
        title="an entry that cannot be renamed takes the log directory offline",
        origin="found from outside: a partition's directory behind a link was deleted, and all replicas went offline",
        rule="what cannot be used, renamed or removed is the matter of its partition (12)",
        breaks=("I36",),
        edits=(
            Edit(
                "broker.log.storage",
                "        if isinstance(error, StorageOffline | BadEntry):\n",
                "        if isinstance(error, StorageOffline):\n",
            ),
        ),
        schedule=Schedule("disk_errors:topic_is_deleted_whose_directory_cannot_be_renamed"),
    ),
    Mutant(
        name="D28b",
        title="a directory whose number no message can carry is a partition",
        origin="found from outside: `lines-4294967296` made a broker's DescribeReplicaState unreadable for everybody",
        rule="a name that no message can speak of is no partition, and is left alone (12)",
        breaks=("I42",),
        edits=(
            Edit(
                "protocol.checkpoints",
                "    if match is None or not is_topic_name(match[1]) or int(match[2]) > MAX_PARTITION:\n",
                '    if match is None or match[1] in (".", ".."):\n',
            ),
        ),
        schedule=Schedule("disk_errors:directory_with_a_number_beyond_all_messages"),
    ),
    Mutant(
        name="D29",
        title="a file that is larger than it may be keeps the broker from its logs",
        origin="found from outside: 30 GiB in the place of a checkpoint ended the process, at every start",
        rule="a small file beyond its limit is not read, and counts as one that does not read (12)",
        breaks=("crash", "I36"),
        edits=(
            Edit(
                "broker.log.directory_files",
                "    except (CorruptCheckpoint, FileTooLarge) as error:\n"
                '        logger.warning("%s is damaged, the stop counts as unclean: %s", file, error)\n',
                "    except CorruptCheckpoint as error:\n"
                '        logger.warning("%s is damaged, the stop counts as unclean: %s", file, error)\n',
            ),
        ),
        schedule=Schedule("disk_errors:marker_of_a_clean_stop_is_huge"),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = ()
