"""What an operator does about an address that the broker cannot listen on.

Owns: the cure, with the setting that holds the address. Leaves to others: listening.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from minibroker.runtime.ports import AddressInUse, NetworkError


@contextmanager
def naming_setting(name: str) -> Iterator[None]:
    """The block listens on an address of this setting; a NetworkError of it gets the cure."""
    try:
        yield
    except AddressInUse as error:
        raise AddressInUse(f"{error}: end that process, or give this broker another port in {name}") from error
    except NetworkError as error:
        raise NetworkError(f"{error}: correct {name}") from error
