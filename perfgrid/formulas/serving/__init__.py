"""The workload "inference": prefill, decoding and serving of decoder-only models.

Kernels, devices, fabrics and parameters are those of training, borrowed formula by formula; what differs (shapes by
`pass` instead of `phase`, small messages, the cache, requests) is here.
"""

from perfgrid.formulas.hardware import device, scaling
from perfgrid.formulas.kernels import flash
from perfgrid.formulas.parallelism import context_parallel
from perfgrid.formulas.parallelism import groups as parallelism
from perfgrid.formulas.transformer import architecture, attention, latent_attention, moe, parameters

from . import (
    batching,
    bounds,
    capacity,
    energy,
    experts,
    formats,
    kernels,
    latency,
    parallel,
    products,
    requests,
    serving,
)

MODULES = (
    parameters,
    device,
    scaling,
    flash,
    attention.windowed_layers_fraction,
    attention.mask_share,
    attention.mask_window,
    context_parallel.flash_calls,
    context_parallel.rank_sequence,
    latent_attention.latent_attention,
    latent_attention.rank_expanded_width,
    architecture.layer_blocks,
    architecture.rank_query_width,
    architecture.rank_context_width,
    architecture.key_heads,
    architecture.rank_key_heads,
    architecture.rank_key_width,
    architecture.rank_value_width,
    architecture.rank_ffn_size,
    architecture.rank_vocab_size,
    architecture.rank_expert_parameters,
    architecture.heads_divide,
    architecture.kv_heads_divide,
    architecture.ffn_divides,
    parallelism.layout_fills_cluster,
    parallelism.experts_fill_stage,
    parallelism.experts_exist,
    moe.expert_width_divides,
    moe.shared_width_divides,
    moe.choices_suffice,
    *products.BORROWED,
    *parallel.BORROWED,
    *energy.BORROWED,
    requests,
    formats,
    products,
    experts,
    kernels,
    parallel,
    capacity,
    latency,
    batching,
    serving,
    bounds,
    energy,
)
