"""How far predictions were from published measurements when this version was made (``python -m tools.validation``)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("published_errors.json")  # by share of records, workload and kind of model
MEMORY = "memory: sources left out"  # peaks of training: records, and shares of them that intervals without them hold


@cache
def published_errors() -> dict[str, dict[str, float]]:
    """By share, workload and kind of model: how many records, and the median and the 90th percentile of |ln error|."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def memory_note() -> str:
    """How often a training step fits that is predicted to fit with 90 % probability."""
    found = published_errors()[MEMORY]
    return f"of {found['n']:.0f} measured peaks {found['fits']:.0%} fit with such a margin, their sources left out"


def serving_note() -> str:
    """How far serving may be off, in place of intervals, which only training steps have."""
    dense, mixtures = (
        np.exp(published_errors()[f"blind: inference: {models}"]["median"])
        for models in ("dense models", "mixtures of experts")
    )
    return (
        f"no intervals for serving: half of the blind records are within a factor of {dense:.2f} (dense models) and "
        f"{mixtures:.2f} (mixtures of experts) of the prediction (docs/accuracy.md); perfgrid uncertainty spans the "
        "ranges of the catalog"
    )
