"""The labelled grid evaluator. It knows nothing about what its formulas describe."""

from .errors import PerfgridError as PerfgridError
from .inner import InnerAxes as InnerAxes
from .namespace import xp as xp
from .registry import Registry as Registry
from .registry import alternative as alternative
from .registry import constraint as constraint
from .registry import formula as formula
from .resolver import replay as replay
from .resolver import resolve as resolve
