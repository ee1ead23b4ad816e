"""Admission: an engine that decodes takes new prompts at once, looks for them now and then, or holds them back.

SGLang can receive requests only every so many steps (``polling_steps``). TensorRT-LLM can hold prompts until they fill
a pass, or until every rank of an attention-parallel group has one (``gathering_prompts``), for so many steps at most
(``gathering_steps``). Both save passes, in which running sequences wait, at the cost of later first tokens.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula
from perfgrid.formulas.axes import at

LOOP = "node_1"
ROUNDING = 1e-4

# ---- equations ------------------------------------------------------------------------------------------------------


def gathering_span(prompts, limit, arrivals):
    """Steps for which the first of the gathered prompts is held: until k have come, (k - 1)/a, at most the limit."""
    return xp.minimum(limit, xp.maximum(prompts - 1, 0.0) / xp.maximum(arrivals, 1e-9))


def held_steps(polling_steps, prompts, limit, arrivals):
    """Steps for which a prompt is held, mean: half of those between two looks, and what gathering takes.

    Over a span s that ends with the k-th prompt they wait s/2; over one that ends with the limit the first waits s and
    the m = a·s others s/2. The k-th comes after (k - 1)/a·(1 ± 1/sqrt(k - 1)) steps.
    """
    span, further = gathering_span(prompts, limit, arrivals), xp.maximum(prompts - 1, 0.0)
    expected = further / xp.maximum(arrivals * limit, 1e-9)  # steps until the last one, over the limit
    limited = xp.minimum(xp.maximum(0.5 + (expected - 1) * xp.root(further) / 2, 0.0), 1.0)
    gathering = span / 2 * (1 + limited / (1 + arrivals * span))
    return (xp.maximum(polling_steps, 1.0) - 1) / 2 + gathering


def spread_evenly(mean):
    """Three moments of a time that is anything up to twice its mean, as prompts come at any time between two looks."""
    return mean, mean**2 / 3, 0.0 * mean**3


def came_together(polling_steps, prompts, limit, arrivals, steps):
    """Prompts that are computed together where there is one: of a step, of those between two looks, or gathered ones.

    Each of b answers of n steps ends in one of them with the chance 1/n: of a = b/n that end on average, where there
    are any, a/(1 - (1 - 1/n)^b).
    """
    gathered = 1 + gathering_span(prompts, limit, arrivals) * arrivals
    looked_for = xp.maximum(arrivals * xp.maximum(polling_steps, 1.0), 1e-6)
    n = xp.maximum(steps, 1 + 1e-6)
    some = looked_for / -xp.expm1(looked_for * n * xp.log1p(-1 / n))
    return xp.maximum(some * (1 - ROUNDING), gathered)  # one prompt is one, whatever the rounding: kernels have tiles


# ---- formulas -------------------------------------------------------------------------------------------------------


@formula(unit="s", source="sglang2026arguments, nvidia2025trtllmargs")
def loop_held_time(
    polling_steps, gathering_prompts, gathering_steps, iteration_arrivals, loop_step_time, replica_batch
):
    """Mean time for which the prompt of a client is held while others decode."""
    steps = held_steps(polling_steps, gathering_prompts, gathering_steps, at(iteration_arrivals, load=LOOP))
    others = xp.minimum(xp.maximum(at(replica_batch, load=LOOP) - 1, 0.0), 1.0)
    return others * steps * loop_step_time


@formula(unit="s", source="sglang2026arguments, nvidia2025trtllmargs")
def rate_held_time(
    polling_steps, gathering_prompts, gathering_steps, lockstep_ranks, decode_steps, met_batch, step_under_way
):
    """Mean time for which a prompt that came at random is held where others decode."""
    arrivals = met_batch * lockstep_ranks / xp.maximum(decode_steps, 1.0)
    return held_steps(polling_steps, gathering_prompts, gathering_steps, arrivals) * step_under_way
