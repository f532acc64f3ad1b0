"""Descriptors are divided: logs and brokers first, clients get the rest; a shortage is reported with its cure."""

import resource
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.runtime.adapters.descriptors import hard_limit, raised_limit
from minibroker.runtime.descriptor_shares import FIXED, LIMIT_MIN, LOG_FILES_MAX, UNLIMITED, share_out


def test_a_sufficient_limit_is_no_shortage() -> None:
    shares = share_out(UNLIMITED, 1_000, 10_000)
    assert (shares.log_files, shares.connections, shares.shortage) == (LOG_FILES_MAX, 1_000, None)


def test_the_usual_limit_allows_fewer_connections_and_reports_it() -> None:
    shares = share_out(1_024, 1_000)
    assert shares.connections == 576
    assert shares.shortage is not None
    assert "max.connections=1000" in shares.shortage


@given(st.integers(0, 100_000), st.integers(1, 100_000), st.integers(0, 100_000))
def test_shares_fit_the_limit_or_a_shortage_is_reported(limit: int, wanted: int, partitions: int) -> None:
    shares = share_out(limit, wanted, partitions)
    assert 1 <= shares.connections <= wanted
    if limit >= LIMIT_MIN:
        assert FIXED + shares.log_files + shares.connections <= limit
    if shares.connections < wanted or limit < LIMIT_MIN:
        assert shares.shortage is not None


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_is_raised_to_the_hard_one(limits: tuple[int, int]) -> None:
    _, hard = limits
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    assert raised_limit() == hard_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
