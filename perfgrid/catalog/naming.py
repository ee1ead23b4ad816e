"""What entries, axes, workloads and labels may be called, so that command lines, files and folders can hold it.

Who writes a study or a catalog chooses names by the rule of `check_name`; files of results hold names that follow from
them and those of a user's own formulas, by the wider one of `is_name`.
"""

from __future__ import annotations

import re
from typing import Any

from perfgrid.engine.errors import PerfgridError, printable, shown

from .schema import is_finite

LONGEST = 100  # characters of a name, of a label twice as many
LARGEST = 2**53  # whole number that is a label: floating point holds it and its neighbours
MOST_BYTES = 2 * LONGEST
NAMES = f"should have at most {MOST_BYTES} bytes and neither / nor \\ in it"
_NAME = re.compile(r"\w[\w+-]*", re.ASCII)
_ENTRY = re.compile(r"\w[\w.+-]*", re.ASCII)


def check_name(name: Any, where: str, dots: bool = False) -> None:
    """PerfgridError unless an axis or a workload may have this name; with ``dots``, an entry of the catalog."""
    if not isinstance(name, str) or len(name) > LONGEST or not (_ENTRY if dots else _NAME).fullmatch(name):
        signs = f"_ {'. ' if dots else ''}+ -"
        raise PerfgridError(
            f"{where}: a name may hold only letters, digits and the signs {signs}, at most {LONGEST}, and begins "
            f"with a letter, a digit or _; found {shown(name)}"
        )


def is_name(text: str) -> bool:
    """Whether a name is no path: it becomes a member of an archive, a folder of a store, a variable of a file."""
    return text not in ("", ".", "..") and not set(text) & {"/", "\\", "\0"} and len(text.encode()) <= MOST_BYTES


def check_label(label: Any, where: str) -> None:
    """PerfgridError unless a row of an axis may have this label: a text of one line, or a number."""
    if isinstance(label, str):
        legal = 0 < len(label) <= 2 * LONGEST and printable(label) == label and label == label.strip()
    else:
        legal = isinstance(label, (int, float)) and not isinstance(label, bool) and is_finite(label)
        legal = legal and (isinstance(label, float) or abs(label) <= LARGEST)
    if not legal:
        raise PerfgridError(
            f"{where}: a label is a finite number, or a text of 1 to {2 * LONGEST} characters in one line without "
            f"spaces around it; found {shown(label)}"
        )
