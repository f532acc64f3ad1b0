"""The loads of one run, drawn from a random stream of its own, so that seeds without them keep their meaning.

Owns: the names of the loads, the topics they use with their settings, and the draw. Leaves to others: to do them.
"""

import random

import msgspec

LOADS_SHARE = 0.5
"""How many runs have loads if the caller does not choose; the others stay as they were."""

LOADS = ("record_writer", "record_reader")
"""What a client does; each is a module of this folder."""
LOADS_MIN = 1

LOAD_ACTS = (
    "try_send",
    "send",
    "send that waited",
    "send_many",
    "flush",
    "flush that told of lost records",
    "wait for memory given up",
    "acknowledged record",
    "record above max_request_size refused",
    "record above max.message.bytes refused",
    "record to no partition refused",
    "getmany",
    "getone",
    "async for",
    "getmany_batches",
    "position",
    "seek",
    "seek_to_beginning",
    "seek_to_end",
    "end_offsets",
    "offsets_for_times",
    "pause",
)
"""What loads do and see; a swarm must have had each."""

TOPIC = "load"
"""Topic of the loads; the steady workload writes and reads it, too, and its records are under promise."""

MESSAGE_BYTES = (None, None, "1024", "2048", "8192")
"""max.message.bytes of a topic; the smallest are smaller than the batches of most producers, which split them."""


class LoadOptions(msgspec.Struct, kw_only=True):
    """One run's draw."""

    clients: tuple[str, ...]
    """Names of LOADS."""
    topics: dict[str, tuple[int, int, int]]
    """name: (partitions, replication factor, min.insync.replicas)"""
    topic_settings: dict[str, dict[str, str]]
    settings: dict[str, str]
    """They override the run's."""


def draw_load_options(rng: random.Random, wanted: bool | None, brokers: int = 3) -> LoadOptions | None:
    """None: a run without loads. `wanted`: None leaves the choice to the seed."""
    is_drawn = rng.random() < LOADS_SHARE
    return _draw(rng, brokers) if (is_drawn if wanted is None else wanted) else None


def _draw(rng: random.Random, brokers: int) -> LoadOptions:
    clients = rng.sample(LOADS, rng.randint(LOADS_MIN, len(LOADS)))
    topics = {TOPIC: (rng.choice((1, 2, 4)), min(3, brokers), rng.choice((1, 2, 2)))}
    message_bytes = rng.choice(MESSAGE_BYTES)
    topic_settings = {} if message_bytes is None else {"max.message.bytes": message_bytes}
    return LoadOptions(
        clients=tuple(sorted(clients)), topics=topics, topic_settings={TOPIC: topic_settings}, settings={}
    )
