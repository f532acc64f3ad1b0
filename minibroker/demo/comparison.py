"""The demo reads everything back and compares it with what was written, byte for byte.

Owns: the comparison per partition: the log holds every acknowledged record at its offset, in the order of sending, and
nothing else.
"""

from minibroker.client.consumer.consumer import Consumer
from minibroker.client.consumer.records import RecordBatch
from minibroker.command_line import human_bytes
from minibroker.demo.input_lines import InputLines
from minibroker.demo.ledger import NOTHING, Ledger
from minibroker.demo.output import DemoOutput
from minibroker.protocol.ids import TopicPartition
from minibroker.records.record_reader import RecordReader
from minibroker.records.starting_point import parse_start

TIMEOUT_MS = 30_000
DIFFERENCES_SHOWN = 3


async def compare_with_input(output: DemoOutput, servers: str, topic: str, lines: InputLines, ledger: Ledger) -> None:
    """Read the topic from the beginning to the end. The checks go into the output."""
    started = output.seconds
    differences: list[str] = list(ledger.conflicts)
    positions: dict[TopicPartition, int] = {}
    count = size = 0
    async with Consumer(bootstrap_servers=servers, client_id="demo-reader", auto_offset_reset="none") as consumer:
        reader = RecordReader(consumer, [topic], (), parse_start("beginning"), TIMEOUT_MS, until_end=True)
        await reader.start()
        async for batches in reader.batches():
            for batch in batches:
                size += _compare(batch, lines, ledger, positions, differences)
                count += len(batch)
            output.progress(f"read back {100 * count / max(1, ledger.count):.0f} % of {ledger.count} records")
    for partition, expected in sorted(ledger.lines.items()):
        read = positions.get(partition, 0)
        if read != len(expected):
            differences.append(f"{partition}: {len(expected)} records were acknowledged, {read} were read")
        _check_order(partition, ledger, differences)
    seconds = output.seconds - started
    output.tell(f"read {count} records back in {seconds:.1f} s ({human_bytes(size / max(seconds, 0.001))}/s)")
    per_partition = ", ".join(f"{partition}: {read}" for partition, read in sorted(positions.items()))
    detail = f"{per_partition} records identical and in order"
    if differences:
        detail = f"{len(differences)} differences: {'; '.join(differences[:DIFFERENCES_SHOWN])}"
    output.check("what is read is what was written, byte for byte", not differences and count == lines.count, detail)


def _compare(
    batch: RecordBatch,
    lines: InputLines,
    ledger: Ledger,
    positions: dict[TopicPartition, int],
    differences: list[str],
) -> int:
    """Compare a batch with the input lines at its offsets; returns the bytes of its values."""
    partition, offset = batch.topic_partition, batch.base_offset
    expected_offset = positions.get(partition, 0)
    if offset != expected_offset:
        differences.append(f"{partition}: offset {offset} follows {expected_offset - 1}")
    expected = ledger.lines.get(partition)
    size = 0
    for value in batch.values:
        number = expected[offset] if expected is not None and offset < len(expected) else NOTHING
        if number == NOTHING:
            differences.append(f"{partition}: offset {offset} was never acknowledged")
        elif value != lines[number]:
            differences.append(
                f"{partition}: offset {offset} is {value!r:.60}, not line {number} ({lines[number]!r:.60})"
            )
        size += len(value or b"")
        offset += 1
    positions[partition] = offset
    return size


def _check_order(partition: TopicPartition, ledger: Ledger, differences: list[str]) -> None:
    numbers = ledger.lines[partition]
    falls = [offset for offset in range(1, len(numbers)) if numbers[offset] <= numbers[offset - 1]]
    if falls:
        differences.append(f"{partition}: the order of sending is broken at offset {falls[0]}")
