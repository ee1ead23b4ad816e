"""Which stated values the best designs of a study do not feel, as warnings."""

from __future__ import annotations

import xarray as xr

from perfgrid.analysis.idle_inputs import idle_among_winners
from perfgrid.printing.console import err
from perfgrid.study.ledger import unread
from perfgrid.study.study import Study


def warnings_of(study: Study, winners: xr.Dataset) -> list[str]:
    """What has no effect on any output, which reading the study told, and what has none on the best designs: told here.

    Errors as of `Study.graph`.
    """
    idle = idle_among_winners(study, winners)
    for words in idle:
        err.print(f"warning: {words}")
    return [*(one.text for one in unread(study)), *idle]
