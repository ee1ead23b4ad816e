"""What a question keeps free of the device memory: as predictions of memory are too low for some, or as it is stated.

Of serving a share that public logs ask for. Of training what the prediction interval of a stack's memory leaves: a
design fits with 90 % probability where it takes no more than the rest.
"""

from __future__ import annotations

from math import ceil, exp
from typing import cast

from perfgrid.analysis.published_errors import memory_note
from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas.training.error import ONE_SIDED_90

from .question import Question, stated

HEADROOM = 0.02  # of a device: 18 of 19 caches in public logs are predicted at most so much too large
KEPT_FREE = f"{HEADROOM:.0%} of the memory stays free of what the engine may use"


def headroom_of(headroom: float | str | None, otherwise: float = HEADROOM) -> float:
    """The part of the memory that a question keeps free. PerfgridError for one that is not from 0 to below 1."""
    if headroom is None:
        return otherwise
    free = stated(headroom, "headroom", "headroom")
    if isinstance(free, bool) or not isinstance(free, int | float) or not 0 <= free < 1:
        raise PerfgridError(f"a headroom is a number from 0 to below 1, found {headroom!r:.40}")
    return float(free)


def of_training(memory_error: float) -> float:
    """Whole percents of the memory with which 90 % of designs fit whose memory deviates so from the prediction."""
    return ceil(100 * (1 - exp(-ONE_SIDED_90 * memory_error)) - 1e-9) / 100


def of_devices(asked: Question, headroom: float | str | None) -> dict[str, float]:
    """What every device of a question of training keeps free. PerfgridError as of `headroom_of`."""
    stacks = [asked.software] * len(asked.devices) if asked.software else asked.usual["software"]
    errors = (cast(float, asked.catalog.entry("software", stack).values["memory_error"]) for stack in stacks)
    return {
        device: headroom_of(headroom, of_training(error)) for device, error in zip(asked.devices, errors, strict=True)
    }


def kept_free(shares: dict[str, float]) -> str:
    """What devices keep free where nobody stated it, in words."""
    alike = len(set(shares.values())) == 1
    each = [f"{share:.0%} of the memory{'' if alike else f' of {device}'}" for device, share in shares.items()]
    return f"{', '.join(dict.fromkeys(each))} kept free, to fit with 90% probability on its software: {memory_note()}"
