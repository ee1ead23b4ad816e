"""Lengths of requests: how prompts and answers differ, and what that means for the time of a prompt.

``prompt_tokens`` and ``output_tokens`` are means, ``prompt_variation`` and ``output_variation`` coefficients of
variation. A distribution is represented by lengths with weights, as multiples of the mean (axis `length`): nodes of a
Gauss rule, exact for uniform lengths; of lognormal ones the longest in a thousand count as the shortest of them.
``length_distribution``: ``constant``, ``uniform``, ``lognormal``.
"""

import numpy as np

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.engine.graph.tables import by_label
from perfgrid.formulas.axes import INNER, at, table, total
from perfgrid.formulas.kernels.roofline import held_by_memory

from .batching import NODES, REPLACED
from .latency import WHOLE, in_pass

COUNT = INNER.size("length")
UNIFORM, UNIFORM_WEIGHTS = np.polynomial.legendre.leggauss(COUNT)
NORMAL, NORMAL_WEIGHTS = np.polynomial.hermite_e.hermegauss(COUNT)
LENGTHS = {"LENGTH": ("prompt", "output")}
LONGEST = 3.1  # standard deviations of the logarithm up to which lengths count
VARIED = ("uniform", "lognormal")
PARTS = INNER.labels["prompt_part"][:-1]  # of the time of a prompt, but attention


def of_prompt(value):
    """The value of a pass of the prefill, for single prompts."""
    return at(in_pass(value, "prefill"), load=NODES[0])


def by_length(values):
    """One value for each of the lengths."""
    return table("length", **dict(zip(INNER.labels["length"], values, strict=True)))


# ---- distributions --------------------------------------------------------------------------------------------------


@alternative(of="LENGTH_ratio", by="length_distribution", label="uniform", unit="1", source="patel2024splitwise",
             family=LENGTHS, others={"constant": 1.0})  # fmt: skip
def uniform_LENGTH_ratio(LENGTH_variation):
    """Tokens of a LENGTH over their mean, by length: evenly between 1 - v·√3 and 1 + v·√3."""
    half = xp.minimum(LENGTH_variation * 3**0.5, 1.0)
    return by_length([1 + half * float(node) for node in UNIFORM])


@alternative(of="LENGTH_ratio", by="length_distribution", label="lognormal", unit="1", source="patel2024splitwise",
             family=LENGTHS)  # fmt: skip
def lognormal_LENGTH_ratio(LENGTH_variation):
    """Tokens of a LENGTH over their mean, by length: exp(s·z), scaled to a mean of 1, with s² = ln(1 + v²).

    One in a thousand is longer than z = 3.1 and counts as that: no context holds what is far beyond, and mean powers
    would be those of lengths that hardly any request has.
    """
    width = xp.root(xp.log1p(LENGTH_variation**2))
    found = [xp.exp(width * min(float(node), LONGEST)) for node in NORMAL]
    mean = sum(float(weight) * one for weight, one in zip(NORMAL_WEIGHTS / NORMAL_WEIGHTS.sum(), found, strict=True))
    return by_length([one / mean for one in found])


FORMULAS = by_label(
    "length_distribution",
    {
        "largest_variation": (
            "1",
            "patel2024splitwise",
            "Largest coefficient of variation: of uniform lengths 1/√3, from none to twice the mean.",
        )
    },
    {"constant": (0.0,), "uniform": (0.57736,), "lognormal": (2.0,)},
)


@alternative(of="length_weight", by="length_distribution", label="uniform", unit="1", source="patel2024splitwise",
             others={"constant": 1.0 / COUNT})  # fmt: skip
def uniform_length_weight():
    """Part of the requests that each length stands for, by length: of a Gauss-Legendre rule."""
    return by_length([float(weight) / 2 for weight in UNIFORM_WEIGHTS])


@alternative(of="length_weight", by="length_distribution", label="lognormal", unit="1", source="patel2024splitwise")
def lognormal_length_weight():
    """Part of the requests that each length stands for, by length: of a Gauss-Hermite rule."""
    return by_length([float(weight / NORMAL_WEIGHTS.sum()) for weight in NORMAL_WEIGHTS])


# ---- time of a prompt by its length ---------------------------------------------------------------------------------


def time_of_tokens(x, share, attention):
    """Time of x times the tokens of the mean prompt over its own: max(a + max(w, h + t·x, c·x) + attention, f).

    a is for launches and the host. The products take as long as reading the weights, w, as those that wait for memory,
    h, and the others, which follow the tokens, t, or as their work, c. The host launches any of them in f.
    """
    fixed, read, bound, tokens, work, launched = (at(share, prompt_part=part) for part in PARTS)
    return xp.maximum(fixed + xp.maximum(read, xp.maximum(bound + tokens * x, work * x)) + attention, launched)


@formula(unit="1", source="williams2009roofline, dao2022flash, sglang2025prefillgraph")
def prefill_share(
    pass_time,
    prefill_passes,
    kernels_time,
    host_time,
    communication_time,
    late_launch_time,
    prefill_launches,
    prompt_launch_time,
    gemm_product_time,
    product_count,
    expert_product_time,
    moe_layers,
    attention_busy_time,
    remaining_cores,
    pass_flops,
    matrix_rate,
    stack_weight_memory,
    expert_weight_memory,
    achieved_hbm_bandwidth,
):
    """Parts of the time of the mean prompt, by prompt_part: what of it shorter and longer prompts take as well.

    Fixed: launches, the host, and waits for other ranks that a step of a few tokens has as well. Read: weights, once.
    Bound: products that wait for memory. Tokens: what follows them, neither fixed nor the devices' wait for the host.
    Work: what the work of products takes at least. Launched: what the host needs. Square: attention.
    """
    own, passes = of_prompt(pass_time), at(prefill_passes, load=NODES[0])
    waits = xp.minimum(of_prompt(communication_time), at(in_pass(communication_time, "decode"), load=NODES[0]))
    fixed = (at(of_prompt(kernels_time), resource="launch") + of_prompt(host_time) + waits) / own / passes
    reads = (stack_weight_memory + expert_weight_memory) / achieved_hbm_bandwidth / own / passes
    products = total(held_by_memory(gemm_product_time) * product_count, "product")
    experts = total(held_by_memory(expert_product_time), "expert_product") * moe_layers
    held = of_prompt((products + experts) / remaining_cores) / own / passes
    square = of_prompt(attention_busy_time) / own
    late = of_prompt(late_launch_time) / own / passes
    launches = at(prefill_launches, load=NODES[0]) * prompt_launch_time + of_prompt(host_time)
    return table(
        "prompt_part",
        fixed=fixed,
        read=xp.minimum(reads, xp.maximum(1 - fixed, 0.0)),
        bound=held,
        tokens=xp.maximum(1 - fixed - square - held - late, 0.0),
        work=of_prompt(pass_flops) / matrix_rate / own,
        launched=launches / own / passes,
        square=square,
    )


@alternative(of="prefill_ratio", by="length_distribution", label=VARIED, unit="1",
             source="williams2009roofline, narayanan2021", others={"constant": 1.0})  # fmt: skip
def LABEL_prefill_ratio(prompt_ratio, prefill_share, prefill_chunk_tokens, cp, computed_prompt_tokens, stage_share):
    """Time of a prefill over that of the mean prompt, by length; attention grows with the square of its tokens.

    What does not fit into one pass follows in others, of a pipeline at the pace of its fullest stage.
    """
    first = xp.minimum(prompt_ratio, xp.maximum(prefill_chunk_tokens * cp / computed_prompt_tokens, 1.0))
    square = at(prefill_share, prompt_part="square")
    whole, part = (time_of_tokens(x, prefill_share, square * x**2) for x in (prompt_ratio, first))
    return part + xp.where(prompt_ratio > first, whole - part, 0.0) * stage_share


@formula(unit="1", source="williams2009roofline, agrawal2024sarathi")
def further_prompts_ratio(prefill_share, prompt_room, prefill_sequences):
    """By how much an iteration takes longer with further prompts, over the mean prompt's time, by number of prompts.

    With as many again as come in one, and with as many as there is room for.
    """
    square, most = at(prefill_share, prompt_part="square"), xp.maximum(prompt_room, prefill_sequences)
    own, twice, full = (
        time_of_tokens(x, prefill_share, square * x) for x in (prefill_sequences, 2 * prefill_sequences, most)
    )
    return table("further", twice=twice - own, full=full - own)


@formula(unit="s", source="williams2009roofline, agrawal2024sarathi")
def begun_pass_time(
    prompt_ratio, length_weight, prefill_share, prefill_chunk_tokens, cp, computed_prompt_tokens, pass_time
):
    """Time that the last of several passes of a prompt takes beyond the part of a full one that its tokens are."""
    parts = computed_prompt_tokens / (prefill_chunk_tokens * cp)
    passes = xp.maximum(parts, 1.0)  # of the mean prompt, whose time the shares are of
    tokens = prompt_ratio * parts
    before = xp.maximum(xp.ceil(tokens * (1 - WHOLE)), 1.0) - 1
    last = xp.minimum(tokens - before, 1.0) / parts
    beyond = xp.where(before > 0, xp.maximum(time_of_tokens(last, prefill_share, 0.0) - last, 0.0), 0.0)
    return total(beyond * length_weight, "length") * passes * of_prompt(pass_time)


# ---- what lengths make of means -------------------------------------------------------------------------------------


@alternative(of="mean_prefill_ratio", by="batch_rule", label=REPLACED, unit="1", source="patel2024splitwise",
             others={"given": 1.0})  # fmt: skip
def LABEL_mean_single_ratio(prefill_ratio, length_weight):
    """Mean time of a prefill over that of the mean prompt: prompts that are computed together even out."""
    return total(prefill_ratio * length_weight, "length")


@formula(unit="1", source="patel2024splitwise")
def answer_moment(output_ratio, length_weight, decode_steps):
    """Mean powers of the length of an answer over its mean, and of one over it, by power: at least one step."""
    over = xp.maximum(output_ratio, 1 / xp.maximum(decode_steps, 1.0))
    second, third, one, two, three = (total(length_weight * over**power, "length") for power in (2, 3, -1, -2, -3))
    return table("power", second=second, third=third, inverse=one, inverse_second=two, inverse_third=three)


@formula(unit="1", source="kleinrock1975queueing")
def decoded_positions(output_tokens, output_variation):
    """Decoded positions over which running sequences are spread: (n - 1)·(1 + v²), as long answers run longer."""
    return xp.maximum(output_tokens - 1, 1.0) * (1 + output_variation**2)


# ---- constraints ----------------------------------------------------------------------------------------------------


@constraint(
    reason="lengths vary more than their distribution can (constant: not at all; uniform: 1/√3; lognormal: 2)",
    source="patel2024splitwise",
)
def lengths_follow_distribution(largest_variation, prompt_variation, output_variation):
    """The variations are those that their distribution can have."""
    return xp.maximum(prompt_variation, output_variation) <= largest_variation
