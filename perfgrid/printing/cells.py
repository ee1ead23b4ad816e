"""The cells of a result, one by one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import numpy as np
import xarray as xr


def cells(
    found: xr.Dataset | xr.DataArray, dims: Iterable[Hashable]
) -> Iterator[tuple[dict[str, Any], dict[str, int]]]:
    """Labels and positions of every cell along some dimensions; a dimension may have no labels."""
    names = [str(d) for d in dims]
    for place in np.ndindex(*(found.sizes[d] for d in names)):
        at = dict(zip(names, place, strict=True))
        yield {d: found[d].values[i].item() for d, i in at.items() if d in found.coords}, at
