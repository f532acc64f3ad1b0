"""The observer port: how a process reports its internal events to subscribers.

Owns: the port, and the fan-out to several subscribers. Leaves to others: the events themselves, which are typed structs
next to the code that reports them, and what a subscriber does with them. A subscriber only reads.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

Subscriber = Callable[[object], None]
Handlers = Mapping[type[Any], Callable[[Any], None]]
"""What to call for events, by their class."""


class Observer(Protocol):
    """Gets each event right after it happened, in the same call."""

    @property
    def wants_details(self) -> bool:
        """Whether events of the data path are wanted, too. They cost time, so their reporters test this first."""
        ...

    def notify(self, event: object) -> None: ...


class Unobserved:
    """The observer of a process that nothing watches."""

    wants_details = False

    def notify(self, event: object) -> None:
        """Do nothing."""


UNOBSERVED = Unobserved()


class Observers:
    """Hands each event to all subscribers, in the order in which they subscribed."""

    def __init__(self, *subscribers: Subscriber) -> None:
        """`subscribers` want no details."""
        self.wants_details = False
        self._subscribers: tuple[Subscriber, ...] = subscribers
        self._detailed: tuple[Subscriber | Handlers, ...] = ()
        self._called: dict[type, tuple[Subscriber, ...]] = {}
        """By class of event, filled when the first of a class comes."""

    def notify(self, event: object) -> None:
        called = self._called.get(type(event))
        if called is None:
            called = self._called[type(event)] = self._interested_in(type(event))
        for subscriber in called:
            subscriber(event)

    def _interested_in(self, kind: type) -> tuple[Subscriber, ...]:
        detailed = (each.get(kind) if isinstance(each, Mapping) else each for each in self._detailed)
        return (*self._subscribers, *(each for each in detailed if each is not None))

    @contextlib.contextmanager
    def subscribed(self, subscriber: Subscriber | Handlers) -> Iterator[None]:
        """Details included, until the block ends."""
        self._set_detailed((*self._detailed, subscriber))
        try:
            yield
        finally:
            self._set_detailed(tuple(each for each in self._detailed if each is not subscriber))

    def _set_detailed(self, detailed: tuple[Subscriber | Handlers, ...]) -> None:
        self._detailed = detailed
        self._called.clear()
        self.wants_details = bool(detailed)
