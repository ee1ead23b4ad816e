"""Whether what entries of a user's files state has an effect on any output of a question."""

from __future__ import annotations

from perfgrid.engine.errors import PerfgridError, together
from perfgrid.study.ledger import unread
from perfgrid.study.study import Study


def without_effect(study: Study) -> list[str]:
    """What entries of a user's files state to no effect. PerfgridError for a single value, which is meant for this."""
    lost = unread(study)
    if single := [one for one in lost if one.single]:
        raise PerfgridError(together(one.text for one in single))
    return [one.text for one in lost]
