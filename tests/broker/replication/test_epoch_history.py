"""The history of leader epochs, against a list that holds the epoch of each record."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.replication.epoch_history import EpochHistory

LEADERSHIPS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=8)
"""How much the epoch rises, and how many records are written in it; of rise 0 the same leader writes on."""


def written(leaderships: list[tuple[int, int]]) -> tuple[EpochHistory, list[int], int | None]:
    """The history of these leaders, the epoch of each record, and the last leader's."""
    history, epochs, epoch = EpochHistory(), list[int](), None
    for rise, count in leaderships:
        before = history.latest_epoch
        epoch = rise if epoch is None else epoch + rise
        assert history.assign(epoch, len(epochs)) is (epoch != before)
        epochs += [epoch] * count
    return history, epochs, epoch


def rises(history: EpochHistory) -> bool:
    return all(a < b and start < later for (a, start), (b, later) in itertools.pairwise(history.entries))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9))))
def test_both_columns_rise_whatever_is_entered(entered: list[tuple[int, int]]) -> None:
    """A file whose entries do not rise is not used at the next start."""
    history = EpochHistory()
    for epoch, start_offset in entered:
        history.assign(epoch, start_offset)
        assert history.latest_epoch == epoch
        assert rises(history), history.entries


@given(LEADERSHIPS)
def test_each_record_is_of_the_epoch_that_wrote_it(leaderships: list[tuple[int, int]]) -> None:
    history, epochs, last = written(leaderships)
    assert [history.epoch_at(offset) for offset in range(len(epochs))] == epochs
    assert history.latest_epoch == last


@given(LEADERSHIPS)
def test_an_epoch_ends_where_the_first_record_above_it_begins(leaderships: list[tuple[int, int]]) -> None:
    """Answered is the largest known epoch that is not above the asked one; the asked one if all known ones are."""
    history, epochs, last = written(leaderships)
    assert history.end_offset_for(None, len(epochs)) is None
    assert history.end_offset_for(0 if last is None else last + 1, len(epochs)) is None
    for asked in range(0 if last is None else last + 1):
        known = [epoch for epoch, _ in history.entries if epoch <= asked]
        end = sum(epoch <= asked for epoch in epochs)
        assert history.end_offset_for(asked, len(epochs)) == (max(known, default=asked), end)


@given(LEADERSHIPS)
def test_what_is_cut_off_either_end_leaves_the_epochs_of_the_rest(leaderships: list[tuple[int, int]]) -> None:
    kept, epochs, last = written(leaderships)
    for at in range(len(epochs) + 2):
        history = EpochHistory(kept.entries)
        assert history.truncate_to(at) is (history.entries != kept.entries)
        assert [history.epoch_at(offset) for offset in range(min(at, len(epochs)))] == epochs[:at]
        assert all(start < at for _, start in history.entries)

        history = EpochHistory(kept.entries)
        assert history.trim_before(at) is (history.entries != kept.entries)
        assert [history.epoch_at(offset) for offset in range(at, len(epochs))] == epochs[at:]
        assert all(start >= at for _, start in history.entries)
        assert rises(history)
        assert history.latest_epoch == last
