"""What no serving system beats, weights and cache read once and products at the peak rate; and what bounds kernels."""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula
from perfgrid.formulas.axes import SERVED, at, table, total

from .experts import touched_experts
from .latency import in_pass


@formula(unit="FLOP", source="pope2022inference")
def pass_flops(gemm_flops, product_count, expert_flops, moe_layers, indexers_product_flops):
    """Floating-point work of all products with weights of one pass on the mean rank, by pass (without attention)."""
    dense = total(gemm_flops * product_count, "product")
    return dense + moe_layers * total(expert_flops, "expert_product") + indexers_product_flops


@formula(unit="byte", source="pope2022inference")
def touched_weight_memory(
    product_weight_memory,
    expert_columns,
    expert_depth,
    experts,
    ep,
    routed_share,
    expert_tokens,
    expert_weight_size,
    moe_layers,
    index_weight_memory,
):
    """Weights that one decoding pass reads, on the mean rank of every stage together."""
    touched = touched_experts(experts / ep, routed_share, in_pass(expert_tokens, "decode"))
    experts = moe_layers * touched * total(expert_columns * expert_depth, "expert_product") * expert_weight_size
    return total(product_weight_memory, "product") + experts + index_weight_memory


@formula(unit="byte", source="pope2022inference")
def step_cache_traffic(
    read_tokens, layer_token_cache, attention_layers, group_batch, sequence_state_size, index_cache_size, index_contexts
):
    """Cache that one decoding step of one group reads on one rank of each stage, mean over the positions."""
    keys = attention_layers * read_tokens * layer_token_cache + index_cache_size * in_pass(index_contexts, "decode")
    return keys + 2 * group_batch * sequence_state_size


@formula(unit="s", source="pope2022inference")
def step_bound_time(
    touched_weight_memory, step_cache_traffic, hbm_bandwidth, pass_flops, usable_peak_rate, batch_parts
):
    """Least time of a decoding step: weights and cache at the memory's rate, or products at the peak rate."""
    memory = (touched_weight_memory + step_cache_traffic) / hbm_bandwidth
    return batch_parts * xp.maximum(memory, in_pass(pass_flops, "decode") / usable_peak_rate)


@formula(unit="s", source="pope2022inference")
def prefill_bound_time(
    pass_flops, usable_peak_rate, prefix_traffic, attention_layers, hbm_bandwidth, prefill_passes, awaited_passes, pp
):
    """Least time to the first token of a request: products at the peak rate, or the cache of earlier prompts read."""
    cache = attention_layers * prefix_traffic / prefill_passes / hbm_bandwidth
    return xp.maximum(in_pass(pass_flops, "prefill") / usable_peak_rate, cache) * awaited_passes / pp


@formula(unit="s", source="pope2022inference")
def request_bound_time(prefill_bound_time, step_bound_time, decode_steps, load_weight):
    """Least time of a request."""
    return total((prefill_bound_time + decode_steps * step_bound_time) * load_weight, "load")


@formula(unit="1", source="williams2009roofline")
def decode_bandwidth_utilization(
    touched_weight_memory, step_cache_traffic, hbm_bandwidth, decode_step_time, batch_parts, load_weight
):
    """Part of the peak memory bandwidth that reading weights and cache takes in a step, while a stage works."""
    traffic = batch_parts * (touched_weight_memory + step_cache_traffic)
    return total(traffic / hbm_bandwidth / decode_step_time * load_weight, "load")


@formula(unit="1", source="chowdhery2022palm", sense="most")
def prefill_flops_utilization(prefill_bound_time, prefill_time, load_weight):
    """Part of the peak rate that the products of the prefill reach (attention not counted)."""
    return total(prefill_bound_time / prefill_time * load_weight, "load")


# ---- kernels: time of their memory traffic over time of their work on chip ------------------------------------------


@formula(unit="1", source="williams2009roofline, guo2025")
def prefill_attention_memory_ratio(
    flash_streamed_traffic, flash_exposed_traffic, flash_compute_time, mask_share, achieved_hbm_bandwidth
):
    """Time of the memory traffic of the fused kernel over time of its work on chip, forward pass."""
    bytes_moved = total(at(flash_streamed_traffic + flash_exposed_traffic, phase="forward") * mask_share, "mask")
    on_chip = total(total(at(flash_compute_time, phase="forward"), "resource") * mask_share, "mask")
    return bytes_moved / achieved_hbm_bandwidth / on_chip


@formula(unit="1", source="williams2009roofline, kundu2024")
def kernel_memory_ratio(
    gemm_hbm_traffic,
    gemm_chip_time,
    product_count,
    expert_hbm_traffic,
    expert_chip_time,
    moe_layers,
    prefill_attention_memory_ratio,
    read_token_traffic,
    read_token_chip_time,
    attention_layers,
    achieved_hbm_bandwidth,
):
    """Time of memory traffic over time on chip of each kernel, by pass and kernel: above 1 memory bounds it.

    0 for kernels that the model does not have. Launches count for neither side. Attention of the prefill cannot hide
    all of its traffic and waits for both.
    """

    def ratio(traffic, chip_time, count):
        held = xp.where(count > 0, 1.0, 0.0)
        return held * traffic / achieved_hbm_bandwidth / total(chip_time, "resource")

    products = ratio(gemm_hbm_traffic, gemm_chip_time, product_count)
    experts = ratio(expert_hbm_traffic, expert_chip_time, moe_layers)
    step = read_token_traffic / achieved_hbm_bandwidth / read_token_chip_time
    attention = table("pass", prefill=prefill_attention_memory_ratio, decode=step)
    return table(
        "kernel",
        **{name: at(products, product=name) for name in SERVED},
        expert_up=at(experts, expert_product="expert_up"),
        expert_down=at(experts, expert_product="expert_down"),
        attention=attention * xp.where(attention_layers > 0, 1.0, 0.0),
    )
