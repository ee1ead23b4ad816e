"""Energy of a request: kernels of its prefill and its share of decoding steps, bytes on links, and static power.

Energies of operations and bytes are those of training (`energy`). Hosts, switches and cooling are not in it
(`system_cost`), nor what turns stored weights into operands.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula, synonyms
from perfgrid.engine.graph.tables import by_label
from perfgrid.formulas.axes import at, only, table, total
from perfgrid.formulas.collectives.placement import gathered_share
from perfgrid.formulas.hardware.power import boost
from perfgrid.formulas.kernels import energy
from perfgrid.formulas.kernels.tiling import hbm_bytes

from .batching import LOOPS
from .clients import LAST, LOOP
from .experts import touched_experts
from .latency import with_steps

FORMULAS = (
    *synonyms(
        {
            "expert_format_energy": (
                "format_energy",
                "1",
                "micikevicius2022fp8",
                "Energy of an operation over 16 bits.",
            ),
            "expert_uneven_load": ("busiest_load", "1", "fedus2022switch", "Rows on the busiest over the mean rank."),
        }
    ),
    *by_label(
        "precision",
        {
            "format_energy": ("1", "stas2025ml", "Energy of a multiply-add over 16 bits."),
            "unquantised_format_energy": ("1", "dettmers2022int8", "The same in 16 bits."),
        },
        {"int8": ("fp8_format_energy", "bf16_format_energy")},
    ),
)

# ---- energy of operations -------------------------------------------------------------------------------------------


@alternative(of="gemm_format_energy", by="workload", label="inference", unit="1", source="micikevicius2022fp8")
def serving_gemm_format_energy(format_energy, unquantised_format_energy, unquantised_products):
    """Energy of an operation of each product over that in 16 bits, by product: head and router stay in 16 bits."""
    return format_energy * (1 - unquantised_products) + unquantised_format_energy * unquantised_products


@formula(unit="J", source="hong2010power")
def unquantised_operation_energy(unquantised_format_energy, half_precision_operation_energy):
    """Energy of an operation that stays in 16 bits: of attention, of recurrences."""
    return unquantised_format_energy * half_precision_operation_energy


@formula(unit="J", source="dao2023flash2")
def score_energy(flash_operations, vector_operation_energy):
    """Energy of the softmax of one score: an exponential, scaling and reductions."""
    return (1 + at(flash_operations, phase="forward")) * vector_operation_energy


# ---- kernels of a pass: one rank of every stage, mean of all experts' ranks -----------------------------------------


@formula(unit="byte", source="hong1981pebble")
def expert_mean_traffic(
    experts,
    experts_per_token,
    ep,
    expert_tokens,
    routed_share,
    router_skew,
    expert_columns,
    expert_depth,
    gemm_tile_m,
    gemm_tile_n,
    cores,
    expert_operand_size,
    expert_weight_size,
    expert_result_size,
    l2_size,
):
    """Memory traffic of the experts' products on the mean rank, by pass: of the experts that its tokens visit."""
    own = xp.maximum(experts, 1.0) / ep
    visited = xp.where(experts > 0, touched_experts(own, routed_share, expert_tokens, router_skew), 1.0)
    rows = expert_tokens * xp.maximum(experts_per_token, 1.0) / ep / visited
    shape = (rows, expert_columns, expert_depth, visited)
    sizes = (expert_operand_size, expert_weight_size, expert_result_size, l2_size)
    return hbm_bytes(*shape, gemm_tile_m, gemm_tile_n, cores, *sizes)


@formula(unit="J", source="hong2010power")
def dense_attention_energy(dense_flash_energy, uncached_share, prefix_traffic, memory_access_energy, attention_layers):
    """Energy of the attention of the prompts of a group to all their tokens, by resource: cached keys are read."""
    computed, memory = uncached_share * at(dense_flash_energy, phase="forward"), only("resource", "hbm")
    read = xp.maximum(prefix_traffic * memory_access_energy - at(computed, resource="hbm"), 0.0)
    return attention_layers * (computed + read * memory)


@formula(unit="J", source="hong2010power")
def read_token_energy(
    read_token_flops,
    read_token_traffic,
    rank_query_heads,
    step_tokens,
    score_energy,
    unquantised_operation_energy,
    crossing_byte_energy,
    memory_access_energy,
):
    """Energy of attention for one token of the cache that a step reads, by resource."""
    work = read_token_flops * unquantised_operation_energy + rank_query_heads * step_tokens * score_energy
    return energy.streamed(read_token_traffic, crossing_byte_energy, memory_access_energy, work)


@formula(unit="J", source="hong2010power")
def attention_energy(
    prefill_attention_energy, prefill_passes, read_tokens, read_token_energy, attention_layers, mixed_iterations
):
    """Energy of the attention of one pass through all layers, by resource and pass."""
    steps = attention_layers * read_tokens * read_token_energy
    return with_steps(prefill_attention_energy / prefill_passes, steps, mixed_iterations)


@formula(unit="J", source="hong2010power")
def streams_energy(streams_traffic, crossing_byte_energy, memory_access_energy):
    """Energy of all streaming kernels of one pass through all layers, by resource and pass: that of their bytes."""
    return energy.streamed(streams_traffic, crossing_byte_energy, memory_access_energy)


@formula(unit="J", source="hong2010power")
def products_energy(gemm_energy, product_count, expert_energy, moe_layers):
    """Energy of all products with weights of one pass through all layers, by resource and pass."""
    return total(gemm_energy * product_count, "product") + moe_layers * total(expert_energy, "expert_product")


@formula(unit="J", source="hong2010power")
def sustained_pass_energy(products_energy, attention_energy, mixers_energy, indexers_energy, streams_energy):
    """Energy of all kernels of one pass on one rank of every stage at the sustained clock, by resource and pass."""
    return products_energy + attention_energy + mixers_energy + indexers_energy + streams_energy


@formula(unit="s", source="pope2022inference")
def working_time(pass_time, host_time, late_launch_time):
    """Time of one pass in which devices work or wait for each other, by pass."""
    return pass_time - host_time - late_launch_time


@formula(unit="J", source="hong2010power, perfgrid2026probe")
def pass_energy(sustained_pass_energy, working_time, thermal_design_power, static_power, reachable_boost):
    """Energy of all kernels of one pass on one rank of every stage, by resource and pass: the clock follows the power.

    Passes last longer than a device takes to change its clock.
    """
    chip = only("resource", *energy.ON_CHIP)
    on_chip = total(sustained_pass_energy * chip, "resource") / working_time
    memory = total(sustained_pass_energy * (1 - chip), "resource") / working_time
    raised = boost(thermal_design_power, static_power + memory, on_chip, reachable_boost)
    return sustained_pass_energy * (chip * raised + 1 - chip)


# ---- links ----------------------------------------------------------------------------------------------------------


@formula(unit="byte", source="shoeybi2019megatron")
def pass_link_bytes(
    tp,
    cp,
    pp,
    tp_message,
    tp_all_reduces,
    tp_crossing_share,
    token_message,
    tier_copies,
    moe_exchanges,
    pipeline_message,
    pipeline_transfer_crosses,
    context_message,
    context_crosses,
    attention_layers,
):
    """Bytes that one rank of every stage sends in a pass, by pass and tier.

    All-reduces in two gathering halves, tokens to experts and back, transfers between pipeline stages, and what
    context-parallel ranks pass round: keys of a prefill, queries and results of a decoding step.
    """
    sums = 2 * gathered_share(tp) * tp_message * tp_all_reduces
    handed = (pp - 1) * pipeline_message
    passed_round = attention_layers * (cp - 1) * context_message * table("pass", prefill=1.0, decode=2.0)
    leaving = sums * tp_crossing_share + handed * pipeline_transfer_crosses + passed_round * context_crosses
    tiers = table("tier", scale_up=sums + handed + passed_round - leaving, scale_out=leaving)
    return tiers + moe_exchanges * tier_copies * token_message


# ---- a request ------------------------------------------------------------------------------------------------------


@formula(unit="1", source="yu2022orca")
def request_passes(
    tp, cp, pass_prompts, mixed_iterations, group_batch, busiest_replica_load, decode_steps, draft_tokens, draft_cost
):
    """Passes of one rank that one request takes on all ranks of its replica, by pass: its shares of those of a group.

    Drafting costs as much energy, in steps, as time. Mixed iterations with prompts are steps as well.
    """
    mean_batch = group_batch / busiest_replica_load
    steps = xp.maximum(decode_steps / mean_batch - mixed_iterations / pass_prompts, 0.0)
    return tp * cp * table("pass", prefill=1 / pass_prompts, decode=steps * (1 + draft_tokens * draft_cost))


@alternative(of="request_weight", by="batch_rule", label=LOOPS, unit="1", source="little1961",
             others={("given", "rate"): "load_weight"})  # fmt: skip
def LABEL_request_weight(left_over, rounds_in_step, unfinished_answers, asked_requests):
    """Part of the requests of a closed loop that end in full rounds, and in its last one, by load."""
    ending = rounds_in_step * left_over + unfinished_answers
    ending = xp.where(asked_requests > 0, xp.minimum(ending / xp.maximum(asked_requests, 1.0), 1.0), 0.0)
    return (1 - ending) * only("load", LOOP) + ending * only("load", LAST)


@formula(unit="J", source="hong2010power")
def request_kernel_energy(pass_energy, request_passes, request_weight):
    """Energy of all kernels of one request, by resource."""
    return total(total(pass_energy * request_passes, "pass") * request_weight, "load")


@formula(unit="J", source="zhang2024llmcompass")
def request_link_energy(pass_link_bytes, request_passes, request_weight, scale_up_byte_energy, scale_out_byte_energy):
    """Energy of the interfaces of links for one request, by tier."""
    sent = total(total(pass_link_bytes * request_passes, "pass") * request_weight, "load")
    return sent * table("tier", scale_up=scale_up_byte_energy, scale_out=scale_out_byte_energy)


@formula(unit="J", source="kandiah2021accelwattch")
def request_static_energy(static_power, idle_power, devices, served_rate, working_time, request_passes, request_weight):
    """Energy that all devices draw whatever they do, for the time between two requests that end: less while idle."""
    paid = devices / served_rate
    working = total(total(working_time * request_passes, "pass") * request_weight, "load")
    return idle_power * paid + (static_power - idle_power) * xp.minimum(working, paid)


@formula(unit="J", source="hong2010power")
def energy_per_request(request_kernel_energy, request_link_energy, request_static_energy):
    """Energy of all devices per request: operations, bytes of every level and link, and static; hosts apart."""
    return total(request_kernel_energy, "resource") + total(request_link_energy, "tier") + request_static_energy


@formula(unit="J", source="patterson2021carbon")
def energy_per_output_token(energy_per_request, output_tokens):
    """Energy of all devices per output token, that of the prompt included."""
    return energy_per_request / output_tokens


@alternative(of="energy_per_token", by="workload", label="inference", unit="J", source="patterson2021carbon")
def serving_energy_per_token(energy_per_request, prompt_tokens, output_tokens):
    """Energy of all devices per token, of prompts and outputs alike."""
    return energy_per_request / (prompt_tokens + output_tokens)


@alternative(of="average_power", by="workload", label="inference", unit="W", source="hong2010power")
def serving_average_power(energy_per_request, served_rate, devices):
    """Mean power of one device."""
    return energy_per_request * served_rate / devices
