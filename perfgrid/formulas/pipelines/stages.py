"""The stages of a pipeline: what each holds, how long it takes forward and backward, and which is the slowest.

The stages are a family: ``first`` (with the embedding), ``middle`` (from three stages on), ``last`` (with the output
head). A pipeline of one stage is first and last at once. Layers that do not divide are balanced: a stage has the
average rounded up or one less; the last stage, then the first, then the latest others have one less. With chunks each
device holds several virtual stages; the layer that the first stage lacks is missing in its first chunk, that of the
last stage in its last chunk.

The schedule decides which device holds what. In a folded one (a V) the chunks run down the devices and back up: the
first device holds the first and the last chunk, the last device the two in the middle. DualPipe sends half of the
microbatches through the devices the other way: a device holds two stages, and the quantities of its ``STAGE`` are
their means per copy of the weights and per microbatch.

Layers of several kinds stand in the order of the model (`layer_kinds`).
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constant, constraint, formula
from perfgrid.formulas.axes import at, of_kinds, total
from perfgrid.formulas.mixer_kinds import NONE, RECURRENT
from perfgrid.formulas.transformer.layer_kinds import last_layers, run_of_layers

STAGES = {"STAGE": ("first", "middle", "last")}
PARTS = {"PART": ("layers", "kind_layers", "embeddings", "heads")}
KINDS = {"KIND": ("forward", "input_gradient", "weight_gradient")}
FOLDED = ("zb_v", "dualpipe_v")  # schedules with two chunks per device, in the order of a V
ONE_WAY = ("1f1b", "gpipe", "zb_h1")  # schedules in which microbatches and chunks run down the devices only


@constant(unit="1", source="shoeybi2019megatron", family={"PART": ("embeddings", "heads")})
def middle_stage_PART():
    """The PART of a stage between the first and the last: none."""
    return 0.0


# ---- equations ------------------------------------------------------------------------------------------------------


def pick_largest(first, middle, last, of_first, of_middle, of_last):
    """The entry that belongs to the largest of three values (the first of equals)."""
    return xp.where(first >= xp.maximum(middle, last), of_first, xp.where(middle >= last, of_middle, of_last))


def other_end(weight_copies):
    """Share of the work of a device at one end of a pipeline that belongs to the stage at the other end."""
    return 1 - 1 / weight_copies


# ---- what the schedule decides --------------------------------------------------------------------------------------


def in_flight(label, source):
    """Marks the microbatches whose activations a device of each stage keeps at most in the schedules ``label``."""
    of = "STAGE_stage_in_flight"
    return alternative(of=of, by="schedule", label=label, unit="1", source=source, family=STAGES)


@alternative(of="folded", by="schedule", label=(*ONE_WAY, "dualpipe"), unit="1", source="narayanan2021")
def folded_not_in_LABEL():
    """1 where the chunks of a pipeline run down the devices and back up; they do not in LABEL."""
    return 0.0


@alternative(of="folded", by="schedule", label=FOLDED, unit="1", source="qi2024zerobubble")
def folded_in_LABEL():
    """1 where the chunks of a pipeline run down the devices and back up, as in LABEL."""
    return 1.0


@alternative(of="weight_copies", by="schedule", label=(*ONE_WAY, *FOLDED), unit="1", source="narayanan2021")
def weight_copies_of_LABEL():
    """Copies of the model that one pipeline holds: one in LABEL."""
    return 1.0


@alternative(of="weight_copies", by="schedule", label="dualpipe", unit="1", source="deepseek2024v3")
def weight_copies_of_dualpipe():
    """Copies of the model that one pipeline holds: one for each direction of DualPipe."""
    return 2.0


# ---- what a stage holds ---------------------------------------------------------------------------------------------


@formula(unit="1", source="nanotron2024")
def head_layers(stages_by_cost, hidden_size, vocab_size, layer_matrix_parameters, chunks, pp):
    """Layers that the output head counts as where stages are cut by cost; 0 where layers alone are counted.

    The weights of its matrix over those of a layer. A stage then ends behind the block with which it has its share.
    """
    by_cost = stages_by_cost & (chunks == 1) & (pp > 1)
    return xp.where(by_cost, hidden_size * vocab_size / layer_matrix_parameters, 0.0)


@formula(unit="1", source="narayanan2021")
def stage_layers(layers, pp, head_layers):
    """Layers of the fullest stage: ceil(L/p), or as many as it takes to exceed an even share of the cost."""
    share = (layers + head_layers) / pp
    return xp.where(head_layers > 0, xp.minimum(xp.floor(share) + 1, layers), xp.ceil(layers / pp))


@formula(unit="1", source="grattafiori2024llama3")
def missing_layers(stage_layers, layers, pp):
    """Layers that full stages would have beyond those of the model: p·ceil(L/p) - L."""
    return stage_layers * pp - layers


@formula(unit="1", source="grattafiori2024llama3")
def last_missing_layers(missing_layers, head_passes, stage_layers, chunks, layers, head_layers, pp):
    """Layers that the last chunk lacks: one for the head and for every module that predicts further tokens.

    With several chunks, which have equal layers, all that are missing but the one that the first chunk may lack. Where
    stages are cut by cost, the last stage has the layers behind those that exceed the share of all stages before it.
    """
    beside_head = xp.minimum(missing_layers, xp.minimum(head_passes, stage_layers))
    before = xp.floor((pp - 1) * (layers + head_layers) / pp) + 1
    behind = stage_layers - xp.maximum(layers - before, 0.0)
    counted = xp.where(chunks > 1, xp.maximum(beside_head, missing_layers - 1), beside_head)
    return xp.where(head_layers > 0, behind, counted)


@formula(unit="1", source="grattafiori2024llama3")
def first_missing_layers(missing_layers, last_missing_layers, head_layers):
    """Layers that the first chunk lacks: one for the embedding, after those that the last chunk lacks.

    None where stages are cut by cost: a lookup costs nothing.
    """
    return xp.where(head_layers > 0, 0.0, xp.minimum(missing_layers - last_missing_layers, 1.0))


@formula(unit="1", source="grattafiori2024llama3")
def first_stage_layers(
    stage_layers, first_missing_layers, last_missing_layers, first_stage_embeddings, first_stage_heads
):
    """Layers of the first stage: those of a full stage less what stands for its embedding and head."""
    return stage_layers - first_stage_embeddings * first_missing_layers - first_stage_heads * last_missing_layers


@formula(unit="1", source="narayanan2021")
def middle_stage_layers(stage_layers, pp, short_middle_stages, weight_copies, head_layers):
    """Layers of the fullest stage between the first and the last; 0 where there is none.

    In DualPipe a full stage shares its device with a short one where half of the stages or more are short. Where stages
    are cut by cost all of them may be short.
    """
    all_short = (head_layers > 0) & (short_middle_stages >= pp - 2)
    mixed = (weight_copies > 1) & (short_middle_stages >= pp / 2 - 1)
    short = xp.where(all_short, 1.0, xp.where(mixed, other_end(weight_copies), 0.0))
    return xp.where(pp > 2, xp.maximum(stage_layers - short, 0.0), 0.0)


@formula(unit="1", source="grattafiori2024llama3")
def last_stage_layers(stage_layers, first_missing_layers, last_missing_layers, last_stage_embeddings, last_stage_heads):
    """Layers of the last stage: those of a full stage less what stands for its embedding and head."""
    return stage_layers - last_stage_embeddings * first_missing_layers - last_stage_heads * last_missing_layers


@formula(unit="1", source="narayanan2021")
def short_middle_stages(missing_layers, first_missing_layers, last_missing_layers):
    """Stages just before the last one that have a layer less than those before them."""
    return missing_layers - first_missing_layers - last_missing_layers


# ---- of each kind of layers, by layer_kind --------------------------------------------------------------------------


@formula(unit="1", source="dai2024deepseekmoe")
def first_stage_kind_layers(
    first_stage_layers, first_chunk_layers, weight_copies, layers, kind_layers, leading_layers, expert_layer_step
):
    """Layers of each kind of the first stage: its first chunk begins the model, others hold layers near the end.

    In DualPipe the mean of the first and the last stage.
    """
    first = run_of_layers(0.0, first_chunk_layers, kind_layers, leading_layers, expert_layer_step)
    behind = xp.maximum(weight_copies * first_stage_layers - first_chunk_layers, 0.0)
    others = last_layers(behind, layers, kind_layers, leading_layers, expert_layer_step)
    return (first + others) / weight_copies


@alternative(of="middle_stage_kind_layers", by="mixer", label=NONE, unit="1", source="dai2024deepseekmoe")
def plain_middle_stage_kind_layers(
    middle_stage_layers,
    last_stage_layers,
    stage_layers,
    short_middle_stages,
    pp,
    layers,
    kind_layers,
    leading_layers,
    expert_layer_step,
):
    """Layers of each kind of the fullest middle stage: the last one before those that have a layer less.

    Where every second layer has experts and stages have an odd number, it or the one before has one more with experts.
    """
    short = xp.minimum(short_middle_stages, xp.maximum(pp - 3, 0.0))
    begin = layers - last_stage_layers - short * (stage_layers - 1) - middle_stage_layers
    pattern = kind_layers, leading_layers, expert_layer_step
    latest = run_of_layers(begin, middle_stage_layers, *pattern)
    before = run_of_layers(begin - middle_stage_layers, middle_stage_layers, *pattern)
    more = at(before, layer_kind="experts") > at(latest, layer_kind="experts")
    return xp.where(more & (pp - 3 > short), before, latest)


@alternative(of="middle_stage_kind_layers", by="mixer", label=RECURRENT, unit="1", source="nvidia2025nemotronh")
def LABEL_middle_stage_kind_layers(
    middle_stage_layers,
    last_stage_layers,
    stage_layers,
    short_middle_stages,
    pp,
    layers,
    kind_layers,
    leading_layers,
    expert_layer_step,
    core_busy_time,
    rest_busy_time,
):
    """Layers of each kind of that middle stage whose kernels take longest; of the latest eight full ones.

    Whether attention or a recurrence takes longer depends on the sequence. Patterns repeat within eight stages.
    """
    short = xp.minimum(short_middle_stages, xp.maximum(pp - 3, 0.0))
    begin = layers - last_stage_layers - short * (stage_layers - 1) - middle_stage_layers
    layer_time = total(total(core_busy_time + rest_busy_time, "resource"), "phase")
    slowest = run_of_layers(begin, middle_stage_layers, kind_layers, leading_layers, expert_layer_step)
    for earlier in range(1, 8):
        first = begin - earlier * middle_stage_layers
        run = run_of_layers(first, middle_stage_layers, kind_layers, leading_layers, expert_layer_step)
        slower = of_kinds(run, layer_time) > of_kinds(slowest, layer_time)
        slowest = xp.where(slower & (pp - 2 - short > earlier), run, slowest)
    return slowest


@formula(unit="1", source="dai2024deepseekmoe")
def last_stage_kind_layers(
    last_stage_layers, first_stage_kind_layers, weight_copies, layers, kind_layers, leading_layers, expert_layer_step
):
    """Layers of each kind of the last stage: in DualPipe, whose devices at the ends hold the same, of the first."""
    own = last_layers(last_stage_layers, layers, kind_layers, leading_layers, expert_layer_step)
    return xp.where(weight_copies > 1, first_stage_kind_layers, own)


@formula(unit="1", source="shoeybi2019megatron")
def first_stage_embeddings(pp, weight_copies):
    """Embeddings of the first stage."""
    return xp.where(pp > 1, 1 - other_end(weight_copies), 1.0)


@formula(unit="1", source="shoeybi2019megatron")
def last_stage_embeddings(pp, weight_copies):
    """Embeddings of the last stage: only if it is the first as well, or its device holds both."""
    return xp.where(pp > 1, other_end(weight_copies), 1.0)


@formula(unit="1", source="shoeybi2019megatron")
def first_stage_heads(pp, folded, weight_copies):
    """Output heads of the first stage: only if it is the last as well, or its device holds the last chunk or both."""
    return xp.where(pp > 1, folded + other_end(weight_copies), 1.0)


@formula(unit="1", source="shoeybi2019megatron")
def last_stage_heads(pp, folded, weight_copies):
    """Output heads of the last stage."""
    return xp.where(pp > 1, 1 - folded - other_end(weight_copies), 1.0)


# ---- times ----------------------------------------------------------------------------------------------------------


@formula(unit="s", source="narayanan2021", family=STAGES)
def STAGE_stage_time(
    STAGE_stage_kind_layers, STAGE_stage_embeddings, STAGE_stage_heads, layer_time, embedding_time, head_time
):
    """Forward and backward time of the STAGE stage for one microbatch."""
    layers = of_kinds(STAGE_stage_kind_layers, layer_time)
    return layers + STAGE_stage_embeddings * embedding_time + STAGE_stage_heads * head_time


@formula(unit="s", source="qi2024zerobubble", family={**STAGES, **KINDS})
def STAGE_stage_KIND_time(
    STAGE_stage_kind_layers,
    STAGE_stage_embeddings,
    STAGE_stage_heads,
    layer_KIND_time,
    embedding_KIND_time,
    head_KIND_time,
):
    """KIND time of the STAGE stage for one microbatch."""
    return (
        of_kinds(STAGE_stage_kind_layers, layer_KIND_time)
        + STAGE_stage_embeddings * embedding_KIND_time
        + STAGE_stage_heads * head_KIND_time
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
def model_pass_time(kind_layers, layer_time, embedding_time, head_time):
    """Forward and backward time of one microbatch through all stages."""
    return of_kinds(kind_layers, layer_time) + embedding_time + head_time


@formula(unit="s", source="qi2024zerobubble", family=KINDS)
def model_KIND_time(kind_layers, layer_KIND_time, embedding_KIND_time, head_KIND_time):
    """KIND time of one microbatch through all stages."""
    return of_kinds(kind_layers, layer_KIND_time) + embedding_KIND_time + head_KIND_time


@formula(unit="1", source="narayanan2021")
def microbatches(global_batch, dp, microbatch):
    """Microbatches that each pipeline processes per step: global batch over dp times microbatch."""
    return xp.maximum(xp.ceil(global_batch / (dp * microbatch)), 1.0)


# ---- chunks at the ends and between them ----------------------------------------------------------------------------


@formula(unit="1", source="narayanan2021")
def chunk_layers(stage_layers, chunks):
    """Layers of a full chunk."""
    return stage_layers / chunks


@formula(unit="1", source="grattafiori2024llama3")
def first_chunk_layers(chunk_layers, first_missing_layers):
    """Layers of the first chunk of the model, after the embedding."""
    return chunk_layers - first_missing_layers


@formula(unit="1", source="grattafiori2024llama3")
def last_chunk_layers(chunk_layers, last_missing_layers):
    """Layers of the last chunk of the model, before the output head."""
    return chunk_layers - last_missing_layers


@formula(unit="1", source="grattafiori2024llama3")
def inner_chunk_layers(chunk_layers, short_middle_stages, pp):
    """Mean layers of the chunks between the first and the last."""
    return chunk_layers - short_middle_stages / xp.maximum(pp - 2, 1.0)


@formula(unit="1", source="dai2024deepseekmoe")
def first_chunk_kind_layers(first_chunk_layers, kind_layers, leading_layers, expert_layer_step):
    """Layers of each kind of the first chunk of the model, by layer_kind."""
    return run_of_layers(0.0, first_chunk_layers, kind_layers, leading_layers, expert_layer_step)


@formula(unit="1", source="dai2024deepseekmoe")
def last_chunk_kind_layers(last_chunk_layers, layers, kind_layers, leading_layers, expert_layer_step):
    """Layers of each kind of the last chunk of the model, by layer_kind."""
    return last_layers(last_chunk_layers, layers, kind_layers, leading_layers, expert_layer_step)


@formula(unit="1", source="dai2024deepseekmoe")
def inner_chunk_kind_layers(
    inner_chunk_layers, first_chunk_layers, last_chunk_layers, layers, kind_layers, leading_layers, expert_layer_step
):
    """Mean layers of each kind of the chunks between the first and the last, by layer_kind."""
    between = xp.maximum(layers - first_chunk_layers - last_chunk_layers, 1.0)
    return (
        inner_chunk_layers
        / between
        * run_of_layers(first_chunk_layers, between, kind_layers, leading_layers, expert_layer_step)
    )


@formula(unit="s", source="qi2024zerobubble", family=KINDS)
def first_chunk_KIND_time(first_chunk_kind_layers, layer_KIND_time, embedding_KIND_time):
    """KIND time of the first chunk of the model for one microbatch, with the embedding."""
    return of_kinds(first_chunk_kind_layers, layer_KIND_time) + embedding_KIND_time


@formula(unit="s", source="qi2024zerobubble", family=KINDS)
def inner_chunk_KIND_time(inner_chunk_kind_layers, layer_KIND_time):
    """Mean KIND time of the chunks between the first and the last for one microbatch."""
    return of_kinds(inner_chunk_kind_layers, layer_KIND_time)


@formula(unit="s", source="qi2024zerobubble", family=KINDS)
def last_chunk_KIND_time(last_chunk_kind_layers, layer_KIND_time, head_KIND_time):
    """KIND time of the last chunk of the model for one microbatch, with the output head."""
    return of_kinds(last_chunk_kind_layers, layer_KIND_time) + head_KIND_time


# ---- constraints -----------------------------------------------------------------------------------------------------


@constraint(reason="data-parallel ranks times microbatch do not divide the global batch", source="narayanan2021")
def batch_divides(global_batch, dp, microbatch):
    """Every pipeline processes the same number of full microbatches."""
    return global_batch % (dp * microbatch) == 0


@constraint(reason="an interleaved schedule needs a multiple of pp microbatches", source="narayanan2021")
def microbatches_interleave(microbatches, pp, chunks, folded):
    """Interleaved schedules process microbatches in groups of as many as there are stages; folded ones do not."""
    return (chunks == 1) | (folded > 0) | (microbatches % pp == 0)


@constraint(
    reason="the layers do not fill pp x chunks: only the first (by one) and the last chunk may have fewer than others",
    source="grattafiori2024llama3",
)
def layers_interleave(last_missing_layers, stage_layers, chunks):
    """Every chunk of an interleaved schedule has as many layers as others; the first may have one less, the last fewer.

    As in Llama 3.1 405B, whose 126 layers run as 128 chunks: the embedding and the head stand for a layer each, as does
    every module that predicts further ahead (61 layers of DeepSeek-V3 run as 64).
    """
    return (chunks == 1) | ((stage_layers % chunks == 0) & (last_missing_layers <= stage_layers / chunks))


@constraint(
    reason="chunks of an interleaved schedule do not hold whole periods of layers with and without experts",
    source="narayanan2021",
)
def chunks_hold_periods(chunk_layers, chunks, expert_layer_step, folded):
    """Chunks of all stages have equally many layers with experts: they hold whole periods of the pattern."""
    return (chunks == 1) | (folded > 0) | (expert_layer_step <= 1) | (chunk_layers % expert_layer_step == 0)


@constraint(reason="there are fewer layers than pipeline stages", source="narayanan2021")
def layers_suffice(layers, pp):
    """Every stage has at least one layer."""
    return pp <= layers


@constraint(reason="an interleaved schedule needs more than one stage", source="narayanan2021")
def chunks_need_stages(pp, chunks):
    """Virtual stages exist only in a pipeline."""
    return (chunks == 1) | (pp > 1)
