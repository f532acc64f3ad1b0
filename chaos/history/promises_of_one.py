"""What holds for every record, also without acks=all: none is invented, none is lost while its leader lasts.

Owns: the checks of records that only one broker promised (acks=1) or none did (acks=0). Pure functions of the history.
"""

from collections import defaultdict
from collections.abc import Iterator

from minibroker.chaos.history.client_history import Polled
from minibroker.chaos.history.view import Anomaly, HistoryView, Promise


def invented_records(view: HistoryView, promise: Promise) -> Iterator[Anomaly]:
    """Each record that was read had been sent to that partition before."""
    if not promise.knows_all_sends:
        return
    sent_to: dict[str, str] = {}
    for event in view.events:
        if event.type == "invoke":
            sent_to.update({sent.value: sent.key for sent in event.sent})
        for record in event.polled:
            if sent_to.get(record.value) != record.key:
                where = f"sent to {sent_to[record.value]}" if record.value in sent_to else "sent by no client so far"
                facts = (f"{event.process} read {record.value!r:.60} at offset {record.offset}", f"it was {where}")
                yield Anomaly("invented-record", record.key, "a record was read that was not sent there", facts)


def lost_in_its_epoch(view: HistoryView, promise: Promise) -> Iterator[Anomaly]:
    """A record acknowledged with acks=1 is lost only if another leader came: then a later epoch stands in the log, and
    another record of its own epoch never stands at its offset."""
    logs: dict[str, dict[int, Polled]] = defaultdict(dict)
    for event in view.polls:
        for record in event.polled:
            logs[record.key][record.offset] = record
    for event in view.sends:
        epoch = event.leader_epoch
        if event.type != "info" or epoch is None:
            continue
        for sent in event.sent:
            log, offset = logs[sent.key], sent.offset
            if offset is None or not log or sent.value in view.read_ok[sent.key]:
                continue
            gone_below = max(max(log), promise.log_starts.get(sent.key, 0))
            if offset not in log and (not promise.is_final or offset < gone_below):
                continue  # no reader was there, or retention has deleted it
            last = log[max(log)]
            held = log.get(offset, last)
            if held.leader_epoch == epoch or (last.leader_epoch is not None and last.leader_epoch <= epoch):
                what = "that offset holds" if offset in log else "the log ends with"
                facts = (
                    f"{event.process} got offset {offset} in epoch {epoch} for {sent.value!r:.60}",
                    f"{what} {held.value!r:.60} of epoch {held.leader_epoch}; the last epoch is {last.leader_epoch}",
                )
                yield Anomaly("lost-in-its-epoch", sent.key, "a record with acks=1 is lost without a new leader", facts)
