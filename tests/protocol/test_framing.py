"""Framing: bytes in any pieces become whole frames, and memory depends on what arrived, not on claims."""

import itertools
import struct
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.wire.framing import (
    CONTROL_FRAME_MAX_BYTES,
    INITIAL_BUFFER_BYTES,
    KEPT_BUFFER_BYTES,
    KEPT_BUFFERS,
    READ_AHEAD_BYTES,
    FrameReceiver,
    FrameTooLarge,
    MemoryBudget,
)

KIB, MIB = 1024, 1024 * 1024


def framed(*contents: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(content)) + content for content in contents)


def feed(receiver: FrameReceiver, pieces: Iterable[bytes]) -> list[bytes]:
    """Feed bytes like a transport: a read is never longer than the given buffer."""
    frames: list[bytes] = []
    for piece in pieces:
        rest = memoryview(piece)
        while len(rest):
            target = receiver.get_buffer()
            count = min(len(target), len(rest))
            target[:count] = rest[:count]
            rest = rest[count:]
            receiver.received(count)
            while (frame := receiver.next_frame()) is not None:
                frames.append(bytes(frame))
            assert receiver.make_room(), "no budget was given"
    return frames


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({position % (len(data) + 1) for position in cuts} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(ends)]


CONTENTS = st.lists(st.binary(max_size=40) | st.integers(0, 30_000).map(lambda size: b"x" * size), max_size=6)


@given(CONTENTS, st.lists(st.integers(0, 2**20), max_size=12))
def test_frames_are_the_same_however_their_bytes_are_cut(contents: list[bytes], cuts: list[int]) -> None:
    receiver = FrameReceiver(MIB)
    assert feed(receiver, cut(framed(*contents), cuts)) == contents
    assert not receiver.has_partial_frame()


@given(CONTENTS)
def test_frames_may_come_byte_by_byte(contents: list[bytes]) -> None:
    data = framed(*contents)[:5_000]
    whole = feed(FrameReceiver(MIB), [data])
    assert feed(FrameReceiver(MIB), [data[at : at + 1] for at in range(len(data))]) == whole


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_random_bytes_raise_only_a_protocol_error(data: bytes, cuts: list[int]) -> None:
    receiver = FrameReceiver(100)
    try:
        feed(receiver, cut(data, cuts))
    except ProtocolError:
        pass
    assert receiver.grown_bytes <= READ_AHEAD_BYTES


@given(CONTENTS, st.integers(1, 40))
def test_a_partial_frame_is_recognized(contents: list[bytes], cut_off: int) -> None:
    data = framed(*contents, b"the last one, long enough to be cut anywhere in it")
    receiver = FrameReceiver(MIB)
    assert feed(receiver, [data[:-cut_off]]) == contents
    assert receiver.has_partial_frame()


def test_a_frame_that_is_put_back_is_returned_again() -> None:
    receiver = FrameReceiver(MIB)
    data = framed(b"one", b"two", b"three")
    receiver.get_buffer()[: len(data)] = data
    receiver.received(len(data))
    assert bytes(receiver.next_frame() or b"") == b"one"
    second = receiver.next_frame()
    assert second is not None
    receiver.put_back(second)
    assert receiver.has_partial_frame()
    assert bytes(receiver.next_frame() or b"") == b"two"
    assert bytes(receiver.next_frame() or b"") == b"three"
    assert receiver.next_frame() is None


# ------------------------------------------------------------------------------------------------------------ limits
@pytest.mark.parametrize("claimed", [MIB + 1, 2**31, 2**32 - 1])
def test_a_length_above_the_limit_is_refused_with_its_first_four_bytes(claimed: int) -> None:
    receiver = FrameReceiver(MIB)
    with pytest.raises(FrameTooLarge, match=f"frame of {claimed} bytes, the limit is {MIB}"):
        feed(receiver, [struct.pack(">I", claimed)])
    assert receiver.grown_bytes == 0


def test_a_frame_of_just_the_limit_is_taken() -> None:
    assert feed(FrameReceiver(MIB), [framed(b"x" * MIB)]) == [b"x" * MIB]


def test_a_claimed_length_allocates_nothing() -> None:
    """16 MiB are announced and ten bytes arrive."""
    tracemalloc.start()
    receiver = FrameReceiver(16 * MIB, MemoryBudget(48 * MIB))
    feed(receiver, [struct.pack(">I", 16 * MIB) + b"\x95\x00\x00\x01\xc0\x80"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * INITIAL_BUFFER_BYTES


@given(st.integers(0, 600 * KIB))
def test_the_buffer_grows_with_the_bytes_that_arrived(received: int) -> None:
    budget = MemoryBudget(48 * MIB)
    receiver = FrameReceiver(16 * MIB, budget)
    feed(receiver, [struct.pack(">I", 16 * MIB), b"x" * received])
    assert receiver.grown_bytes + INITIAL_BUFFER_BYTES <= max(INITIAL_BUFFER_BYTES, 2 * (received + 4))
    assert budget.used_bytes == receiver.grown_bytes


@given(st.integers(0, 3 * MIB))
def test_the_buffer_never_grows_beyond_the_frame_and_some_read_ahead(length: int) -> None:
    receiver = FrameReceiver(16 * MIB)
    feed(receiver, [framed(b"x" * length)])
    assert receiver.grown_bytes + INITIAL_BUFFER_BYTES <= max(READ_AHEAD_BYTES, length + 4)


def test_a_frame_above_the_control_limit_needs_permission() -> None:
    asked: list[bytes] = []

    def never(peek: bytes) -> bool:
        asked.append(peek)
        return False

    small, large = b"s" * CONTROL_FRAME_MAX_BYTES, b"l" * (CONTROL_FRAME_MAX_BYTES + 1)
    receiver = FrameReceiver(16 * MIB, None, never)
    assert feed(receiver, [framed(small)]) == [small]
    assert not asked
    with pytest.raises(FrameTooLarge, match=f"without records of {len(large)} bytes"):
        feed(receiver, [framed(large)])
    assert asked == [b"l" * 8], "it is asked as soon as the first bytes are there, and once"


def test_permission_depends_on_the_first_eight_bytes_however_they_are_cut() -> None:
    asked: list[bytes] = []

    def always(peek: bytes) -> bool:
        asked.append(peek)
        return True

    data = framed(bytes(range(256)) * 4_097)[:40]
    feed(FrameReceiver(16 * MIB, None, always), [data[at : at + 1] for at in range(len(data))])
    assert set(asked) == {bytes(range(8))}, "never before they are there"


# ------------------------------------------------------------------------------------------------------------ budget
def partial(receiver: FrameReceiver, size: int) -> bool:
    """Receive bytes of an unfinished frame of 16 MiB; return whether there was room for all of them."""
    rest = size
    while rest:
        if not receiver.make_room():
            return False
        target = receiver.get_buffer()
        count = min(len(target), rest)
        if not receiver.has_partial_frame():
            count = 4
            target[:4] = struct.pack(">I", 16 * MIB)
        receiver.received(count)
        assert receiver.next_frame() is None
        rest -= min(count, rest)
    return receiver.make_room()


def test_a_spent_budget_stops_only_receivers_that_need_more() -> None:
    budget = MemoryBudget(MIB)
    greedy, modest = FrameReceiver(16 * MIB, budget), FrameReceiver(16 * MIB, budget)
    assert not partial(greedy, 4 * MIB)
    assert budget.used_bytes <= MIB
    assert feed(modest, [framed(b"x" * 1_000)] * 20) == [b"x" * 1_000] * 20, "it fits in the initial buffer"
    assert not partial(FrameReceiver(16 * MIB, budget), MIB)


def test_huge_requests_leave_room_for_usual_ones() -> None:
    budget = MemoryBudget(8 * MIB)
    huge = [FrameReceiver(16 * MIB, budget) for _ in range(4)]
    while any([partial(receiver, MIB) for receiver in huge]):
        pass
    usual = [FrameReceiver(16 * MIB, budget) for _ in range(7)]
    assert [feed(receiver, [framed(b"x" * (READ_AHEAD_BYTES - 4))]) for receiver in usual]
    assert budget.used_bytes <= 8 * MIB


def test_brokers_have_a_reserve_that_clients_cannot_use() -> None:
    budget = MemoryBudget(2 * MIB, reserved_bytes=MIB)
    client, broker = FrameReceiver(16 * MIB, budget), FrameReceiver(16 * MIB, budget)
    broker.privileged = True
    assert not partial(client, 2 * MIB)
    assert budget.used_bytes <= MIB
    assert partial(broker, 900 * KIB), "huge or not"
    assert budget.used_bytes <= 2 * MIB


def test_a_closed_connection_releases_its_memory_and_the_budget_reports_it() -> None:
    budget = MemoryBudget(MIB)
    released: list[int] = []
    budget.on_release = lambda: released.append(budget.used_bytes)
    one, other = FrameReceiver(16 * MIB, budget), FrameReceiver(16 * MIB, budget)
    assert not partial(one, 2 * MIB)
    assert not partial(other, MIB)
    one.close()
    assert released == [other.grown_bytes]
    assert other.make_room()
    other.close()
    assert budget.used_bytes == 0


def test_an_idle_buffer_shrinks_and_a_busy_one_does_not() -> None:
    budget = MemoryBudget(MIB)
    receiver = FrameReceiver(16 * MIB, budget)
    feed(receiver, [framed(b"x" * 100_000)])
    assert receiver.grown_bytes > 0
    receiver.shrink()
    assert receiver.grown_bytes == budget.used_bytes == 0
    assert feed(receiver, [framed(b"y" * 100_000)]) == [b"y" * 100_000], "the next read finds all of the small buffer"
    receiver.shrink()
    partial(receiver, 100_000)
    held = budget.used_bytes
    receiver.shrink()
    assert budget.used_bytes == held > 0
    assert receiver.has_partial_frame()


def test_a_frame_handed_out_outlives_the_buffer() -> None:
    receiver = FrameReceiver(MIB)
    data = framed(b"y" * 5_000)
    frames: list[memoryview] = []
    rest = memoryview(data)
    while len(rest):
        assert receiver.make_room()
        target = receiver.get_buffer()
        count = min(len(target), len(rest))
        target[:count] = rest[:count]
        receiver.received(count)
        rest = rest[count:]
        frame = receiver.next_frame()
        if frame is not None:
            frames.append(frame)
    receiver.close()
    assert frames[0] == b"y" * 5_000


def take(receiver: FrameReceiver, content: bytes) -> memoryview:
    """One frame, to be kept."""
    rest = memoryview(framed(content))
    while len(rest):
        target = receiver.get_buffer()
        count = min(len(target), len(rest))
        target[:count] = rest[:count]
        receiver.received(count)
        rest = rest[count:]
        target.release()
    frame = receiver.take_frame()
    assert frame is not None
    assert receiver.make_room()
    return frame


@given(st.lists(st.integers(1, 60_000), min_size=1, max_size=12))
def test_taken_frames_keep_their_bytes_whatever_arrives_later(sizes: list[int]) -> None:
    receiver = FrameReceiver(MIB)
    contents = [bytes([number]) * size for number, size in enumerate(sizes)]
    assert [bytes(frame) for frame in [take(receiver, content) for content in contents]] == contents


def test_a_taken_frame_leaves_the_bytes_behind_it() -> None:
    receiver = FrameReceiver(MIB)
    data = framed(b"a" * 3_000, b"b" * 500)
    receiver.get_buffer()[: len(data)] = data
    receiver.received(len(data))
    first, second = receiver.take_frame(), receiver.take_frame()
    assert (bytes(first or b""), bytes(second or b"")) == (b"a" * 3_000, b"b" * 500)
    assert receiver.take_frame() is None


def test_the_buffer_of_a_taken_frame_is_reused_once_it_has_no_views() -> None:
    receiver = FrameReceiver(MIB)
    first = take(receiver, b"x" * 50_000)
    taken = first.obj
    part = first[10:20]
    del first
    assert take(receiver, b"y" * 50_000).obj is not taken
    assert take(receiver, b"z" * 50_000).obj is not taken, "a part of it is still viewed"
    assert bytes(part) == b"x" * 10
    del part
    assert any(take(receiver, b"w" * 50_000).obj is taken for _ in range(3))
    assert isinstance(taken, bytearray)
    assert len(taken) >= 50_000, "checking for views changes nothing"


def test_a_receiver_keeps_few_buffers_for_taken_frames() -> None:
    receiver = FrameReceiver(16 * MIB)
    frames = [take(receiver, b"x" * MIB) for _ in range(8)]
    del frames
    take(receiver, b"y" * MIB)
    assert len(receiver._given) <= KEPT_BUFFERS
    huge = take(receiver, b"z" * (KEPT_BUFFER_BYTES + 1))
    assert not any(buffer is huge.obj for buffer in receiver._given), "a buffer of this size is not kept"


class Connections(RuleBasedStateMachine):
    """Any number of connections over one budget: what is used is what they hold, and never above the limit."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = MemoryBudget(300 * KIB, 100 * KIB)
        self.receivers = [FrameReceiver(16 * MIB, self.budget) for _ in range(3)]
        self.receivers[2].privileged = True

    @rule(index=st.integers(0, 2), size=st.integers(1, 200 * KIB))
    def send_a_part(self, index: int, size: int) -> None:
        partial(self.receivers[index], size)

    @rule(index=st.integers(0, 2))
    def shrink(self, index: int) -> None:
        self.receivers[index].shrink()

    @rule(index=st.integers(0, 2))
    def close(self, index: int) -> None:
        self.receivers[index].close()

    @invariant()
    def the_books_balance(self) -> None:
        held = sum(receiver.grown_bytes for receiver in self.receivers)
        assert self.budget.used_bytes == held <= self.budget.limit_bytes
        clients = sum(receiver.grown_bytes for receiver in self.receivers[:2])
        assert clients <= self.budget.limit_bytes - self.budget.reserved_bytes


TestConnections = Connections.TestCase
