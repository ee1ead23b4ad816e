"""No value that a user states is lost: it changes an answer, is refused, or is named as without effect.

Whole, it takes minutes: ``pytest -m slow tests/stated -s`` prints how many were tried and what became of them.
"""

from __future__ import annotations

from collections import Counter

import pytest

from perfgrid.catalog import load_catalog

from .perturb import EXCEPTIONS, SILENT, outcome, ways

EVERY = [(v, way) for v in load_catalog().variables.values() for way in ways(v)]
SAMPLE = EVERY[::60]


@pytest.mark.parametrize(("variable", "way"), SAMPLE, ids=lambda one: one if isinstance(one, str) else one.name)
def test_some_statements_are_not_silent(variable, way):
    found, words = outcome(variable, way)
    assert found != SILENT or variable.name in EXCEPTIONS, words


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_no_statement_is_silent(part):
    found = {(v.name, way): outcome(v, way) for v, way in EVERY[part::8]}
    print(len(found), "statements:", dict(Counter(kind for kind, _ in found.values())))
    silent = {pair: words for pair, (kind, words) in found.items() if kind == SILENT and pair[0] not in EXCEPTIONS}
    assert silent == {}
