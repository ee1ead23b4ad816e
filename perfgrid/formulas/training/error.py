"""How far a predicted step may be off, by the error that predictions for its software have been found to have.

The errors are those of published measurements (docs/accuracy.md): of a prediction for a system that took no part, and
of the ratio of two predictions, which share what is wrong with the stack and the machine of one source. Ranges of
single assumptions are propagated by samples (`perfgrid.uncertainty`), not here.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula

CENTRAL_90 = 1.645  # standard deviations of the ends of the central 90 % of a normal distribution
ONE_SIDED_90 = 1.2816  # and up to which 90 % of all values lie


@formula(unit="1", source="jcgm2008gum")
def step_error(model_error, expert_error, experts):
    """Standard deviation of ln(predicted / measured) of a step: of its stack, at least that of mixtures of experts."""
    return xp.where(experts > 0, xp.maximum(model_error, expert_error), model_error)


@formula(unit="s", source="jcgm2008gum")
def step_time_low(step_time, step_error):
    """Lower end of the interval in which 90 of 100 measured steps are expected."""
    return step_time * xp.exp(-CENTRAL_90 * step_error)


@formula(unit="s", source="jcgm2008gum")
def step_time_high(step_time, step_error):
    """Upper end of the interval in which 90 of 100 measured steps are expected."""
    return step_time * xp.exp(CENTRAL_90 * step_error)
