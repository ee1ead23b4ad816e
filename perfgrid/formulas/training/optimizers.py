"""Optimizers: bytes of their moments, what a step reads and writes, and moments in pages that host memory takes.

The label ``optimizer`` selects. ``adamw`` is that of the software stack (`optimizer_state_size`, `optimizer_traffic`,
`optimizer_step`). The others replace its moments; master weights stay. Quantised moments have a float32 scale for each
block of elements: 256 in bitsandbytes and in torchao, 128 for the latter's 4 bits. Embeddings keep float32 moments
beside those of bitsandbytes. Paged moments lie in unified memory: a full device moves them to its host and back.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import by_label

TENSOR = 1.0  # code of optimizer_step: fused, tensor, group, all
WIDE = 8.0  # bytes of two float32 moments
NARROW = 2 * (1 + 4 / 256)  # of two moments in 8 bits with their scales
NARROWEST = 2 * (1 / 2 + 4 / 128)  # in 4 bits
FACTORED = 0.002  # one number for each row and column of a matrix
ADAFACTOR = 84.0  # counted: squares, means, quotient, two norms, products and the addition, each a kernel of its own
FUSED = ("fused_step_traffic", "optimizer_step", "step_gradient_size")  # one kernel for each tensor
QUANTISED = ("adamw_8bit", "lion_8bit", "rmsprop_8bit")
PAGED = ("paged_adamw", "paged_adamw_8bit", "paged_lion", "paged_lion_8bit")

FORMULAS = by_label(
    "optimizer",
    {
        "optimizer_moments": ("byte", "dettmers2022optimizers", "Bytes of moments per trained parameter."),
        "table_moments": ("byte", "huggingface2026trainer", "Bytes of moments per trained parameter of an embedding."),
        "step_traffic": ("byte", "dettmers2022optimizers", "Memory traffic per parameter of one optimizer step."),
        "step_scope": ("1", "pytorch2026adam", "What an optimizer step works on at once: a code of optimizer_step."),
        "step_copy_size": ("byte", "pytorch2026adam", "Temporary bytes per parameter that a step works on at once."),
        "paged_moments": ("byte", "dettmers2023qlora", "Bytes of moments per trained parameter in unified memory."),
        "wide_tables_by_stage": (
            *("byte", "huggingface2026trainer"),
            "Float32 moments of the embedding on one device of each stage beside what it has as all weights, by stage.",
        ),
        "paging_time": ("s", "dettmers2023qlora", "Time of one step in which pages of moments move."),
    },
    {
        "adamw": ("moment_size", "moment_size", "optimizer_traffic", "optimizer_step", "optimizer_copy_size", 0, 0, 0),
        "fused_adamw": ("moment_size", "moment_size", *FUSED, 0, 0, 0),
        "paged_adamw": (WIDE, WIDE, *FUSED, WIDE, 0, None),
        "adamw_8bit": (NARROW, WIDE, *FUSED, 0, None, 0),
        "paged_adamw_8bit": (NARROW, WIDE, *FUSED, NARROW, 0, None),
        "ao_adamw_8bit": (NARROW, NARROW, *FUSED, 0, 0, 0),
        "ao_adamw_4bit": (NARROWEST, NARROWEST, *FUSED, 0, 0, 0),
        "adafactor": (FACTORED, FACTORED, ADAFACTOR, TENSOR, 4, 0, 0, 0),
        ("lion", "rmsprop_32bit"): (WIDE / 2, WIDE / 2, *FUSED, 0, 0, 0),
        "paged_lion": (WIDE / 2, WIDE / 2, *FUSED, WIDE / 2, 0, None),
        "lion_8bit": (NARROW / 2, WIDE / 2, *FUSED, 0, None, 0),
        "paged_lion_8bit": (NARROW / 2, WIDE / 2, *FUSED, NARROW / 2, 0, None),
        "rmsprop_8bit": (NARROW / 2, WIDE / 2, *FUSED, 0, None, 0),
        ("rmsprop", "adagrad", "momentum"): ("one_moment_size", "one_moment_size", *FUSED, 0, 0, 0),
        "sgd": (0, 0, *FUSED, 0, 0, 0),
    },
)


@formula(unit="byte", source="pytorch2026adam")
def one_moment_size(moment_size):
    """Bytes of one moment per parameter, in the format in which the software holds two."""
    return moment_size / 2


@formula(unit="byte", source="dettmers2022optimizers")
def master_size(optimizer_state_size, moment_size):
    """Bytes of optimizer state per parameter beside moments: float32 copies of weights (and of gradients)."""
    return optimizer_state_size - moment_size


@formula(unit="byte", source="dettmers2022optimizers")
def state_size(master_size, optimizer_moments):
    """Bytes of optimizer state per trained parameter: moments and master weights."""
    return master_size + optimizer_moments


@formula(unit="byte", source="dettmers2022optimizers")
def fused_step_traffic(gradient_size, weight_size, state_size, master_size):
    """Memory traffic per parameter of a step in one kernel: gradient read, state and weight read and written.

    A weight with a master is only written.
    """
    return gradient_size + weight_size * xp.where(master_size > 0, 1.0, 2.0) + 2 * state_size


@alternative(of="wide_tables_by_stage", by="optimizer", label=QUANTISED, unit="byte", source="huggingface2026trainer")
def LABEL_wide_tables_by_stage(
    LABEL_table_moments,
    LABEL_optimizer_moments,
    embeddings_by_stage,
    rank_embedding_parameters,
    weight_copies,
    trains_weights,
    shard,
    zero,
):
    """Float32 moments of the embedding on one device of each stage beside what it has as all weights, by stage."""
    held = weight_copies * embeddings_by_stage * rank_embedding_parameters / xp.where(zero >= 1, shard, 1.0)
    return trains_weights * (LABEL_table_moments - LABEL_optimizer_moments) * held


@alternative(of="paging_time", by="optimizer", label=PAGED, unit="s", source="dettmers2023qlora")
def LABEL_paging_time(state_parameters, LABEL_paged_moments, memory_headroom, usable_host_bandwidth):
    """Time of one step in which pages of moments move, to the host and back: those that find no place on the device."""
    moments = state_parameters * LABEL_paged_moments
    return 2 * xp.clip(moments - xp.maximum(memory_headroom, 0.0), 0.0, moments) / usable_host_bandwidth
