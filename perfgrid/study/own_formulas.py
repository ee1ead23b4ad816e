"""Files of the user's own formulas: Python modules that are run, on the command line with ``--formulas``."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from perfgrid.catalog.reading import read_text
from perfgrid.engine.errors import OWN_FILE, PerfgridError, in_own_file
from perfgrid.engine.graph.registry import Registry, marked

SUFFIX = ".py"


class OwnFormulas(tuple[Callable[..., Any], ...]):
    """The marked functions of a file, in its order. Another process runs the file itself, under the same path."""

    file: Path

    def __reduce__(self) -> tuple[Any, ...]:
        return own_formulas, (self.file,)


def own_formulas(path: Path | None) -> tuple[Callable[..., Any], ...]:
    """The formulas, alternatives and constraints that a Python file defines; none without a file. The file is run.

    PerfgridError for a file that is none, that raises an error or that defines no formula.
    """
    if path is None:
        return ()
    if path.suffix != SUFFIX:
        raise PerfgridError(f"{path}: a file of formulas is a Python module; its name ends in {SUFFIX}")
    text, whole = read_text(path), str(path.resolve())
    if "\0" in text:  # a ValueError before Python 3.11.4
        raise PerfgridError(f"{path}, line 1: not valid Python: it contains null bytes")
    module = ModuleType(str(path))  # no name that another module could have
    vars(module).update({"__file__": whole, OWN_FILE: str(path)})
    sys.modules[module.__name__] = module  # dataclasses and typing look their module up
    linecache.checkcache(whole)  # the hash of a formula is that of its text
    try:
        exec(compile(text, whole, "exec", dont_inherit=True), vars(module))
        found = OwnFormulas(marked(module))
        Registry.collect(found)
    except SyntaxError as error:
        raise PerfgridError(f"{path}, line {error.lineno or 1}: not valid Python: {error.msg}") from None
    except (MemoryError, RecursionError) as error:  # of the parser too
        raise PerfgridError(in_own_file(error) or f"{path}: not valid Python: too deeply nested") from None
    except (Exception, SystemExit) as error:
        raise PerfgridError(in_own_file(error) or f"{path}: {error}") from None
    if not found:
        raise PerfgridError(f"{path} defines no formula: no function has @formula, @alternative or @constraint")
    found.file = Path(whole)
    return found
