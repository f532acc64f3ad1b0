"""What the client library returns to its user: the judges of the swarm's loads must see each of these."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, Schedule, UnitTest

ORIGIN = "planted for the loads' judges"
WRITE = Schedule("loads:write_in_every_way")
READ = Schedule("loads:write_and_read_in_every_way")

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="J09",
        title="flush returns before records have their outcome",
        origin=ORIGIN,
        rule="flush waits for everything sent so far (CLIENT.md, writing)",
        breaks=("client: flush", "client: memory"),
        edits=(
            Edit(
                "client.producer.producer",
                "        if pending := self._unfinished():\n            await self._wait_for(pending, deadline)\n        await asyncio.sleep(0)",
                "        await asyncio.sleep(0)",
            ),
        ),
        schedule=WRITE,
    ),
    Mutant(
        name="J10",
        title="seek is ignored",
        origin=ORIGIN,
        rule="seek says where to read on (CLIENT.md, reading)",
        breaks=("client: order", "client: position"),
        edits=(
            Edit(
                "client.consumer.consumer",
                "        self._cursor(partition).seek(offset)\n        self._fetcher.moved()\n",
                "        self._fetcher.moved()\n",
            ),
        ),
        schedule=Schedule("loads:seek_to_each_record"),
    ),
    Mutant(
        name="J11",
        title="position() is one too high",
        origin=ORIGIN,
        rule="position is the next offset that will be returned (CLIENT.md, reading)",
        breaks=("client: position",),
        edits=(
            Edit(
                "client.consumer.consumer",
                "        return await self._known_position(self._cursor(partition), Deadline(timeout_ms))\n",
                "        return await self._known_position(self._cursor(partition), Deadline(timeout_ms)) + 1\n",
            ),
        ),
        schedule=READ,
    ),
    Mutant(
        name="J12",
        title="pause is ignored",
        origin=ORIGIN,
        rule="a paused partition gives no records until resume (CLIENT.md, reading)",
        breaks=("client: pause",),
        edits=(
            Edit(
                "client.consumer.consumer",
                "            cursor.paused = True\n",
                "            cursor.paused = False\n",
            ),
        ),
        schedule=READ,
    ),
    Mutant(
        name="J13",
        title="each delivery of a batch has the offset of its first record",
        origin=ORIGIN,
        rule="a delivery gives the offset of its own record (CLIENT.md, writing)",
        breaks=("I21",),
        edits=(
            Edit(
                "client.producer.deliveries",
                "            None if batch.base_offset is None else batch.base_offset + delta,\n",
                "            batch.base_offset,\n",
            ),
        ),
        schedule=WRITE,
    ),
    Mutant(
        name="J14",
        title="send_many leaves out the last record",
        origin=ORIGIN,
        rule="send_many takes all records, or raises (CLIENT.md, writing)",
        breaks=("client: send_many",),
        edits=(
            Edit(
                "client.producer.producer",
                "            while len(deliveries) < len(columns):\n",
                "            while len(deliveries) < len(columns) - 1:\n",
            ),
        ),
        schedule=WRITE,
    ),
    Mutant(
        name="J15",
        title="a look-up by time passes over records of exactly that time",
        origin=ORIGIN,
        rule="the answer is the first record that is not older (CLIENT.md, reading)",
        breaks=("client: offsets_for_times",),
        edits=(
            Edit(
                "broker.log.segments.time_lookup",
                "        if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:\n",
                "        if record.timestamp_ms > timestamp_ms and record.offset >= start_offset:\n",
            ),
            # else the header of such a batch answers, as if its producer had lied
            Edit("broker.log.segments.time_lookup", "    if header.base_offset >= start_offset:", "    if False:"),
        ),
        schedule=Schedule("loads:look_up_the_time_of_each_record"),
    ),
    Mutant(
        name="J16",
        title="a key goes to another partition once its producer knows more keys",
        origin=ORIGIN,
        rule="the key selects the partition (CLIENT.md, writing)",
        breaks=("client: partition",),
        edits=(
            Edit(
                "client.producer.producer_topic",
                "        index = self._partitioner(key, self.partition_count)\n",
                "        known = bytes(len(self.queue_of_key) % 2)\n"
                "        index = self._partitioner(key + known, self.partition_count)\n",
            ),
        ),
        schedule=WRITE,
    ),
    Mutant(
        name="J17",
        title="a consumer keeps its position in a topic that was made again",
        origin=ORIGIN,
        rule="a position belongs to a topic id, and is never carried over (CLIENT.md, reading)",
        breaks=("client: topic made again",),
        edits=(
            Edit(
                "client.consumer.cursor",
                "        before, self.topic_id = self.topic_id, topic_id\n        if before in (None, topic_id):\n",
                "        self.topic_id = topic_id\n        if topic_id:\n",
            ),
        ),
        schedule=Schedule("loads:make_a_topic_again"),
    ),
    Mutant(
        name="J18",
        title="a follower that waits for a sync waits on when flushing is switched off",
        origin="found by the loads (seed 18400112): a changed flush.messages left it out of the ISR",
        rule="a changed setting takes effect at once; without flushing no fetch waits for a sync (hardening rule 2)",
        breaks=("I36",),
        edits=(
            Edit(
                "broker.replication.replica",
                "    if flushing_changed and isinstance(state.phase, Fetching):\n",
                "    if flushing_changed and state.is_leader:\n",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/replication/test_flush_reports.py::"
            "test_a_follower_fetches_on_when_flushing_ends_during_its_sync"
        ),
    ),
    Mutant(
        name="J19",
        title="a delivery's callback is called before there is an outcome",
        origin=ORIGIN,
        rule="the callback is called once, when the outcome is known (CLIENT.md, writing)",
        breaks=("client: add_done_callback",),
        edits=(
            Edit(
                "client.producer.deliveries",
                "        if batch.done:\n            call()\n",
                "        if batch is not None:\n            call()\n",
            ),
        ),
        schedule=WRITE,
    ),
    Mutant(
        name="J20",
        title="a producer counts batches where it should count records",
        origin=ORIGIN,
        rule="metrics() says how many records were acknowledged (CLIENT.md, writing)",
        breaks=("client: metrics",),
        edits=(
            Edit(
                "client.producer.producer_metrics",
                "            self.records_acknowledged += batch.record_count\n",
                "            self.records_acknowledged += 1\n",
            ),
        ),
        schedule=WRITE,
    ),
    Mutant(
        name="J21",
        title="a record that cannot be deserialized ends the batch in front of the records before it",
        origin=ORIGIN,
        rule="every record before it is returned first (CLIENT.md, reading)",
        breaks=("client: order",),
        edits=(
            Edit(
                "client.consumer.deserializing",
                "                return read, problem\n",
                "                return [], problem\n",
            ),
        ),
        schedule=Schedule("loads:read_what_a_deserializer_refuses"),
    ),
    Mutant(
        name="J22",
        title="a close that gives up leaves records without an outcome",
        origin=ORIGIN,
        rule="each record has an outcome when close ends (CLIENT.md, writing)",
        breaks=("client: flush", "client: memory"),
        edits=(Edit("client.producer.producer", "            self._abort_rest()\n", "            pass\n"),),
        schedule=WRITE,
    ),
    Mutant(
        name="J23",
        title="a send_many that is cancelled forgets the records that it had taken",
        origin=ORIGIN,
        rule="a cancelled call leaves its first records, too (CLIENT.md, writing)",
        breaks=("client: metrics",),
        edits=(
            Edit(
                "client.producer.producer",
                "        except (MinibrokerError, asyncio.CancelledError) as error:\n            vars(error)",
                "        except MinibrokerError as error:\n            vars(error)",
            ),
        ),
        schedule=Schedule("loads:cancel_a_send_that_waits_for_memory"),
    ),
    Mutant(
        name="J24",
        title="getone waits between taking a record and returning it",
        origin=ORIGIN,
        rule="a cancelled call has read nothing (CLIENT.md, reading)",
        breaks=("client: order", "client: position"),
        edits=(
            Edit(
                "client.consumer.consumer",
                "            if record is not None:\n                return record\n            self._raise_halted()\n",
                "            if record is not None:\n                await asyncio.sleep(0)\n                return record\n"
                "            self._raise_halted()\n",
            ),
        ),
        schedule=Schedule("loads:cancel_each_read"),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = ()
