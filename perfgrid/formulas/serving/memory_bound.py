"""Which kernels of a pass memory bounds: time of their memory traffic over time of their work on chip."""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula
from perfgrid.formulas.axes import INNER, at, table, total


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
        **{name: at(products, product=name) for name in INNER.labels["product"]},
        expert_up=at(experts, expert_product="up"),
        expert_down=at(experts, expert_product="down"),
        attention=attention * xp.where(attention_layers > 0, 1.0, 0.0),
    )
