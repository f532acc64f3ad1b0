"""What librdkafka is told in every case beyond what the case names, and why; shown with the figures.

Imports nothing: the bench's Python has no Kafka client.
"""

SettingValue = str | int | bool

QUEUE_MESSAGES = 200_000
QUEUE_KILOBYTES = 262_144
"""A queue long enough that the sending thread is never short of records."""
CONSUMER: dict[str, SettingValue] = {
    "queued.min.messages": 1_000_000,
    "fetch.queue.backoff.ms": 2,
}
"""By default librdkafka stops fetching with 100,000 records in its queue, 10 MB of small ones, and looks again only
after a second: over 100 B it then reads 20 to 40 MB/s and sleeps for most of the time; with these, 100 to 200."""
PRODUCER: dict[str, SettingValue] = {
    "queue.buffering.max.messages": QUEUE_MESSAGES,
    "queue.buffering.max.kbytes": QUEUE_KILOBYTES,
}
