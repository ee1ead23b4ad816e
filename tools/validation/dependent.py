"""Units: the records of one source, cluster and release, which are not independent and are left out together."""

from __future__ import annotations

import re

from perfgrid.validation.design import convention
from perfgrid.validation.schema import Record

RELEASE = re.compile(r"\d+\.\d+")


def release_of(record: Record) -> str:
    """The release of the software by the title of the source, without a patch number; the title without a release."""
    found = RELEASE.search(record.source.title)
    return found.group() if found else record.source.title


def unit_of(record: Record) -> str:
    """The unit of a record: as the conventions of its source say, else its source."""
    unit = convention(record, "unit") or "{group}"
    return unit.format(group=record.group, release=release_of(record), device=record.device)
