"""Results of the small studies are those of an earlier version, stored beside this file.

A change that means to alter them writes the file again: ``python tools/snapshot.py stored tests/stored_results.npz``.
"""

from pathlib import Path

import numpy as np

from tools.compare_versions import differences
from tools.snapshot import numbers, stored

ROOT = Path(__file__).parents[1]


def test_small_studies_reproduce_the_stored_results(monkeypatch):
    monkeypatch.chdir(ROOT)
    old = dict(np.load(ROOT / "tests" / "stored_results.npz"))
    assert differences("studies", numbers(stored()), old) == []
