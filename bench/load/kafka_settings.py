"""librdkafka's settings in every case, besides those of the case, and the reasons; they are shown with the figures.

Imports nothing: the bench's Python has no Kafka client.
"""

SettingValue = str | int | bool

QUEUE_MESSAGES = 200_000
QUEUE_KILOBYTES = 262_144
"""A queue long enough that the sending thread never runs out of records."""
CONSUMER: dict[str, SettingValue] = {
    "queued.min.messages": 1_000_000,
    "fetch.queue.backoff.ms": 2,
}
"""By default librdkafka stops fetching with 100,000 records in its queue (10 MB of small ones) and continues only after
a second: with records of 100 B it then reads 20 to 40 MB/s and mostly sleeps; with these settings, 100 to 200 MB/s."""
PRODUCER: dict[str, SettingValue] = {
    "queue.buffering.max.messages": QUEUE_MESSAGES,
    "queue.buffering.max.kbytes": QUEUE_KILOBYTES,
}
