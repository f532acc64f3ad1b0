"""What clients are told: order, what acks=1 means, and how soon something happens."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, Schedule

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="J01",
        title="without idempotence several batches of a partition are in flight",
        origin="Kafka's max.in.flight.requests.per.connection, which reorders retries",
        rule="records are in the order of their send calls, also after retries (CLIENT.md, promise 1)",
        breaks=("first-copies-out-of-order",),
        edits=(
            Edit(
                "client.producer.accumulator",
                "            self.in_flight_max = in_flight_max * PRODUCE_BATCHES_MAX if idempotent else 1\n",
                "            self.in_flight_max = in_flight_max * PRODUCE_BATCHES_MAX\n",
            ),
        ),
        schedule=Schedule("promises:first_of_two_batches_is_refused"),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = ()
