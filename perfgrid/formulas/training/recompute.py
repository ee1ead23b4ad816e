"""Recomputation of activations in the backward pass: none, selective (attention core) or full (whole layers).

Only two counts depend on the mode; every time, call and FLOP that is repeated is a product with one of them. Beside any
mode but ``full``, which repeats everything, single modules may be computed again, by flags: their outputs are dropped.
The label ``layers`` recomputes a stated number of layers of each stage whole and nothing else. The label ``least``
leaves the mode to the system: the least recomputation that fits the memory, as few whole layers as possible.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import bind, by_label
from perfgrid.formulas.axes import at, largest_of_kinds, of_kinds, table, total
from perfgrid.formulas.pipelines.stages import largest_of_stages

from .memory import layer_activations_by_stage, repeated_activations
from .moments import forward_end, gradients_complete

RECOMPUTED = ("none", "selective", "full_in_part", "full")  # what is computed again, least first

FORMULAS = by_label(
    "recompute",
    {
        "layer_recomputed": ("1", "korthikanti2022", "Repetitions of a layer outside its attention core."),
        "core_recomputed": ("1", "korthikanti2022", "Repetitions of the unfused attention core."),
        "layer_activations": (
            *("byte", "korthikanti2022"),
            "Activations of one layer and microbatch kept for the backward pass.",
        ),
        "recompute_choice": ("1", "korthikanti2022", "What is computed again: the index of RECOMPUTED.", RECOMPUTED),
    },
    {
        "none": (0, 0, None, 0),
        "selective": ("selective_share", 1, None, 1),  # in Megatron-LM the attention core only
        "full": (1, 1, "layer_input_activations", 3),
        "layers": ("stated_layers_share", "stated_layers_share", None, None),  # of the mean layer
    },
)


def _mode(of, label):
    return alternative(of=of, by="recompute", label=label, unit="1", source="korthikanti2022")


def _choice(label):
    about = {"unit": "1", "source": "korthikanti2022", "flags": RECOMPUTED}
    return alternative(of="recompute_choice", by="recompute", label=label, **about)


# ---- a stated number of whole layers (the block method of Megatron-LM) -----------------------------------------------


@formula(unit="1", source="nvidia2026recompute")
def stated_layers_share(recompute_layers, stage_layers):
    """Part of the layers of a stage that a study recomputes whole."""
    return xp.minimum(recompute_layers / stage_layers, 1.0)


@alternative(of="layer_activations", by="recompute", label="layers", unit="byte", source="nvidia2026recompute")
def stated_layer_activations(stated_layers_share, none_layer_activations, full_layer_activations):
    """Activations of the mean layer and a microbatch kept for the backward pass, with some layers recomputed whole."""
    return stated_layers_share * full_layer_activations + (1 - stated_layers_share) * none_layer_activations


@_choice("layers")
def stated_recompute_choice(stated_layers_share):
    """What is computed again, with some layers recomputed whole."""
    return xp.where(stated_layers_share >= 1, 3.0, xp.where(stated_layers_share > 0, 2.0, 0.0))


# ---- single modules -------------------------------------------------------------------------------------------------


@formula(unit="1", source="nvidia2026recompute", family={"MODULE": ("norms", "activation_function")})
def MODULE_dropped(recompute_MODULE):
    """1 where outputs of the MODULE of a layer are dropped and computed again."""
    return xp.where(recompute_MODULE, 1.0, 0.0)


@formula(unit="1", source="nvidia2026recompute")
def latents_dropped(recompute_latents, latent_attention):
    """1 where what latents are expanded to (by norms, projections up and rotary) is dropped and computed again."""
    return xp.where(recompute_latents, latent_attention, 0.0)


@formula(unit="1", source="nvidia2026recompute")
def activation_function_recomputed(recompute_activation_function, layer_recomputed):
    """Repetitions of the activation function of a layer beside those of whole layers."""
    return xp.where(recompute_activation_function, 1 - layer_recomputed, 0.0)


@formula(unit="1", source="nvidia2026recompute")
def latents_recomputed(recompute_latents, latent_attention, layer_recomputed):
    """Repetitions of what latents are expanded to beside those of whole layers."""
    return xp.where(recompute_latents, latent_attention, 0.0) * (1 - layer_recomputed)


@formula(unit="1", source="nvidia2026recompute")
def recomputed_streams(
    recompute_norms, recompute_activation_function, recompute_latents, latent_attention, layer_recomputed, layer_streams
):
    """How often each streaming kernel of single modules runs again in one layer, by stream_kernel; experts apart."""
    function, latents = (
        xp.where(recompute_activation_function, 1.0, 0.0),
        xp.where(recompute_latents, latent_attention, 0),
    )
    dropped = table(
        "stream_kernel",
        norm=xp.where(recompute_norms, 1.0, 0.0),
        residual=0.0,
        activation=function,
        shared_activation=function,
        latent_norm=latents,
        rotary=latents,
        softmax=0.0,
        embedding=0.0,
        loss=0.0,
        bias=0.0,
        ffn_bias=0.0,
    )
    return dropped * (1 - layer_recomputed) * layer_streams


@formula(unit="s", source="nvidia2026recompute")
def module_recompute_time(
    gemm_time,
    latent_gemms,
    latents_recomputed,
    stream_time,
    recomputed_streams,
    expert_stream_time,
    layer_expert_streams,
    activation_function_recomputed,
):
    """Time to compute the outputs of single modules of one layer again, by resource."""
    functions = at(expert_stream_time * layer_expert_streams, phase="forward", expert_stream_kernel="expert_activation")
    products = at(gemm_time, phase="forward") * latent_gemms * latents_recomputed
    streams = at(stream_time, phase="forward") * recomputed_streams
    again = total(products, "product") + total(streams, "stream_kernel")
    return again + activation_function_recomputed * functions


# ---- the least recomputation that fits ------------------------------------------------------------------------------
# Every mode is tabulated along `recompute_mode`; the first whose memory fits is taken, and where neither of the first
# two does as many layers of each stage are recomputed whole as must be (the block method of Megatron-LM).


@formula(unit="byte", source="korthikanti2022")
def mode_activations(none_layer_activations, selective_layer_activations, full_layer_activations):
    """Activations of one layer and microbatch kept for the backward pass, by recompute_mode."""
    return table(
        "recompute_mode",
        none=none_layer_activations,
        selective=selective_layer_activations,
        full=full_layer_activations,
    )


@formula(unit="1", source="korthikanti2022", family={"PART": ("layer", "core")})
def mode_PART_recomputed(none_PART_recomputed, selective_PART_recomputed, full_PART_recomputed):
    """Repetitions of the PART of a layer, by recompute_mode."""
    return table(
        "recompute_mode",
        none=none_PART_recomputed,
        selective=selective_PART_recomputed,
        full=full_PART_recomputed,
    )


@formula(unit="byte", source="korthikanti2022")
def mode_kept_activations(
    in_flight_by_stage,
    kind_layers_by_stage,
    mtp_layers_by_stage,
    last_kind,
    resident_share,
    mode_activations,
    outer_activations_by_stage,
):
    """Activations of one device of each stage without those of its head, by recompute_mode and stage."""
    layers = (in_flight_by_stage, kind_layers_by_stage, mtp_layers_by_stage, last_kind, resident_share)
    return layer_activations_by_stage(*layers, mode_activations) + outer_activations_by_stage


@formula(unit="byte", source="korthikanti2022")
def mode_layer_working(
    kind_layers,
    layer_linear_activations,
    dropped_activations,
    layer_score_activations,
    expanded_activations,
    mode_layer_recomputed,
    mode_core_recomputed,
    latents_dropped,
    unfused,
    layers_in_transit,
    mode_activations,
    steady_working_memory,
):
    """Space in use while a layer runs backward, by recompute_mode."""
    parts = (layer_linear_activations + dropped_activations, layer_score_activations, expanded_activations)
    repeated = repeated_activations(*parts, mode_layer_recomputed, mode_core_recomputed, latents_dropped, unfused)
    of_layers = largest_of_kinds(kind_layers, repeated + layers_in_transit * mode_activations)
    return of_layers + steady_working_memory


@formula(unit="byte", source="pytorch2026amp")
def mode_cached_casts(kind_layers_by_stage, layer_cast_weights, mode_layer_recomputed):
    """Copies of weights of recomputed layers that autocast caches until the forward pass ends, by recompute_mode."""
    return mode_layer_recomputed * of_kinds(kind_layers_by_stage, layer_cast_weights)


@formula(unit="byte", source="ren2021offload")
def mode_loss_working(kind_layers, layers_in_transit, mode_activations, loss_working_memory):
    """Space in use while the loss is computed, by recompute_mode."""
    return largest_of_kinds(kind_layers, layers_in_transit * mode_activations) + loss_working_memory


@formula(unit="byte", source="korthikanti2022")
def whole_layer_working(mode_layer_working):
    """Space in use while a layer runs backward that is recomputed whole."""
    return at(mode_layer_working, recompute_mode="full")


def memory_of_modes(
    state, state_in_passes, kept, in_flight, heads, forward_head, head, casts, loss_space, layer_space, step, reserved
):
    """Memory of one device of the fullest stage at its largest moment, by recompute_mode."""
    forward, backward = (forward_end(state_in_passes, kept, heads, of) for of in (forward_head, head))
    loss = xp.maximum(forward + casts, backward) + loss_space
    layer = xp.maximum(state_in_passes + kept, gradients_complete(state, kept, in_flight)) + layer_space
    return largest_of_stages(xp.maximum(xp.maximum(loss, layer), step)) + reserved


def full_share(memory, capacity, stage_layers):
    """Part of the layers of a stage that is recomputed whole, the others selectively, so that just all of it fits.

    Whole layers are counted; the space in which one of them is repeated is needed however few there are.
    """
    kept, dropped = (at(memory, recompute_mode=mode) for mode in ("selective", "full"))
    frees = kept > dropped  # not where activations lie in host memory: then all layers or none
    share = xp.where(frees, (kept - capacity) / xp.where(frees, kept - dropped, capacity), 1.0)
    return xp.clip(xp.ceil(share * stage_layers) / stage_layers, 0.0, 1.0)


@formula(unit="1", source="nvidia2026recompute")
def mode_share(mode_whole_memory, mode_memory, usable_memory, stage_layers):
    """Part of the layers in each mode with the least recomputation whose memory fits, by recompute_mode.

    Nothing or the attention core of all layers where that fits, otherwise as many whole layers as must be; all where
    nothing fits.
    """
    fits = xp.where(mode_memory <= usable_memory, 1.0, 0.0)
    none = at(fits, recompute_mode="none")
    selective = (1 - none) * at(fits, recompute_mode="selective")
    full = (1 - none - selective) * full_share(mode_whole_memory, usable_memory, stage_layers)
    return table("recompute_mode", none=none, selective=1 - none - full, full=full)


MODE_MEMORY = (
    "state_memory_by_stage state_in_passes_by_stage mode_kept_activations in_flight_by_stage device_heads_by_stage "
    "forward_head_activations head_activations mode_cached_casts mode_loss_working SPACE optimizer_step_by_stage "
    "reserved_memory"
)
FORMULAS = (
    *FORMULAS,
    *bind(
        *(
            memory_of_modes,
            "mode_memory",
            MODE_MEMORY.replace("SPACE", "mode_layer_working"),
            "byte",
            "korthikanti2022",
        ),
        "Memory of one device of the fullest stage, by recompute_mode.",
    ),
    *bind(
        *(memory_of_modes, "mode_whole_memory", MODE_MEMORY.replace("SPACE", "whole_layer_working"), "byte"),
        *(
            "korthikanti2022",
            "Memory of one device of the fullest stage if one layer is repeated whole, by recompute_mode.",
        ),
    ),
)


@alternative(of="layer_activations", by="recompute", label="least", unit="byte", source="korthikanti2022")
def least_layer_activations(mode_share, mode_activations):
    """Activations of one layer and microbatch kept for the backward pass with the least recomputation that fits."""
    return total(mode_share * mode_activations, "recompute_mode")


@_mode("layer_recomputed", "least")
def least_layer_recomputed(mode_share, mode_layer_recomputed):
    """Repetitions of a layer outside its attention core, with the least recomputation that fits."""
    return total(mode_share * mode_layer_recomputed, "recompute_mode")


@_mode("core_recomputed", "least")
def least_core_recomputed(mode_share, mode_core_recomputed):
    """Repetitions of the unfused attention core, with the least recomputation that fits."""
    return total(mode_share * mode_core_recomputed, "recompute_mode")


@_choice("least")
def least_recompute_choice(mode_share):
    """What is computed again: the least that fits.

    ``full_in_part``: some layers whole (`layer_recomputed` is their share), the attention core of the others.
    """
    full, none = at(mode_share, recompute_mode="full"), at(mode_share, recompute_mode="none")
    some, every = xp.where(full > 0, 1.0, 0.0), xp.where(full >= 1, 1.0, 0.0)
    return xp.where(some > 0, 2 + every, 1 - none)
