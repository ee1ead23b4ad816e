"""DualPipe and DualPipeV: a forward pass beside a backward pass, so that communication of one hides behind the other.

DualPipe sends microbatches through the stages from both ends; every device holds two stages. Its second half mirrors
the first, so that it is DualPipeV (chunks in the order of a V, all microbatches from one end) on half as many devices,
each with its mirror image. A pair of passes takes as long as one after the other; the results of both leave at its end.

The closed forms are longest paths that stay on one device as long as possible; `tests/physics` executes the schedules
event by event and compares:

* Equal chunks, F <= B: exact. The published (p/2 - 1)·(F&B + B - 3W) is longer by a forward pass at most.
* Uneven chunks (layers that do not divide, an embedding, a head of up to 1.2 layers, two layers per chunk or more):
  DualPipeV at most 1.1 % below and never above; so is DualPipe where only the first and the last stage lack a layer.
* DualPipe where up to half of the stages lack one of three layers or more: within 3.2 %; where more do, within 8 %;
  with two layers per stage up to 16 % below.
* Heads of up to 5 layers (that of DeepSeek-V3 with its prediction module has 3 to 5): both up to 5 % too short, 10 %
  with weight gradients longer than input gradients.
* Transfers of up to 5 % of a layer's forward pass add 1 %.
* With the 2p microbatches that the schedules need at least, every chunk counts once or more in every path, beside the
  2p - 1 times that a path leaves it out: a step gets no longer as a chunk gets shorter. With fewer, which a constraint
  forbids, it may (`peak_bf16_rate` doubled: up to 9 %).

The two copies of a stage's weights are one more data-parallel rank: from ZeRO stage 1 on they share the optimizer
state. Not modelled: the reduction of gradients between the copies and the gathering of each other's weights.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint
from perfgrid.formulas.axes import of_kinds

from .stages import passes_of, stages_of

# ---- equations ------------------------------------------------------------------------------------------------------


def first_idle_in_dualpipe(devices, first, inner, last):
    """Idle time of the first of ``devices`` devices in DualPipeV if it sets the pace: the longest of five paths.

    ``first``, ``inner``, ``last`` are chunks, each (forward, input gradient, weight gradient). The paths leave the
    device in the last microbatches for those after it; they differ in the pairs that they take part in. All end with
    gradients that go down the other devices and up again, where that takes longer than the device's own passes.
    """
    forward, gradient, weight = inner
    others = devices - 1
    first_forward, first_backward = first[0], first[1] + first[2]
    last_pass, last_weight = last[0] + last[1], last[2]
    end = others * (2 * gradient - first_backward)
    pairs = (6 * devices - 4) * forward + (3 * devices - 2) * (gradient + weight)
    pairs = pairs - (2 * devices - 1) * (first_forward + last_pass + last_weight) - others * first_backward
    two_rounds = others * (3 * forward + 4 * gradient - first_backward - 2 * last_pass - 2 * last_weight)
    two_rounds = two_rounds - first_forward + (3 * devices - 2) * weight - last_weight
    turned = two_rounds + last_pass + last_weight - 2 * gradient - weight
    round_trip = others * (forward + 2 * gradient + weight - last_pass - last_weight)
    round_trip = round_trip - first_forward - 2 * gradient + last_pass
    longest = xp.maximum(pairs, xp.maximum(xp.maximum(two_rounds, turned), round_trip))
    return xp.where(devices > 1, xp.maximum(longest, 0.0) + xp.maximum(end, 0.0), 0.0)


def inner_idle_in_dualpipe(devices, first, inner, last):
    """Idle time of the other of ``devices`` devices in DualPipeV if they set the pace.

    With equal chunks (p - 1)·(2F + B - W), or (p - 2)·F + (p - 1)·(2B - W) if that is longer; where weight gradients
    take longer than B, B - W is 0 in both.
    """
    forward, gradient, weight = inner
    between = devices - 2
    turn = xp.maximum(last[0] + last[1] - 2 * forward, 0.0)
    late = xp.maximum(gradient - weight, 0.0)
    way = between * (forward + late) + xp.maximum(between * forward, between * gradient - forward + turn)
    start = first[1] + first[2] - 2 * weight
    end = sum(last) - 2 * gradient
    return first[0] + way + xp.maximum(start + xp.maximum(end + xp.maximum(start, 0.0), 0.0), 0.0)


def fill_and_drain_wait(devices, chunk_wait):
    """Time that passes without a partner add to DualPipeV on ``devices`` devices; ``chunk_wait`` of the mean chunk.

    Each waits for its own exchange with experts: 5p + 1 of them follow each other on the longest path of the executed
    schedule with F = B = W, one less with longer input gradients. An upper bound where input gradients are shorter
    than forward passes (4p + 2 on 8 and 16 devices with B = 0.8 F, W = 1.1 F).
    """
    return (5 * devices + 1) * chunk_wait


# ---- bubble ---------------------------------------------------------------------------------------------------------


@alternative(
    of="bubble_time", by="schedule", label="dualpipe", unit="s", source="deepseek2024v3", where="section 3.2.1, table 2"
)
def dualpipe_bubble_time(
    pp,
    microbatches,
    slowest_stage_time,
    time_by_stage,
    pass_times_by_chunk,
    kind_layers,
    mtp_kind_layers,
    unpaired_ep_time,
):
    """Idle time of the slowest device in DualPipe, with exchanges that no other microbatch hides.

    DeepSeek-V3 gives (p/2 - 1)·(F&B + B - 3W) for equal stages: F&B a pair of passes, B a whole backward pass, W its
    weight gradients. Valid for an even number of stages and at least 2p microbatches.
    """
    chunks, (first_time, middle_time, _) = passes_of(pass_times_by_chunk), stages_of(time_by_stage)
    half = pp / 2
    # short stages on the way are passed sooner than the stage that sets the pace
    shorter = (half - 1) * (middle_time - sum(chunks[1]))
    first = first_idle_in_dualpipe(half, *chunks) - microbatches * (slowest_stage_time - first_time)
    # a device waits for its first microbatch at least
    inner = xp.maximum(inner_idle_in_dualpipe(half, *chunks) - shorter, chunks[0][0])
    inner = inner - microbatches * (slowest_stage_time - middle_time)
    alone = fill_and_drain_wait(half, of_kinds(kind_layers + mtp_kind_layers, unpaired_ep_time) / pp)
    return xp.where(pp > 2, xp.maximum(first, inner), 0.0) + xp.where(pp > 1, alone, 0.0)


@alternative(of="bubble_time", by="schedule", label="dualpipe_v", unit="s", source="deepseek2025dualpipe")
def dualpipe_v_bubble_time(
    pp,
    microbatches,
    slowest_stage_time,
    time_by_stage,
    pass_times_by_chunk,
    kind_layers,
    mtp_kind_layers,
    unpaired_ep_time,
):
    """Idle time of the slowest device in DualPipeV, with exchanges that no other microbatch hides.

    That of DualPipe on twice as many devices. Valid for two chunks per device and at least 2p microbatches.
    """
    chunks, (first_time, _, last_time) = passes_of(pass_times_by_chunk), stages_of(time_by_stage)
    first = first_idle_in_dualpipe(pp, *chunks) - microbatches * (slowest_stage_time - first_time)
    inner = inner_idle_in_dualpipe(pp, *chunks) - microbatches * (slowest_stage_time - last_time)
    alone = fill_and_drain_wait(pp, of_kinds(kind_layers + mtp_kind_layers, unpaired_ep_time) / (2 * pp))
    return xp.where(pp > 1, xp.maximum(first, inner) + alone, 0.0)


# ---- constraints -----------------------------------------------------------------------------------------------------


@constraint(
    reason="the schedule needs more microbatches: 2 pp - 1 in zb_v, 2 pp in dualpipe and dualpipe_v",
    source="deepseek2025dualpipe",
)
def microbatches_fill_schedule(microbatches, fewest_microbatches):
    """The step has as many microbatches as the pattern of the schedule needs."""
    return microbatches >= fewest_microbatches


@constraint(reason="dualpipe needs an even number of stages", source="deepseek2025dualpipe")
def two_way_stages_pair(pp, weight_copies):
    """Every device holds a stage and its mirror image."""
    return (weight_copies == 1) | (pp % 2 == 0)


@constraint(reason="dualpipe needs an even number of microbatches", source="deepseek2025dualpipe")
def two_way_microbatches_pair(microbatches, weight_copies):
    """Half of the microbatches go each way."""
    return (weight_copies == 1) | (microbatches % 2 == 0)
