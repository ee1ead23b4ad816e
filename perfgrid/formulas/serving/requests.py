"""Requests: how many sequences run together, how many tokens a pass computes, and the contexts of decoding.

A replica (the ``tp``·``cp``·``pp`` ranks that hold the model once) runs ``replica_batch`` sequences. With pipeline
parallelism they form groups, one in each stage. A pass is the ``prefill`` of a group's prompts or one ``decode`` step
of a group.
"""

import numpy as np

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import constraint, formula
from perfgrid.formulas.axes import INNER, at, table

from .latency import with_steps

ROUNDING = 3e-7  # below what counts as a whole pass (`WHOLE`), above the precision of float32
LEAST_BUDGET = 0.05  # part of the tokens of an iteration that steps leave to prompts at least
NODES, WEIGHTS = np.polynomial.legendre.leggauss(4)

# ---- equations ------------------------------------------------------------------------------------------------------


def contexts(first, count):
    """Contexts at which a sum over ``count`` successive positions is evaluated: four nodes of a Gauss rule.

    The spread of whole numbers is that of an interval of length sqrt(count² - 1), which makes the rule exact for
    parabolas; a function linear in the context is summed exactly.
    """
    middle, half = first + (count - 1) / 2, xp.sqrt(xp.maximum(count**2 - 1, 1e-9)) / 2
    return [middle + float(node) * half for node in NODES]


# ---- sequences ------------------------------------------------------------------------------------------------------


@formula(unit="1", source="yu2022orca")
def replica_batch(tabulated_batch, dp):
    """Sequences that run together on one replica, on average over time where they are no whole number."""
    return tabulated_batch / dp


@formula(unit="1", source="narayanan2021")
def batch_groups(replica_batch, pp):
    """Groups of sequences of one replica, each in a stage of its own."""
    return xp.where(pp > 1, xp.minimum(pp, xp.maximum(replica_batch, 1.0)), 1.0)


@formula(unit="1", source="deepseek2025inference")
def batch_parts(replica_batch, batch_groups, interleaved_batches):
    """Parts into which a group is cut so that one computes while the other's tokens travel."""
    parts = xp.minimum(interleaved_batches, xp.maximum(replica_batch / batch_groups, 1.0))
    return xp.where(interleaved_batches > 1, parts, 1.0)


@formula(unit="1", source="narayanan2021")
def group_batch(replica_batch, batch_groups, batch_parts, busiest_replica_load):
    """Sequences that one pass computes: those of a group, or of a part of it, where they are most in lockstep."""
    return replica_batch * busiest_replica_load / (batch_groups * batch_parts)


# ---- tokens ---------------------------------------------------------------------------------------------------------


@formula(unit="1", source="zheng2024sglang")
def computed_prompt_tokens(prompt_tokens, prefix_hit_rate, shared_prefix_tokens, prefilled):
    """Tokens of one prompt that are computed: those that no cache of earlier prompts holds, at least the last one.

    A prefix that all prompts share is always there.
    """
    left = xp.minimum(prompt_tokens * (1 - prefix_hit_rate), prompt_tokens - shared_prefix_tokens)
    return xp.maximum(xp.where(prefilled, 0.0, left), 1.0)


@formula(unit="1", source="zheng2024sglang")
def cached_prompt_tokens(prompt_tokens, computed_prompt_tokens):
    """Tokens of one prompt that a cache of earlier prompts holds."""
    return xp.maximum(prompt_tokens - computed_prompt_tokens, 0.0)


@formula(unit="1", source="leviathan2023speculative")
def step_tokens(draft_tokens):
    """Tokens of one sequence that a decoding step computes: the next one and those drafted."""
    return 1 + draft_tokens


@formula(unit="1", source="leviathan2023speculative", where="equation 1")
def accepted_tokens(draft_tokens, draft_acceptance):
    """Tokens of one sequence that a decoding step yields on average: 1 + a + a² + ... + a^d with d drafted tokens.

    Each drafted one is accepted with the same probability a; the step's own token comes as well.
    """
    gap = xp.maximum(1 - draft_acceptance, 1e-6)
    some = (1 - (1 - gap) ** (draft_tokens + 1)) / gap
    return xp.where(draft_acceptance < 1 - 1e-6, some, draft_tokens + 1)


@formula(unit="1", source="agrawal2024sarathi")
def prompt_budget(prefill_chunk_tokens, cp, mixed_iterations, group_batch, step_tokens):
    """Tokens of prompts for which an iteration has room: of all, what the steps beside them leave."""
    whole = prefill_chunk_tokens * cp
    steps = group_batch * step_tokens + ROUNDING * whole  # no row more than kernels have tiles, however it is rounded
    return xp.maximum(whole - mixed_iterations * steps, LEAST_BUDGET * whole)


@formula(unit="1", source="agrawal2024sarathi")
def prefill_passes(prefill_sequences, computed_prompt_tokens, prompt_budget):
    """Full passes in which the prompts of one group are computed, at most so many tokens at once on one rank.

    No whole number: what a prompt leaves of its last pass is for the next one.
    """
    return xp.maximum(prefill_sequences * computed_prompt_tokens / prompt_budget, 1.0)


@formula(unit="1", source="agrawal2024sarathi")
def pass_prompts(prefill_sequences, prefill_passes):
    """Prompts of a pass with prompts; part of one where it takes several."""
    return prefill_sequences / prefill_passes


@formula(unit="1", source="agrawal2024sarathi")
def own_passes(pass_prompts):
    """Passes in which one prompt is computed, on average."""
    return xp.maximum(1 / pass_prompts, 1.0)


@formula(unit="1", source="agrawal2024sarathi")
def chunk_tokens(prefill_sequences, computed_prompt_tokens, cp, prefill_passes):
    """Prompt tokens that one rank computes in a pass with prompts; context-parallel ranks share a prompt."""
    return prefill_sequences * computed_prompt_tokens / cp / prefill_passes


@formula(unit="1", source="agrawal2024sarathi")
def pass_tokens(chunk_tokens, group_batch, mixed_iterations, step_tokens):
    """Tokens that one rank computes in a pass, by pass: beside prompts, sequences go on where iterations are mixed."""
    return with_steps(chunk_tokens, group_batch * step_tokens, mixed_iterations)


@formula(unit="1", source="yu2022orca")
def pass_sequences(group_batch, pass_prompts, mixed_iterations, step_tokens):
    """Positions whose next token is computed in a pass, by pass: one of each prompt, every one of a step."""
    return with_steps(pass_prompts, group_batch * step_tokens, mixed_iterations)


# ---- contexts -------------------------------------------------------------------------------------------------------


@formula(unit="1", source="pope2022inference")
def decode_steps(output_tokens, accepted_tokens, prefilled, decode_yields_first):
    """Decoding steps of one request after the pass that it begins with, which yields its first token.

    One that comes with its cache begins with a step: of the second token if its prefill has yielded the first.
    """
    before = xp.where(prefilled, 2.0 - decode_yields_first, 1.0)
    return xp.maximum(output_tokens - before, 0.0) / accepted_tokens


@formula(unit="1", source="pope2022inference")
def filling_positions(prompt_tokens, decoded_positions, window):
    """Decoded positions of one request that see fewer tokens than the sliding window holds."""
    limit = xp.where(window > 0, window, 1e12)
    return xp.minimum(xp.maximum(limit - prompt_tokens - 1, 0.0), decoded_positions)


@formula(unit="1", source="pope2022inference")
def decode_context(prompt_tokens, decoded_positions, filling_positions):
    """Tokens that a decoded position sees, itself among them, by position: prompt + 1 to prompt + output - 1."""
    count, first = decoded_positions, prompt_tokens + 1
    filling = contexts(first, xp.maximum(filling_positions, 1.0))
    full = contexts(first + filling_positions, xp.maximum(count - filling_positions, 1.0))
    return xp.maximum(table("position", **dict(zip(INNER.labels["position"], filling + full, strict=True))), 1.0)


@formula(unit="1", source="pope2022inference")
def position_weight(decoded_positions, filling_positions):
    """Part of the decoded positions that a node stands for, by position."""
    filling = filling_positions / decoded_positions
    parts = [part * float(w) / 2 for part in (filling, 1 - filling) for w in WEIGHTS]
    return table("position", **dict(zip(INNER.labels["position"], parts, strict=True)))


@formula(unit="1", source="kwon2023vllm")
def longest_context(prompt_tokens, output_tokens):
    """Tokens of one request in the cache when it ends."""
    return prompt_tokens + output_tokens


# ---- constraints ----------------------------------------------------------------------------------------------------


@constraint(reason="there are fewer sequences than data-parallel replicas", source="pope2022inference")
def replicas_have_work(tabulated_batch, dp, batch_is_given):
    """Every replica runs at least one sequence of a batch that the study states."""
    return (at(tabulated_batch, load="node_1") >= dp * (1 - 1e-9)) | (batch_is_given == 0)


@constraint(reason="the shared prefix is longer than a prompt", source="zheng2024sglang")
def prompts_hold_the_prefix(shared_prefix_tokens, prompt_tokens):
    """The shared prefix is part of every prompt."""
    return shared_prefix_tokens <= prompt_tokens


@constraint(reason="there are more pipeline stages than layers", source="narayanan2021")
def stages_have_layers(layers, pp):
    """Every stage of the pipeline has a layer."""
    return layers >= pp
