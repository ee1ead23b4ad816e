"""Gaps between tokens: percentiles of the time from a token of a running sequence to the next one.

A gap is an iteration, in a pipeline a round of all groups; their mean is `loaded_step_time`. Part q of the gaps hold
prompts, too, and are the longest: below 1 - q percentiles are those of steps alone, beyond it they follow from the
prompt tokens of an iteration. Its time rises with them in a line through what is computed on average, and is not less
than the host takes to launch its kernels. Mixed iterations hold no more tokens than their budget; where prompts have
passes of their own, all that have come are computed one after the other.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula
from perfgrid.engine.graph.tables import by_label
from perfgrid.formulas.axes import total

from .batching import ONE_BATCH
from .distributions import at_deviation, normal_deviation, normal_share, packed
from .latency import in_pass
from .lockstep import come_where_some
from .met_iterations import moments
from .percentiles import PERCENTILES, shape
from .rounds import some_prompts

LEAST_TOKENS = 0.05  # part of the mean tokens of an iteration with prompts that each holds at least


def weighed(values, load_weight):
    """The value at the batch that runs, of those at the tabulated ones."""
    return total(values * load_weight, "load")


FORMULAS = by_label(
    "batch_rule",
    {
        "gap_step_time": ("s", "little1961", "Mean gap between tokens beside which no prompts are computed."),
        "gap_step_variation": ("1", "kleinrock1975queueing", "Variance of the time of a step over its square."),
    },
    {ONE_BATCH: ("loop_step_time", 0.0), "rate": ("answering_step_time", "answering_step_variation")},
)


# ---- prompts of an iteration ----------------------------------------------------------------------------------------


@formula(unit="1", source="little1961")
def gathered_prompts(crowding, prefill_sequences, load_weight):
    """Prompts that have come for an iteration with some, of the busiest replica, in mean lengths."""
    return xp.maximum(weighed(crowding * prefill_sequences, load_weight), 1.0)


@formula(unit="1", source="little1961")
def gathered_spread(gathered_prompts, prefill_moment):
    """Tokens of these prompts over their mean, by statistic: a random number of them of different lengths."""
    second, third, _ = moments(prefill_moment)
    return packed(*some_prompts(come_where_some(gathered_prompts), 1 / gathered_prompts, second, third))


@formula(unit="1", source="agrawal2024sarathi")
def gathered_tokens(gathered_prompts, computed_prompt_tokens):
    """Tokens of these prompts."""
    return gathered_prompts * computed_prompt_tokens


# ---- their time -----------------------------------------------------------------------------------------------------


@formula(unit="s", source="agrawal2024sarathi")
def prompting_gap_time(crowded_added_time, prefill_passes, prompts_beside_steps, mean_prefill_ratio, load_weight):
    """Mean time that prompts add to a gap with some: mixed, of one iteration; else of all that have come."""
    passes = xp.where(prompts_beside_steps > 0, 1.0, prefill_passes)
    return weighed(crowded_added_time * passes * mean_prefill_ratio, load_weight)


@formula(unit="1", source="agrawal2024sarathi")
def prompting_gap_share(loaded_step_time, gap_step_time, prompting_gap_time, decode_steps):
    """Part of the gaps that hold prompts: what gaps are longer than steps on average, over what prompts add."""
    longer = xp.where(decode_steps > 0, xp.maximum(loaded_step_time - gap_step_time, 0.0), 0.0)
    return xp.minimum(longer / prompting_gap_time, 1.0)


@formula(unit="s", source="agrawal2024sarathi")
def prompt_token_time(busy_time, communication_time, going_on, chunk_tokens, cp, load_weight):
    """Time of the devices that one more prompt token adds to an iteration."""
    device = busy_time + communication_time
    own, beside = in_pass(device, "prefill"), in_pass(device, "decode")
    return weighed(xp.maximum(own - going_on * beside, 1e-3 * own) / (chunk_tokens * cp), load_weight)


@formula(unit="s", source="sglang2025prefillgraph")
def launched_time(prefill_launches, prompt_launch_time, busy_time, communication_time, load_weight):
    """Time in which the host launches the kernels of a pass with prompts, less that of the devices."""
    device = in_pass(busy_time + communication_time, "prefill")
    return weighed(prefill_launches * prompt_launch_time - device, load_weight)


@formula(unit="s", source="agrawal2024sarathi")
def device_added_time(added_time, late_launch_time, load_weight):
    """Time that the mean prompts of an iteration add to it if devices do not wait for launches."""
    return weighed(added_time - in_pass(late_launch_time, "prefill"), load_weight)


@formula(unit="1", source="agrawal2024sarathi", family=PERCENTILES)
def gap_prompt_tokens_PERCENTILE(
    prompting_gap_share, gathered_tokens, gathered_prompts, gathered_spread, prefill_moment, PERCENTILE_point
):
    """Prompt tokens that have come for the iteration at PERCENTILE of the gaps; the fewest where that holds none.

    Not fewer than one prompt has at the same place among prompts.
    """
    some = xp.maximum(prompting_gap_share, 1e-9)
    part = normal_deviation((normal_share(PERCENTILE_point) - (1 - prompting_gap_share)) / some)
    second, third, _ = moments(prefill_moment)
    one = shape(packed(1.0 + 0.0 * second, second - 1, third - 3 * second + 2))
    least = xp.maximum(at_deviation(part, *one), LEAST_TOKENS) / gathered_prompts
    return gathered_tokens * xp.maximum(at_deviation(part, *shape(gathered_spread)), least)


@formula(unit="s", source="agrawal2024sarathi", family=PERCENTILES)
def gap_prompt_time_PERCENTILE(
    gap_prompt_tokens_PERCENTILE,
    prompt_budget,
    prompts_beside_steps,
    prompt_token_time,
    device_added_time,
    launched_time,
    chunk_tokens,
    cp,
    load_weight,
):
    """Time that the prompts of the iteration at PERCENTILE of the gaps add to it."""
    most, come = weighed(prompt_budget, load_weight), gap_prompt_tokens_PERCENTILE
    tokens = xp.where(prompts_beside_steps > 0, xp.minimum(come, most), come)
    passes = xp.maximum(tokens / most, 1.0)
    beyond = prompt_token_time * (tokens - cp * weighed(chunk_tokens, load_weight))
    return xp.maximum(device_added_time + xp.maximum(beyond, passes * launched_time), 0.0)


@formula(unit="s", source="agrawal2024sarathi", family=PERCENTILES)
def inter_token_latency_PERCENTILE(
    gap_step_time, gap_step_variation, prompting_gap_share, gap_prompt_time_PERCENTILE, PERCENTILE_point
):
    """PERCENTILE of the gaps between tokens of running sequences, over all tokens after the first.

    With drafted tokens: from step to step, of which each yields several.
    """
    wanted = normal_share(PERCENTILE_point)
    alone = xp.maximum(1 - prompting_gap_share, 1e-9)
    deviation = normal_deviation(xp.minimum(wanted / alone, (1 + wanted) / 2))
    variance = gap_step_variation * gap_step_time**2
    step = at_deviation(deviation, *shape(packed(gap_step_time, variance, 0.0 * gap_step_time)))
    return xp.where(wanted > alone, xp.maximum(step, gap_step_time + gap_prompt_time_PERCENTILE), step)
