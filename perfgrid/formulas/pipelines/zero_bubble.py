"""Zero-bubble schedules, which put weight gradients off to fill the pipeline's idle time: ZB-H1 and ZB-V.

A backward pass is split into input gradients (B below), which the stage before waits for, and weight gradients (W),
which nobody waits for. ZB-H1 passes microbatches as 1F1B does; stage i computes the weight gradients of a microbatch i
microbatches later. In ZB-V every device holds two chunks, in the order of a V. Time runs until the last device is done,
since the optimizer waits for the gradient norm of the whole model: with F = B = W ZB-V, whose published bubble is zero,
still waits for (p - 1) passes through a chunk.

The closed forms are longest paths that stay on one device as long as possible; `tests/physics` executes the schedules
event by event and compares:

* Equal stages: exact where no weight gradient takes longer than the other passes.
* Uneven stages (layers that do not divide, an embedding, a head of up to 1.2 layers, two layers per chunk or more):
  never above. ZB-H1 at most 3 % below with more microbatches than stages, 2 % with three layers per stage or more, up
  to a fifth with fewer microbatches. ZB-V at most 0.5 % below, 5 % where weight gradients take longer than input
  gradients; with heads of up to 5 layers (that of DeepSeek-V3 with its prediction module has 3 to 5) about 2 %, with
  two layers per chunk 5 %.
* Transfers of up to 5 % of a layer's forward pass add at most 2 % to these differences.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import at, table

from .stages import passes_of, stages_of

# ---- equations ------------------------------------------------------------------------------------------------------


def idle_in_zb_h1(before, after, above, position, ahead, forward, input_gradient, weight_gradient, first, microbatches):
    """Idle time of a stage that sets the pace of ZB-H1.

    ``before`` is the forward time of the stages before it, ``above`` the time of their input gradients, ``after`` the
    time of the stages after it, there and back, without weight gradients; ``ahead`` are the microbatches that it does
    ahead of the last stage, ``first`` the weight gradients of one microbatch at the first stage. After its last input
    gradient it has the weight gradients of ``position`` + 1 microbatches left, while the gradient goes up.
    """
    puts_off = xp.where(position > 0, 1.0, 0.0)
    left = xp.minimum(position + 1, microbatches)
    end = xp.maximum(above + first - left * weight_gradient, 0.0)
    filling = xp.maximum(after - ahead * forward, 0.0)
    draining = xp.maximum(after - ahead * (input_gradient + weight_gradient), 0.0)
    # with few microbatches all forward passes come before the first backward pass, and the longer of both is repeated
    shorter = xp.minimum(forward, input_gradient + (1 - puts_off) * weight_gradient)
    apart = after - (microbatches - 1) * shorter - puts_off * (microbatches - left) * weight_gradient
    return before + end + xp.where(microbatches > ahead + 1, filling + draining, apart)


def first_idle_in_zb_v(devices, first, inner, last):
    """Idle time of the first device of ZB-V if it sets the pace; ``first``, ``inner``, ``last`` are chunks.

    Each chunk is (forward, input gradient, weight gradient). It need not wait at all, or at the end: until the last
    weight gradients of the others, or for the last gradient to go down the other devices and up again; or before.
    """
    first_forward, first_backward = first[0], first[1] + first[2]
    forward, gradient, weight = inner
    last_forward_backward, last_weight = last[0] + last[1], last[2]
    others = devices - 1
    weights_of_others = devices * (gradient - first_backward) + (2 * devices - 1) * weight - last_weight
    last_round = others * (2 * gradient - first_backward) - last_weight
    two_rounds = others * (4 * gradient - first_backward - last_forward_backward - last_weight)
    two_rounds = two_rounds + forward - first_forward + weight - 2 * last_weight
    return xp.maximum(xp.maximum(weights_of_others, last_round), xp.maximum(two_rounds, 0.0))


def inner_idle_in_zb_v(devices, first, inner, last):
    """Idle time of the other devices of ZB-V if they set the pace."""
    forward, gradient, weight = inner
    turn = xp.maximum(last[0] + last[1] - 2 * forward, 0.0)  # at the end of the model
    end = xp.maximum(first[1] + first[2] - 3 * weight, 0.0)  # at its start
    round_trip = (devices - 2) * xp.maximum(forward, gradient)
    by_inner = turn + xp.maximum(round_trip, 2 * (devices - 2) * (gradient - weight) + end)
    by_last = (devices - 1) * (last[0] + last[1]) + (devices - 2) * (last[2] - gradient) - devices * forward
    return first[0] + xp.maximum(by_inner, by_last)


# ---- bubble ---------------------------------------------------------------------------------------------------------


@formula(unit="s", source="qi2024zerobubble")
def idle_time_of_zb_h1(pp, microbatches, short_middle_stages, model_pass_times, pass_times_by_stage):
    """Idle time of each stage if it sets the pace of ZB-H1, by stage; of the middle ones that of the latest full one.

    (p - 1)·(F + B - W) of the last stage with equal stages.
    """
    first, middle, last = passes_of(pass_times_by_stage)
    model, gradients = (at(model_pass_times, phase=phase) for phase in ("forward", "input_gradient"))
    end = first[2], microbatches
    idle_first = idle_in_zb_h1(0.0, model + gradients - first[0] - first[1], 0.0, 0.0, pp - 1, *first, *end)  # pyright: ignore[reportCallIssue]
    ahead = short_middle_stages + 1
    between = pp - 2 - ahead  # full stages after the first and before this one
    before, above = first[0] + between * middle[0], first[1] + between * middle[1]
    after = model + gradients - before - above - middle[0] - middle[1]
    idle_middle = idle_in_zb_h1(before, after, above, pp - 1 - ahead, ahead, *middle, *end)  # pyright: ignore[reportCallIssue]
    idle_last = idle_in_zb_h1(model - last[0], 0.0, gradients - last[1], pp - 1, 0.0, *last, *end)  # pyright: ignore[reportCallIssue]
    return table("stage", first=idle_first, middle=idle_middle, last=idle_last)


@alternative(of="bubble_time", by="schedule", label="zb_h1", unit="s", source="qi2024zerobubble")
def zb_h1_bubble_time(pp, microbatches, slowest_stage_time, time_by_stage, idle_time_of_zb_h1):
    """Idle time of the slowest stage in ZB-H1: the longest of three paths, each on one stage.

    (p - 1)·(F + B - W) with equal stages, B the input gradients: 1F1B less 2(p - 1)·W. Valid for W <= F and W <= B.
    """
    first, middle, last = stages_of(idle_time_of_zb_h1 - microbatches * (slowest_stage_time - time_by_stage))
    ends = xp.maximum(first, last)
    return xp.where(pp > 2, xp.maximum(ends, middle), xp.where(pp > 1, ends, 0.0))


@alternative(of="bubble_time", by="schedule", label="zb_v", unit="s", source="qi2024zerobubble")
def zb_v_bubble_time(pp, microbatches, slowest_stage_time, time_by_stage, pass_times_by_chunk):
    """Idle time of the slowest device in ZB-V, until the last device is done.

    (p - 1)·max(B, 2·(B - W)) with equal chunks and F <= B, all of one chunk, B the input gradients. Valid for two
    chunks per device and at least 2p - 1 microbatches.
    """
    chunks, (first, _, last) = passes_of(pass_times_by_chunk), stages_of(time_by_stage)
    by_first = first_idle_in_zb_v(pp, *chunks) - microbatches * (slowest_stage_time - first)
    by_inner = inner_idle_in_zb_v(pp, *chunks) - microbatches * (slowest_stage_time - last)
    return xp.where(pp > 1, xp.maximum(by_first, by_inner), 0.0)


# ---- point-to-point transfers ---------------------------------------------------------------------------------------


@alternative(of="exposed_pp_time", by="schedule", label="zb_h1", unit="s", source="qi2024zerobubble")
def zb_h1_exposed_pp_time(pp, microbatches, stage_transfer_time):
    """Transfers between stages that ZB-H1 waits for, per step: two ways there and back, in the first p microbatches.

    4(p - 1) from p + 1 microbatches on; after these, weight gradients fill the time of every transfer.
    """
    again = xp.minimum(xp.maximum(microbatches - 2, 0.0), pp - 1)
    return xp.where(pp > 1, 2 * (pp - 1 + again) * stage_transfer_time, 0.0)
