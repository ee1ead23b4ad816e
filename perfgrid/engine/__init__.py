"""The labelled grid evaluator. It knows nothing about what its formulas describe."""

from perfgrid.engine.graph.inner_axes import InnerAxes as InnerAxes
from perfgrid.engine.graph.namespace import xp as xp
from perfgrid.engine.graph.registry import Registry as Registry
from perfgrid.engine.graph.registry import alternative as alternative
from perfgrid.engine.graph.registry import constraint as constraint
from perfgrid.engine.graph.registry import formula as formula
from perfgrid.engine.graph.resolver import replay as replay
from perfgrid.engine.graph.resolver import resolve as resolve

from .errors import PerfgridError as PerfgridError
