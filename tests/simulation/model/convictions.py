"""Which model bounds convict which mutant, and the form of the mutant that the model can show."""

from tests.mutants.catalogue import find_mutant
from tests.mutants.mutant import Mutant
from tests.simulation.model.variants import VARIANTS

BOUNDS_OF = {
    "B01": "elections",
    "B03-offset": "elections",
    "B04a": "elections",
    "B04b": "elections",
    "B04c": "elections",
    "B05": "joining",
    "B06-unchecked": "returning",
    "B11": "elections",
    "B18a": "proposals",
    "B18b": "proposals",
    "B21-forgotten": "expanding",
    "B21-unapplied": "expanding",
    "B24a": "power",
    "B24b": "power",
    "B24-resent": "resending",
    "B25": "minimum",
    "D02": "disks",
    "D02b": "disks",
    "D02d": "disks",
    "D17a": "disks",
    "H1": "elections",
    "H7": "power",
    "H8": "fencing",
    "H14": "minimum",
}


def mutant_called(name: str) -> Mutant:
    """Raises KeyError."""
    return {each.name: each for each in VARIANTS}.get(name) or find_mutant(name)
