"""Time, memory and cost of LLM training and serving for millions of designs at once, labelled and differentiable."""

import gc as _gc
from collections.abc import Iterator as _Iterator
from contextlib import contextmanager as _contextmanager


@_contextmanager
def _without_collection() -> _Iterator[None]:
    """What imports make stays: it joins the oldest objects at once, instead of being looked through while it grows.

    That takes a tenth of a short run.
    """
    collecting, frozen = _gc.isenabled(), _gc.get_freeze_count()
    _gc.disable()
    try:
        yield
    finally:
        if not frozen:
            _gc.freeze()
            _gc.unfreeze()
        if collecting:
            _gc.enable()


with _without_collection():
    from .analysis import frontier as frontier
    from .analysis.diff import diff as diff
    from .catalog import Catalog as Catalog
    from .catalog import load_catalog as load_catalog
    from .chiplets import chiplet_cost as chiplet_cost
    from .compare import Comparison as Comparison
    from .compare import compare as compare
    from .engine import PerfgridError as PerfgridError
    from .engine import Registry as Registry
    from .engine import alternative as alternative
    from .engine import constraint as constraint
    from .engine import formula as formula
    from .engine import xp as xp
    from .engine.dataset import feasible as feasible
    from .evidence import validate as validate
    from .factored import save_factored as save_factored
    from .formulas import BREAKDOWN as BREAKDOWN
    from .free import function as function
    from .intervals import Interval as Interval
    from .intervals import interval as interval
    from .kernels import kernels as kernels
    from .network import collective_choice as collective_choice
    from .network import collective_time as collective_time
    from .optimizer.optimize import front as front
    from .optimizer.optimize import optimize as optimize
    from .reduce import distribution as distribution
    from .reduce import pareto as pareto
    from .results import open_result as open_result
    from .run import evaluate as evaluate
    from .run import explain as explain
    from .run import save as save
    from .search import best as best
    from .sensitivity import cross_elasticities as cross_elasticities
    from .sensitivity import gradient as gradient
    from .sensitivity import sensitivity as sensitivity
    from .stream import stream as stream
    from .study.study import Study as Study
    from .study.study import load_study as load_study
    from .timeline import timeline as timeline
    from .uncertainty import quantiles as quantiles
    from .uncertainty import tornado as tornado
