"""The stages of a pipeline: what each holds, how long it takes forward and backward, and which is the slowest.

Quantities by `stage` are of the ``first`` (with the embedding), the ``middle`` (from three stages on, the fullest)
and the ``last`` (with the output head). A pipeline of one stage is first and last at once. Layers that do not divide
are balanced: a stage has the average rounded up or one less; the last stage, then the first, then the latest others
have one less. With chunks each device holds several virtual stages; the layer that the first stage lacks is missing in
its first chunk, that of the last stage in its last chunk.

The schedule decides which device holds what. In a folded one (a V) the chunks run down the devices and back up: the
first device holds the first and the last chunk, the last device the two in the middle. DualPipe sends half of the
microbatches through the devices the other way: a device holds two stages, and its quantities by stage are
their means per copy of the weights and per microbatch.

Layers of several kinds stand in the order of the model (`layer_kinds`).
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.engine.graph.tables import by_label
from perfgrid.formulas.axes import at, of_kinds, rows, table, total
from perfgrid.formulas.mixer_kinds import NONE, RECURRENT
from perfgrid.formulas.transformer.layer_kinds import last_layers, run_of_layers

PARTS = {"PART": ("layers", "kind_layers", "embeddings", "heads")}

SCHEDULES = by_label(
    "schedule",
    {
        "folded": ("1", "qi2024zerobubble", "1 where the chunks of a pipeline run down the devices and back up: a V."),
        "weight_copies": ("1", "deepseek2024v3", "Copies of the model that one pipeline holds: one per direction."),
        "ep_overlap_by_schedule": (
            *("1", "deepseek2024v3"),
            "Share of the expert all-to-all that runs beside the computation of another microbatch.",
        ),
        "most_chunks": ("1", "narayanan2021", "Chunks per device that the schedule allows."),
        "fewest_microbatches": ("1", "narayanan2021", "Microbatches that the schedule needs at least."),
    },
    {
        "1f1b": (0, 1, 0, "stage_layers", 1),
        "gpipe": (0, 1, 0, 1, 1),
        "zb_h1": (0, 1, 0, 1, 1),
        "zb_v": (1, 1, 0, 2, None),
        "dualpipe": (0, 2, 1, 1, None),
        "dualpipe_v": (1, 1, 1, 2, None),
    },
)
FORMULAS = (
    *SCHEDULES,
    *rows("STAGE_stage_PART", "PART_by_stage", "1", "narayanan2021", "PART of the STAGE stage.", PARTS, stage="STAGE"),
    *rows("STAGE_stage_time", "time_by_stage", "s", "narayanan2021", "Time of the STAGE stage.", stage="STAGE"),
    *rows(
        *("STAGE_stage_in_flight", "in_flight_by_stage", "1", "narayanan2021"),
        "Microbatches whose activations the STAGE stage keeps at most.",
        stage="STAGE",
    ),
    *(
        entry
        for name, stage, meaning in (
            ("first_missing_layers", "first", "Layers that the first chunk lacks."),
            ("last_missing_layers", "last", "Layers that the last chunk lacks."),
            ("short_middle_stages", "middle", "Stages just before the last with a layer less than those before them."),
        )
        for entry in rows(name, "missing_by_stage", "1", "grattafiori2024llama3", meaning, stage=stage)
    ),
)


# ---- equations ------------------------------------------------------------------------------------------------------


def stages_of(value):
    """The values of the first, the middle and the last stage.

    On the grid three values are compared one by one: a reduction would be the innermost of the compiled loops.
    """
    return tuple(at(value, stage=stage) for stage in ("first", "middle", "last"))


def of_largest(size, value):
    """The value of the stage whose ``size`` is the largest (of equals the first), both by stage."""
    (first, middle, last), (of_first, of_middle, of_last) = stages_of(size), stages_of(value)
    return xp.where(first >= xp.maximum(middle, last), of_first, xp.where(middle >= last, of_middle, of_last))


def passes_of(pass_times):
    """Of the first, the middle and the last stage or chunk each (forward, input gradient, weight gradient)."""
    phases = ("forward", "input_gradient", "weight_gradient")
    return tuple(tuple(at(times, phase=phase) for phase in phases) for times in stages_of(pass_times))


def largest_of_stages(value):
    """The largest value of the stages."""
    first, middle, last = stages_of(value)
    return xp.maximum(first, xp.maximum(middle, last))


def other_end(weight_copies):
    """Share of the work of a device at one end of a pipeline that belongs to the stage at the other end."""
    return 1 - 1 / weight_copies


def latest_full_stage(layers_by_stage, stage_layers, missing_by_stage, pp, layers):
    """Of the latest full middle stage the first layer and the layers, and the short ones behind it."""
    _, count, last = stages_of(layers_by_stage)
    short = xp.minimum(at(missing_by_stage, stage="middle"), xp.maximum(pp - 3, 0.0))
    return layers - last - short * (stage_layers - 1) - count, count, short


# ---- what a stage holds, by stage -----------------------------------------------------------------------------------


@formula(unit="1", source="shoeybi2019megatron")
def embeddings_by_stage(pp, weight_copies):
    """Embeddings of each stage: of the last only if it is the first as well, or its device holds both."""
    ends = other_end(weight_copies)
    return table("stage", first=xp.where(pp > 1, 1 - ends, 1.0), middle=0.0, last=xp.where(pp > 1, ends, 1.0))


@formula(unit="1", source="shoeybi2019megatron")
def heads_by_stage(pp, folded, weight_copies):
    """Output heads of each stage: of the first only if it is the last, or its device holds the last chunk or both."""
    ends = folded + other_end(weight_copies)
    last = 1 - folded - other_end(weight_copies)
    return table("stage", first=xp.where(pp > 1, ends, 1.0), middle=0.0, last=xp.where(pp > 1, last, 1.0))


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
def missing_by_stage(stage_layers, layers, pp, head_passes, chunks, head_layers):
    """Layers that the first chunk and the last one lack, and middle stages with a layer less, by stage.

    Full stages would have p·ceil(L/p) - L layers more than the model. The last chunk lacks one for the head and for
    every module that predicts further tokens; with several chunks, which have equal layers, all that are missing but
    the one that the first chunk may lack for the embedding. The others are missing in the stages just before the last.
    Where stages are cut by cost, the last stage has the layers behind those that exceed the share of all stages before
    it, and the first lacks none: a lookup costs nothing.
    """
    missing = stage_layers * pp - layers
    beside_head = xp.minimum(missing, xp.minimum(head_passes, stage_layers))
    before = xp.floor((pp - 1) * (layers + head_layers) / pp) + 1
    behind = stage_layers - xp.maximum(layers - before, 0.0)
    counted = xp.where(chunks > 1, xp.maximum(beside_head, missing - 1), beside_head)
    last = xp.where(head_layers > 0, behind, counted)
    first = xp.where(head_layers > 0, 0.0, xp.minimum(missing - last, 1.0))
    return table("stage", first=first, middle=missing - first - last, last=last)


@formula(unit="1", source="grattafiori2024llama3")
def layers_by_stage(
    stage_layers,
    missing_by_stage,
    embeddings_by_stage,
    heads_by_stage,
    pp,
    weight_copies,
    head_layers,
):
    """Layers of each stage: those of a full stage less what stands for its embedding and head.

    Of the fullest stage between the first and the last; 0 where there is none. In DualPipe a full stage shares its
    device with a short one where half of the stages or more are short. Where stages are cut by cost all of them may be
    short.
    """
    first_missing, short_middle_stages, last_missing = stages_of(missing_by_stage)
    ends = stage_layers - embeddings_by_stage * first_missing - heads_by_stage * last_missing
    all_short = (head_layers > 0) & (short_middle_stages >= pp - 2)
    mixed = (weight_copies > 1) & (short_middle_stages >= pp / 2 - 1)
    short = xp.where(all_short, 1.0, xp.where(mixed, other_end(weight_copies), 0.0))
    middle = xp.where(pp > 2, xp.maximum(stage_layers - short, 0.0), 0.0)
    return table("stage", first=ends, middle=middle, last=ends)


@alternative(of="middle_kind_layers", by="mixer", label=NONE, unit="1", source="dai2024deepseekmoe")
def plain_middle_kind_layers(
    layers_by_stage,
    stage_layers,
    missing_by_stage,
    pp,
    layers,
    kind_layers,
    leading_layers,
    expert_layer_step,
):
    """Layers of each kind of the fullest middle stage: the last one before those that have a layer less.

    Where every second layer has experts and stages have an odd number, it or the one before has one more with experts.
    """
    begin, count, short = latest_full_stage(layers_by_stage, stage_layers, missing_by_stage, pp, layers)
    pattern = kind_layers, leading_layers, expert_layer_step
    latest = run_of_layers(begin, count, *pattern)
    before = run_of_layers(begin - count, count, *pattern)
    more = at(before, layer_kind="experts") > at(latest, layer_kind="experts")
    return xp.where(more & (pp - 3 > short), before, latest)


@alternative(of="middle_kind_layers", by="mixer", label=RECURRENT, unit="1", source="nvidia2025nemotronh")
def LABEL_middle_kind_layers(
    layers_by_stage,
    stage_layers,
    missing_by_stage,
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
    begin, count, short = latest_full_stage(layers_by_stage, stage_layers, missing_by_stage, pp, layers)
    layer_time = total(total(core_busy_time + rest_busy_time, "resource"), "phase")
    pattern = kind_layers, leading_layers, expert_layer_step
    slowest = run_of_layers(begin, count, *pattern)
    for earlier in range(1, 8):
        run = run_of_layers(begin - earlier * count, count, *pattern)
        slower = of_kinds(run, layer_time) > of_kinds(slowest, layer_time)
        slowest = xp.where(slower & (pp - 2 - short > earlier), run, slowest)
    return slowest


@formula(unit="1", source="dai2024deepseekmoe")
def kind_layers_by_stage(
    layers_by_stage,
    middle_kind_layers,
    chunk_layers,
    missing_by_stage,
    weight_copies,
    layers,
    kind_layers,
    leading_layers,
    expert_layer_step,
):
    """Layers of each kind of each stage: the first chunk of the first one begins the model, others are near its end.

    In DualPipe both ends have the mean of the first and the last stage.
    """
    first, _, last = stages_of(layers_by_stage)
    pattern = kind_layers, leading_layers, expert_layer_step
    chunk = chunk_layers - at(missing_by_stage, stage="first")
    behind = xp.maximum(weight_copies * first - chunk, 0.0)
    first = run_of_layers(0.0, chunk, *pattern) + last_layers(behind, layers, *pattern)
    own = last_layers(last, layers, *pattern)
    first = first / weight_copies
    return table("stage", first=first, middle=middle_kind_layers, last=xp.where(weight_copies > 1, first, own))


# ---- times ----------------------------------------------------------------------------------------------------------


@formula(unit="s", source="narayanan2021")
def time_by_stage(kind_layers_by_stage, embeddings_by_stage, heads_by_stage, layer_time, embedding_time, head_time):
    """Forward and backward time of each stage for one microbatch, by stage.

    layers·t(layer) + embeddings·t(embedding) + heads·t(head). Valid for devices of one speed;
    transfers between stages are apart.
    """
    layers = of_kinds(kind_layers_by_stage, layer_time)
    return layers + embeddings_by_stage * embedding_time + heads_by_stage * head_time


@formula(unit="s", source="qi2024zerobubble")
def pass_times_by_stage(
    kind_layers_by_stage, embeddings_by_stage, heads_by_stage, layer_pass_times, embedding_pass_times, head_pass_times
):
    """Time of each pass of each stage for one microbatch, by stage and phase."""
    layers = of_kinds(kind_layers_by_stage, layer_pass_times)
    return layers + embeddings_by_stage * embedding_pass_times + heads_by_stage * head_pass_times


@formula(unit="1", source="narayanan2021", family=PARTS)
def slowest_stage_PART(time_by_stage, PART_by_stage):
    """The PART of the slowest stage."""
    return of_largest(time_by_stage, PART_by_stage)


@formula(unit="s", source="narayanan2021")
def slowest_stage_time(time_by_stage):
    """Forward and backward time of the slowest stage for one microbatch, the pace of the pipeline: max over stages."""
    return largest_of_stages(time_by_stage)


@formula(unit="s", source="narayanan2021")
def model_pass_time(kind_layers, layer_time, embedding_time, head_time):
    """Forward and backward time of one microbatch through all stages: L·t(layer) + t(embedding) + t(head)."""
    return of_kinds(kind_layers, layer_time) + embedding_time + head_time


@formula(unit="s", source="qi2024zerobubble")
def model_pass_times(kind_layers, layer_pass_times, embedding_pass_times, head_pass_times):
    """Time of each pass of one microbatch through all stages, by phase."""
    return of_kinds(kind_layers, layer_pass_times) + embedding_pass_times + head_pass_times


@formula(unit="1", source="narayanan2021")
def microbatches(global_batch, dp, microbatch):
    """Microbatches that each pipeline processes per step: m = ceil(B / (dp·b)), b sequences each."""
    return xp.maximum(xp.ceil(global_batch / (dp * microbatch)), 1.0)


# ---- chunks at the ends and between them, by stage -------------------------------------------------------------------


@formula(unit="1", source="narayanan2021")
def chunk_layers(stage_layers, chunks):
    """Layers of a full chunk: those of a full stage over v chunks."""
    return stage_layers / chunks


@formula(unit="1", source="dai2024deepseekmoe")
def first_chunk_kind_layers(chunk_layers, missing_by_stage, kind_layers, leading_layers, expert_layer_step):
    """Layers of each kind of the first chunk of the model, after the embedding, by layer_kind."""
    count = chunk_layers - at(missing_by_stage, stage="first")
    return run_of_layers(0.0, count, kind_layers, leading_layers, expert_layer_step)


@formula(unit="1", source="dai2024deepseekmoe")
def kind_layers_by_chunk(
    chunk_layers,
    first_chunk_kind_layers,
    missing_by_stage,
    pp,
    layers,
    kind_layers,
    leading_layers,
    expert_layer_step,
):
    """Layers of each kind of the first and the last chunk of the model, and mean ones of those between, by stage."""
    pattern = kind_layers, leading_layers, expert_layer_step
    first_missing, short_middle_stages, last_missing = stages_of(missing_by_stage)
    first, last = chunk_layers - first_missing, chunk_layers - last_missing
    between = xp.maximum(layers - first - last, 1.0)
    each = (chunk_layers - short_middle_stages / xp.maximum(pp - 2, 1.0)) / between
    middle = each * run_of_layers(first, between, *pattern)
    last = last_layers(last, layers, *pattern)
    return table("stage", first=first_chunk_kind_layers, middle=middle, last=last)


@formula(unit="s", source="qi2024zerobubble")
def pass_times_by_chunk(kind_layers_by_chunk, layer_pass_times, embedding_pass_times, head_pass_times):
    """Time of each pass of a chunk for one microbatch, by stage and phase: the first embeds, the last has the head."""
    beside = table("stage", first=embedding_pass_times, middle=0.0, last=head_pass_times)
    return of_kinds(kind_layers_by_chunk, layer_pass_times) + beside


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
