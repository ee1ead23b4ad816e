"""Memory of servers in public logs beside what is predicted: open records, and blind ones all together."""

import pytest

from perfgrid.answers.headroom import HEADROOM
from tools.validation.server_memory import GIB, MEASURES, Scored, scored


@pytest.fixture(scope="module")
def rows() -> list[Scored]:
    return scored()


def met(rows: list[Scored], name: str) -> tuple[int, int]:
    found = [row.met(name) for row in rows if name in row.predicted]
    return sum(found), len(found)


def test_open_servers_are_as_their_logs_say(rows):
    """All verdicts; weights within 3 %; caches within 10 % or 0.7 GiB but for three.

    One raised its requests by a number that is not told, two are launches of an engine whose weights then took more.
    """
    own = [row for row in rows if not row.blind]
    assert met(own, "starts") == (24, 24)
    assert met(own, "weights_gib") == (17, 17)
    assert met(own, "cache_gib") >= (16, 19)


def test_blind_servers_are_no_worse_than_when_they_were_first_scored(rows):
    """Of 13 one is not predicted; nothing of them was fitted."""
    blind = [row for row in rows if row.blind]
    assert [met(blind, name)[0] >= least for name, least in zip(MEASURES, (2, 6, 3, 9), strict=True)] == [True] * 4


def test_the_headroom_of_answers_is_what_nine_of_ten_open_logs_ask_for(rows):
    """The 18th of 19 differences (with the conformal n + 1), as a part of the memory that the driver counts."""
    differences = sorted(
        (row.predicted["cache_gib"] - row.record["cache_gib"]) / (row.held.counted / GIB)
        for row in rows
        if not row.blind and row.held is not None and "cache_gib" in row.predicted
    )
    assert len(differences) == 19
    assert differences[17] == pytest.approx(HEADROOM, abs=0.001)
