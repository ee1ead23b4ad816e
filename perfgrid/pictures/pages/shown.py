"""What a page shows of a study: its result, in memory or factored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import xarray as xr

from perfgrid.results.evaluate import evaluate
from perfgrid.results.factored import SUFFIX, open_factored, save_factored
from perfgrid.study.study import Study

MOST_EVALUATED = 2**21  # designs of a study that are evaluated at once; of more only the parts that are looked at


@contextmanager
def shown(what: Study | xr.Dataset) -> Iterator[xr.Dataset]:
    """The result of a study, or a result as it is.

    Raises PerfgridError like `evaluate`.
    """
    if isinstance(what, xr.Dataset):
        yield what
    elif what.space.points <= MOST_EVALUATED:
        yield evaluate(what)
    else:
        with TemporaryDirectory(prefix="perfgrid-") as folder:
            yield open_factored(save_factored(what, Path(folder) / f"study{SUFFIX}"), formulas=what.formulas)
