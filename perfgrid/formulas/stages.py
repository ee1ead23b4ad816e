"""The stages of a pipeline: what each holds, how long it takes forward and backward, and which is the slowest.

The stages are a family: ``first`` (with the embedding), ``middle`` (present from three stages on), ``last`` (with the
output head). Layers that do not divide are balanced: a stage has the average rounded up or one less; the last, then the
first, then the latest others have less. A pipeline of one stage is first and last at once. With chunks each device
holds several virtual stages; the layer that the first stage lacks is missing in its first chunk, that of the last stage
in its last chunk.
"""

from perfgrid.engine import xp
from perfgrid.engine.registry import constraint, formula

STAGES = {"STAGE": ("first", "middle", "last")}
PARTS = {"PART": ("layers", "embeddings", "heads")}

# ---- equations ------------------------------------------------------------------------------------------------------


def pick_largest(first, middle, last, of_first, of_middle, of_last):
    """The entry that belongs to the largest of three values (the first of equals)."""
    return xp.where(first >= xp.maximum(middle, last), of_first, xp.where(middle >= last, of_middle, of_last))


# ---- what a stage holds ---------------------------------------------------------------------------------------------


@formula(unit="1", source="narayanan2021")
def stage_layers(layers, pp):
    """Layers of the fullest stage."""
    return xp.ceil(layers / pp)


@formula(unit="1", source="grattafiori2024llama3")
def missing_layers(stage_layers, layers, pp):
    """Layers that full stages would have beyond those of the model."""
    return stage_layers * pp - layers


@formula(unit="1", source="grattafiori2024llama3")
def first_stage_layers(stage_layers, missing_layers):
    """Layers of the first stage."""
    return stage_layers - xp.where(missing_layers > 1, 1.0, 0.0)


@formula(unit="1", source="narayanan2021")
def middle_stage_layers(stage_layers, pp):
    """Layers of the fullest stage between the first and the last; 0 where there is none."""
    return xp.where(pp > 2, stage_layers, 0.0)


@formula(unit="1", source="grattafiori2024llama3")
def last_stage_layers(stage_layers, missing_layers):
    """Layers of the last stage."""
    return stage_layers - xp.where(missing_layers > 0, 1.0, 0.0)


@formula(unit="1", source="narayanan2021")
def short_middle_stages(missing_layers):
    """Stages just before the last one that have a layer less than those before them."""
    return xp.maximum(missing_layers - 2, 0.0)


@formula(unit="1", source="shoeybi2019megatron")
def first_stage_embeddings():
    """Embeddings of the first stage."""
    return 1.0


@formula(unit="1", source="shoeybi2019megatron", family={"PART": ("embeddings", "heads")})
def middle_stage_PART():
    """The PART of a stage between the first and the last: none."""
    return 0.0


@formula(unit="1", source="shoeybi2019megatron")
def last_stage_embeddings(pp):
    """Embeddings of the last stage: only if it is the first as well."""
    return xp.where(pp > 1, 0.0, 1.0)


@formula(unit="1", source="shoeybi2019megatron")
def first_stage_heads(pp):
    """Output heads of the first stage: only if it is the last as well."""
    return xp.where(pp > 1, 0.0, 1.0)


@formula(unit="1", source="shoeybi2019megatron")
def last_stage_heads():
    """Output heads of the last stage."""
    return 1.0


# ---- times ----------------------------------------------------------------------------------------------------------


@formula(unit="s", source="narayanan2021", family=STAGES)
def STAGE_stage_time(
    STAGE_stage_layers, STAGE_stage_embeddings, STAGE_stage_heads, layer_time, embedding_time, head_time
):
    """Forward and backward time of the STAGE stage for one microbatch."""
    return STAGE_stage_layers * layer_time + STAGE_stage_embeddings * embedding_time + STAGE_stage_heads * head_time


@formula(unit="s", source="narayanan2021", family=STAGES)
def STAGE_stage_forward_time(
    STAGE_stage_layers,
    STAGE_stage_embeddings,
    STAGE_stage_heads,
    layer_forward_time,
    embedding_forward_time,
    head_forward_time,
):
    """Forward time of the STAGE stage for one microbatch."""
    return (
        STAGE_stage_layers * layer_forward_time
        + STAGE_stage_embeddings * embedding_forward_time
        + STAGE_stage_heads * head_forward_time
    )


@formula(unit="s", source="narayanan2021", family=STAGES)
def STAGE_stage_backward_time(STAGE_stage_time, STAGE_stage_forward_time):
    """Backward time of the STAGE stage for one microbatch, recomputation included."""
    return STAGE_stage_time - STAGE_stage_forward_time


@formula(unit="1", source="narayanan2021", family=PARTS)
def slowest_stage_PART(
    first_stage_time, middle_stage_time, last_stage_time, first_stage_PART, middle_stage_PART, last_stage_PART
):
    """The PART of the slowest stage."""
    return pick_largest(
        first_stage_time, middle_stage_time, last_stage_time, first_stage_PART, middle_stage_PART, last_stage_PART
    )


@formula(unit="s", source="narayanan2021")
def slowest_stage_time(first_stage_time, middle_stage_time, last_stage_time):
    """Forward and backward time of the slowest stage for one microbatch: the pace of the pipeline."""
    return xp.maximum(first_stage_time, xp.maximum(middle_stage_time, last_stage_time))


@formula(unit="s", source="narayanan2021")
def model_pass_time(layers, layer_time, embedding_time, head_time):
    """Forward and backward time of one microbatch through all stages."""
    return layers * layer_time + embedding_time + head_time


@formula(unit="1", source="narayanan2021")
def microbatches(global_batch, dp, microbatch):
    """Microbatches that each pipeline processes per step."""
    return xp.maximum(xp.ceil(global_batch / (dp * microbatch)), 1.0)


# ---- what divides what ----------------------------------------------------------------------------------------------


@constraint(
    kind="illegal", reason="data-parallel ranks times microbatch do not divide the global batch", source="narayanan2021"
)
def batch_divides(global_batch, dp, microbatch):
    """Every pipeline processes the same number of full microbatches."""
    return global_batch % (dp * microbatch) == 0


@constraint(
    kind="illegal", reason="an interleaved schedule needs a multiple of pp microbatches", source="narayanan2021"
)
def microbatches_interleave(microbatches, pp, chunks):
    """Interleaved schedules process microbatches in groups of as many as there are stages."""
    return (chunks == 1) | (microbatches % pp == 0)


@constraint(
    kind="illegal",
    reason="pp x chunks divide neither the layers nor one or two more (the first and the last chunk may lack one)",
    source="grattafiori2024llama3",
)
def layers_interleave(missing_layers, stage_layers, chunks):
    """Every chunk of an interleaved schedule has the same number of layers; the first and the last may have one less.

    As in Llama 3.1 405B, whose 126 layers run as 128 chunks: the embedding and the head stand for a layer each.
    """
    return (chunks == 1) | ((missing_layers <= 2) & (stage_layers % chunks == 0))


@constraint(kind="illegal", reason="there are fewer layers than pipeline stages", source="narayanan2021")
def layers_suffice(layers, pp):
    """Every stage has at least one layer."""
    return pp <= layers


@constraint(kind="illegal", reason="an interleaved schedule needs more than one stage", source="narayanan2021")
def chunks_need_stages(pp, chunks):
    """Virtual stages exist only in a pipeline."""
    return (chunks == 1) | (pp > 1)
