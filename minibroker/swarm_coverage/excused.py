"""What no swarm has to enter, with the reason of each.

Owns: that list. An entry leaves it when a load or a fault is made for it; `is_open` marks those that wait for one, and
the report counts them.
"""

import msgspec


class Excuse(msgspec.Struct, frozen=True, kw_only=True):
    """One reason, and what it covers."""

    reason: str
    names: tuple[str, ...]
    """As a report has them; `*` stands for any text."""
    is_open: bool = False
    """A swarm could enter it, and no load or fault does."""
    is_rare: bool = False
    """A swarm enters it now and then."""


def in_file(path: str, *functions: str) -> tuple[str, ...]:
    """Names of functions of one file."""
    return tuple(f"function {path}:{name}" for name in functions)


PROCESS = Excuse(
    reason="of a real process: signals, standard streams, memory, the page of metrics",
    names=(
        *in_file(
            "broker/__main__.py", "run", "_start", "_settle_memory", "run_broker", "_main", "_end_process", "main"
        ),
        *in_file("broker/broker.py", "Broker.gauges"),
        *in_file("broker/monitoring/gauges.py", "*"),
        *in_file("broker/monitoring/http_endpoint.py", "*"),
        *in_file("broker/monitoring/prometheus_page.py", "*"),
        *in_file("broker/membership/metadata_image.py", "MetadataImage.all_partitions"),
        *in_file("broker/replicas/replica_manager.py", "ReplicaManager.states"),
        *in_file("broker/replicas/witness.py", "WitnessWriter.age_ms"),
        *in_file("broker/requests/delayed_fetches.py", "DelayedFetches.count"),
        *in_file("broker/requests/fetch.py", "FetchHandler.delayed_count"),
        *in_file("broker/requests/fetch_sessions.py", "FetchSessions.waiting_count"),
        "setting metrics.listener",
    ),
)
COMMAND_LINE = Excuse(
    reason="for the command line, the configuration file, the audit, or the pages of docs/",
    names=(
        *in_file("broker/configuration/config.py", "describe", "_shown", "_variable", "_place", "expected_value"),
        *in_file("broker/configuration/config_docs.py", "*"),
        *in_file("broker/configuration/config_values.py", "_parse_map"),
        "call ClusterUnreachable.is_refused",
        *in_file("client/topics.py", "topic_deletions", "unknown_topics", "unknown_topics.<locals>.topics_of"),
        *in_file("protocol/events/cluster_events.py", "*"),
        *in_file("protocol/files/acked_list.py", "*"),
        *in_file("protocol/files/cluster_state.py", "*"),
        *in_file("protocol/files/checkpoints.py", "encode_index_entry", "encode_time_index_entry"),
        *in_file("protocol/record_batch.py", "decode_values"),
        *in_file("protocol/witness.py", "broker_witness_path"),
    ),
)
TEXT = Excuse(
    reason="texts and comparisons for people and tests",
    names=(
        "function *.__len__",
        "function *.__repr__",
        "function *.__str__",
        "function *.__eq__",
        "function *.__iter__",
        *in_file("broker/log/segments/warm_segments.py", "WarmSegments.open_files"),
        *in_file("broker/replication/producer_state.py", "ProducerStates.copy", "ProducerStates._content"),
        *in_file("protocol/printable_text.py", "*"),
        *in_file("controller/core/events.py", "Report.text", "Report.is_warning"),
        *in_file("controller/service.py", "ControllerService.controller_epoch", "_any_value"),
    ),
)
ONE_VALUE = Excuse(
    reason="one value is allowed, or it names addresses and secrets of a real network",
    names=(
        "setting advertised.listeners",
        "setting listener.security.protocol.map",
        "setting zookeeper.digest.credentials",
        "setting auto.create.topics.enable",
        "setting log.cleanup.policy",
        "topic setting cleanup.policy",
        "changed topic setting cleanup.policy",
    ),
)
BREAKS_THE_PROMISE = Excuse(
    reason="it loses acknowledged records on purpose: `--beyond` and the scenarios have it",
    names=(
        "setting unclean.leader.election.enable",
        "setting replica.truncation.rule",
        "topic setting unclean.leader.election.enable",
        "changed topic setting unclean.leader.election.enable",
    ),
)
OTHER_TOOLS = Excuse(
    reason="another program, or an operator, wrote to ZooKeeper, or a file is of another version",
    names=(
        "event cluster_secret_replaced",
        "event node_ignored",
        "event node_missing",
        "event node_unreadable",
        "event partition_state_reread",
        "event setting_ignored",
        *in_file("controller/cluster_reader.py", "ClusterReader._ignore", "ClusterReader._leave_state_alone", "shown"),
        *in_file("controller/cluster_reader.py", "ClusterReader._check_controller_epoch"),
        *in_file("controller/cluster_reader.py", "ClusterReader.create_missing", "ClusterReader.report_removed_topic"),
        *in_file("controller/cluster_reader.py", "ClusterReader.leave_contradicted_state"),
        *in_file("controller/cluster_store.py", "ClusterStore._create_unless_there", "ClusterStore._clear"),
        *in_file(
            "controller/cluster_store.py", "ClusterStore._below", "ClusterStore._paths_in", "WriteRefused.__init__"
        ),
        *in_file("controller/core/change_text.py", "state_reread"),
        *in_file("controller/core/ignored_nodes.py", "IgnoredNodes.add", "IgnoredNodes.add_removed"),
        *in_file("controller/core/ignored_nodes.py", "IgnoredNodes._rank"),
        *in_file("broker/membership/registration.py", "BrokerIdTaken.__init__"),
        *in_file("protocol/files/checkpoints.py", "OtherVersion.__init__", "require_version"),
    ),
)

NO_LOAD = Excuse(
    is_open=True,
    reason="no load does it yet",
    names=(
        *in_file("broker/log/segments/segment.py", "Segment.drop_index"),
        *in_file("broker/replication/producer_state.py", "_other_bytes"),
        "call BrokerError.broker_id",
        *in_file("broker/requests/producer_names.py", "*_make_room", "*_forget_*", "_decoded"),
        *in_file("client/producer/identity_request.py", "IdentityRequest._is_final"),
        *in_file("client/argument_hints.py", "*"),
        *in_file("client/producer/record_input.py", "as_bytes"),
        *in_file("client/connections.py", "Connections.ever_connected"),
        *in_file("controller/core/accepted_loss.py", "_refusal"),
        *in_file("controller/send_queue.py", "compact", "SendQueue.put_back", "_as_new", "_with_*"),
        *in_file("broker/requests/offset_requests.py", "_too_late"),
        *in_file("client/caller_check.py", "CallerCheck.is_in_own_process"),
        *in_file("client/producer/outcomes.py", "warn_of_unclosed"),
        *in_file("client/public_client.py", "PublicClient.__enter__"),
        *in_file("controller/log_inquiry.py", "_named"),
    ),
)
NO_FAULT = Excuse(
    is_open=True,
    reason="no fault leads there yet",
    names=(
        "event damaged_batch_received",
        "event descriptors_exhausted",
        "event records_salvaged",
        "event repair_given_up",
        "event replica_waits_for_descriptor",
        "call LogTruncated.__init__",
        *in_file("broker/broker.py", "Broker.observe_removal"),
        *in_file(
            "broker/disk_faults/disk_errors.py",
            *("DiskErrors.wait_for_descriptor", "DiskErrors._note_no_descriptor", "DiskErrors.log_blocked"),
        ),
        *in_file("broker/disk_faults/repairs.py", "Repairs.salvage"),
        *in_file("broker/log/log_directory.py", "LogDirectory.read_set_aside", "LogDirectory.mark_offline"),
        *in_file("broker/log/log_directory.py", "LogDirectory.require_descriptor"),
        *in_file("broker/log/ownership.py", "may_be_of"),
        *in_file("broker/log/renamed_directories.py", "RenamedDirectories.read_set_aside"),
        *in_file("broker/log/segments/segment.py", "Segment.end_at"),
        *in_file("broker/log/segments/warm_segments.py", "WarmSegments.close_oldest"),
        *in_file("broker/log/segments/segment_tail.py", "_is_followed"),
        *in_file("broker/log/side_files/directory_files.py", "unusable"),
        *in_file("broker/log/side_files/set_aside.py", "read_set_aside"),
        *in_file("broker/membership/registration.py", "Registration.observe_removal"),
        *in_file("broker/replicas/replica_fetcher.py", "ReplicaFetcher._on_session_error"),
        *in_file("broker/replication/follower.py", "_align_again", "_report_if_stuck", "_is_empty_behind"),
        *in_file("client/consumer/cursor.py", "Cursor._truncated_unread"),
        *in_file("client/consumer/fetcher.py", "Fetcher._where", "Fetcher._unfit", "Fetcher._on_left_out"),
        *in_file("broker/requests/handlers.py", "RequestHandlers._read_failed"),
        "call CorruptRecords.__init__",
        "call UndecodableRecords.__init__",
        *in_file("client/errors.py", "_known"),
        *in_file("protocol/wire/codec.py", "MalformedMessage.__init__"),
        *in_file("protocol/wire/framing.py", "FrameReceiver._check_large"),
    ),
)
RARE = Excuse(
    is_rare=True,
    reason="fewer than one run in fifty leads there",
    names=(
        "event directory_id_missing",
        "event log_start_lowered",
        "event unresponsive_broker_replaced",
        *in_file("protocol/events/controller_events.py", "UnresponsiveBrokerReplaced.text"),
        *in_file("broker/membership/registration.py", "Registration._taken_message"),
        *in_file("broker/log/log_directory.py", "LogDirectory.offline_reason", "LogDirectory._remove_nameless"),
        *in_file("broker/log/ownership.py", "_why_nameless"),
        *in_file("broker/log/partition_log.py", "PartitionLog.lower_start"),
        *in_file("broker/log/recovery.py", "_Loader._has_recorded_digest"),
        *in_file("broker/log/side_files/log_start_file.py", "is_left_of_a_reset"),
        *in_file("broker/replication/producer_state.py", "ProducerStates.mark_incomplete"),
        *in_file("broker/requests/produce.py", "ProduceHandler._drop_answered"),
        *in_file("broker/log/segments/segment_digest.py", "SegmentDigest.complete"),
        *in_file("broker/log/side_files/digest_file.py", "_not_used"),
        *in_file("broker/log/segments/segment_tail.py", "is_cut_off"),
        *in_file("broker/replicas/log_effects.py", "_lower_start"),
        *in_file("broker/replicas/partition.py", "Partition.lower_start"),
        *in_file("broker/replication/damage.py", "_can_hand_over"),
        *in_file("broker/replication/follower.py", "on_start_lowered"),
        "call BrokerError.topic_partition",
        *in_file("client/producer/accumulator.py", "Accumulator.unsend"),
        *in_file("controller/core/broker_requests.py", "_refuse"),
    ),
)
EXCUSED: tuple[Excuse, ...] = (
    *(PROCESS, COMMAND_LINE, TEXT, ONE_VALUE, BREAKS_THE_PROMISE, OTHER_TOOLS),
    *(NO_LOAD, NO_FAULT, RARE),
)
