"""What Producer, Consumer and AdminClient have in common as objects that a program opens and closes.

Owns: `async with`, `stop`, and the answer to names that other clients have (`argument_hints`). Leaves to others: what
opening and closing mean.
"""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Never, Self

from minibroker.client.argument_hints import check_arguments, refuse_attribute
from minibroker.client.errors import WrongArguments


class PublicClient(ABC):
    """Base of the three public classes."""

    __getattr__ = refuse_attribute
    """Assigned: a type checker would take any name for an attribute if this were a method of the class."""

    _refusals_end_start = False
    """For commands: `start` fails soon if every server refuses the connection. A service waits, as its brokers may be
    starting, too."""

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    async def stop(self) -> None:
        """The same as `close()`."""
        await self.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self, *details: object) -> Never:
        raise WrongArguments(f"use `async with {type(self).__name__}(..)`: opening and closing wait for the cluster")

    __exit__ = __enter__
    """Python looks for it before it calls the other."""

    @classmethod
    def _check_arguments(cls, positional: tuple[object, ...], unknown: dict[str, Any]) -> None:
        """Raise WrongArguments if `__init__` was given anything that it does not take."""
        if positional or unknown:
            check_arguments(cls.__name__, positional, unknown, cls.__init__.__kwdefaults__ or ())
