"""The document keeps every figure, and parts of one run are merged."""

import msgspec
import pytest

from minibroker.bench.document import BadDocument, decode, encode, merge
from tests.bench.documents import FAILURE, MACHINE, case, document


def test_an_encoded_document_decodes_to_itself() -> None:
    written = document(case("produce", [2.0], [1.0]))
    assert decode(encode(written)) == written


@pytest.mark.parametrize("data", [b"{}", b"no JSON", b'{"format": 99}'])
def test_other_files_are_rejected(data: bytes) -> None:
    with pytest.raises(BadDocument):
        decode(data)


def test_a_later_format_is_rejected() -> None:
    later = msgspec.structs.replace(document(), format=2)
    with pytest.raises(BadDocument, match="format 2"):
        decode(encode(later))


def test_parts_of_a_run_are_merged() -> None:
    merged = merge([document(case("produce", [2.0], [1.0])), document(case("consume", [4.0], [5.0]))])
    assert [each.name for each in merged.cases] == ["produce", "consume"]


def test_rounds_of_merged_parts_are_renumbered_in_pairs() -> None:
    failed = msgspec.structs.replace(case("produce", [2.0, 3.0], [1.0]), failures=[FAILURE])
    merged = merge([document(failed), document(case("produce", [8.0], [4.0]))])
    (joined,) = merged.cases
    assert joined.values("minibroker") == {0: 2.0, 1: 3.0, 2: 8.0}
    assert joined.values("kafka") == {0: 1.0, 2: 4.0}
    assert joined.failures == [FAILURE]


def test_rounds_of_one_case_are_of_one_commit() -> None:
    produce = case("produce", [2.0], [1.0])
    with pytest.raises(BadDocument, match="different commits"):
        merge([document(produce), document(produce, commit="fedcba9876")])


def test_parts_of_two_commits_name_both() -> None:
    parts = [document(case("produce", [2.0], [1.0])), document(case("consume", [4.0], [5.0]), commit="fedcba9876")]
    assert merge(parts).commit == "0123456789, fedcba9876"


def test_figures_of_two_machines_are_not_mixed() -> None:
    elsewhere = msgspec.structs.replace(document(), machine=msgspec.structs.replace(MACHINE, cores=32))
    with pytest.raises(BadDocument, match="different machines"):
        merge([document(), elsewhere])
