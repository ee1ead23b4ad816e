"""Pipeline schedules GPipe, 1F1B and interleaved 1F1B: bubble, exposed transfers and microbatches in flight.

Schedules that defer weight gradients are in `zero_bubble`, bidirectional ones in `dualpipe`.

The label ``schedule`` selects among the alternatives below; ``chunks`` > 1 makes 1F1B interleaved.
Symbols: p stages, m microbatches, v chunks per device; F, B and W: time of a stage for a microbatch's forward
pass, input gradients and weight gradients, as in `zero_bubble`.
A step takes m·(F + B + W) plus the bubble; with equal stages

| schedule | bubble | microbatches in flight at stage i |
|---|---|---|
| GPipe | (p - 1)·(F + B + W) | m |
| 1F1B | (p - 1)·(F + B + W) | min(m, p - i) |
| interleaved 1F1B | (p - 1)·(F + B + W)/v | min(m, p - 2i/v + (p - 1)/v) |

The closed forms are longest paths through the dependencies of a schedule between passes, also for uneven stages.
`tests/physics` executes the schedules event by event, with the stages of `stages`, and compares:

* GPipe: exact, also with transfers.
* 1F1B: within 0.5 % with more microbatches than stages (mostly exact), within 1.5 % with fewer (two layers per stage
  or more).
* Interleaved 1F1B: exact where layers divide, within 1.5 % where the first or the last chunk lacks a layer, from three
  stages on; on two stages with one layer per chunk it may be a quarter too fast.
* Transfers of up to 5 % of a layer's forward pass add at most 1.5 % to these differences.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.engine.graph.tables import by_label
from perfgrid.formulas.axes import at, of_kinds, table
from perfgrid.formulas.transformer.layer_kinds import last_layers, run_of_layers

from .stages import largest_of_stages, stages_of

FORMULAS = by_label(
    "schedule",
    {
        "in_flight_by_stage": (
            *("1", "huang2019gpipe"),
            "Microbatches whose activations each stage keeps at most, by stage: in GPipe all of the step.",
        )
    },
    {"gpipe": ("microbatches",)},
)

# ---- equations ------------------------------------------------------------------------------------------------------


def idle_while_pacing(before, after, forward, backward, ahead):
    """Idle time of a stage that sets the pace of 1F1B: a longest path that stays on it as long as possible.

    It waits for the first microbatch to pass the stages ``before`` it and for the last gradient to return through them.
    For the first and the last microbatch it also waits for the round trip through the stages ``after`` it, less the
    ``ahead`` forward or backward passes that it runs meanwhile.
    """
    return before + xp.maximum(after - ahead * forward, 0.0) + xp.maximum(after - ahead * backward, 0.0)


def chunks_ahead(stages_after, chunks):
    """Chunks that a stage of 1F1B may run ahead of the last stage: one per stage after it, two if interleaved."""
    return xp.where(chunks > 1, 2.0, 1.0) * stages_after


def gpipe_bubble(all_stages, slowest, slowest_forward, slowest_backward, microbatches):
    """Idle time of the slowest stage when all forward passes precede all backward passes (Huang 2019).

    Each half is a flow shop of equal jobs: one job passes through all stages, the others follow at the pace of the
    slowest stage.
    """
    return all_stages - slowest + (microbatches - 1) * (slowest_forward + slowest_backward - slowest)


def round_trips(pp, microbatches):
    """Round trips of the longest path of 1F1B through all stages: one per pp microbatches."""
    return xp.floor((microbatches - 1) / pp) + 1


def transfers_on_the_way(pp, microbatches):
    """Transfers on the longest path of 1F1B between equal stages: 2(p - 1)(m/p + 1) - 2 if p divides m."""
    left = (microbatches - 1) % pp
    return 2 * (round_trips(pp, microbatches) * (pp - 1) + xp.maximum(left - 1, 0.0))


def stages_in_flight(pp, position, chunks, microbatches):
    """Activations that stage i of 1F1B keeps, in units of one microbatch's on the whole stage (Narayanan 2021).

    1F1B keeps p - i microbatches. The interleaved schedule starts 2(p - i - 1) + (v - 1)·p + 1 chunks before the first
    backward pass: p + (p - 1)/v stages' worth at the first stage. No schedule keeps more than the m of the step.
    """
    interleaved = (2 * (pp - position - 1) + (chunks - 1) * pp + 1) / chunks
    return xp.minimum(xp.where(chunks > 1, interleaved, pp - position), microbatches)


# ---- idle time of the stage that sets the pace ----------------------------------------------------------------------


@formula(unit="1", source="narayanan2021")
def filling_kind_layers(pp, chunk_layers, missing_by_stage, kind_layers, leading_layers, expert_layer_step):
    """Layers of each kind before the first chunk of the last stage, which the first microbatch passes first."""
    first_missing, short_stages, _ = stages_of(missing_by_stage)
    filling = (pp - 1) * chunk_layers - (first_missing + short_stages)
    return run_of_layers(0.0, filling, kind_layers, leading_layers, expert_layer_step)


@formula(unit="s", source="narayanan2021")
def last_stage_idle_time(
    pp,
    chunks,
    filling_kind_layers,
    first_chunk_kind_layers,
    chunk_layers,
    layers,
    kind_layers,
    leading_layers,
    expert_layer_step,
    layer_time,
    embedding_time,
):
    """Idle time of the last stage if it sets the pace: the first microbatch arrives, the last gradient returns.

    (p - 1)·(F + B + W)/v with equal stages: the first chunks of all stages but the last. In an interleaved pipeline, if
    the embedding makes the first chunk the longest, every other stage is delayed by the difference.
    """
    others = last_layers(chunk_layers, layers, kind_layers, leading_layers, expert_layer_step)
    longer = embedding_time + of_kinds(first_chunk_kind_layers - others, layer_time)
    jam = xp.where(chunks > 1, (pp - 1) * xp.maximum(longer, 0.0), 0.0)
    return of_kinds(filling_kind_layers, layer_time) + embedding_time + jam


@formula(unit="s", source="narayanan2021")
def middle_stage_idle_time(
    last_stage_idle_time,
    short_middle_stages,
    chunks,
    chunk_layers,
    last_missing_layers,
    last_kind,
    layer_time,
    layer_forward_time,
    head_time,
):
    """Idle time of the latest full middle stage if it sets the pace of 1F1B (`idle_while_pacing`).

    Valid where layers are of the kind of the last one from that stage on.
    """
    short_layers = short_middle_stages * (chunk_layers - 1)  # of the stages between it and the last
    following_layers = chunk_layers + short_layers
    returning_layers = short_layers + chunk_layers - last_missing_layers
    last_layer_time = of_kinds(last_kind, layer_time)
    last_layer_forward_time = of_kinds(last_kind, layer_forward_time)
    return idle_while_pacing(
        last_stage_idle_time - following_layers * last_layer_time,
        returning_layers * last_layer_time + head_time,
        chunk_layers * last_layer_forward_time,
        chunk_layers * (last_layer_time - last_layer_forward_time),
        chunks_ahead(short_middle_stages + 1, chunks),
    )


@formula(unit="s", source="narayanan2021")
def first_stage_idle_time(
    pp,
    chunks,
    chunk_layers,
    short_middle_stages,
    last_missing_layers,
    first_stage_kind_layers,
    last_kind,
    layer_time,
    layer_forward_time,
    embedding_time,
    embedding_forward_time,
    head_time,
):
    """Idle time of the first of several stages if it sets the pace of 1F1B (`idle_while_pacing`).

    Valid where layers are of the kind of the last one after that stage.
    """
    forward = of_kinds(first_stage_kind_layers, layer_forward_time) + embedding_forward_time
    passes = of_kinds(first_stage_kind_layers, layer_time) + embedding_time
    returning_layers = (pp - 1) * chunk_layers - (short_middle_stages + last_missing_layers)
    returning = of_kinds(returning_layers * last_kind, layer_time) + head_time
    return idle_while_pacing(
        0.0, returning, forward / chunks, (passes - forward) / chunks, chunks_ahead(pp - 1, chunks)
    )


# ---- bubble ---------------------------------------------------------------------------------------------------------


@formula(unit="s", source="narayanan2021")
def layer_longer_time(layer_forward_time, layer_backward_time):
    """The longer of a layer's passes for one microbatch.

    A formula of its own because ``bubble_time`` is evaluated on all points of a grid, and layers on few.
    """
    return xp.maximum(layer_forward_time, layer_backward_time)


@formula(unit="1", source="narayanan2021")
def alternating_stages(pp, microbatches, chunks, short_middle_stages):
    """Early stages of 1F1B that alternate forward and backward passes: 0, 1 (the middle one), or 2 (the first, too).

    The others have no more microbatches than they may run ahead, and run all forward passes first.
    """
    middle, first = (xp.where(microbatches > after + 1, 1.0, 0.0) for after in (short_middle_stages + 1, pp - 1))
    return xp.where(chunks > 1, 2.0, middle + first)


@alternative(
    of="bubble_time", by="schedule", label="1f1b", unit="s", source="narayanan2021", where="sections 2.2.1 and 2.2.2"
)
def one_forward_one_backward_bubble_time(
    pp,
    microbatches,
    alternating_stages,
    model_pass_time,
    slowest_stage_time,
    first_stage_time,
    first_stage_idle_time,
    first_stage_kind_layers,
    middle_stage_time,
    middle_stage_idle_time,
    middle_stage_kind_layers,
    last_stage_time,
    last_stage_idle_time,
    layer_longer_time,
):
    """Idle time of the slowest stage in 1F1B while the pipeline fills and drains: the longest of three paths.

    With equal stages (p - 1)·(F + B + W), interleaved (p - 1)·(F + B + W)/v. Each path stays on one stage as long as
    possible.
    An early stage that may run all microbatches ahead runs all forward passes before any backward pass: its path goes
    through all stages and back once, and repeats the longer of both passes for every other microbatch.
    """

    def idle(once, repeated):  # of the slowest stage, if the step takes ``once`` + microbatches·``repeated``
        return once - microbatches * (slowest_stage_time - repeated)

    def idle_early(alternates, once, repeated, layers):
        longer = of_kinds(layers, layer_longer_time)
        once = xp.where(alternates, once, model_pass_time - longer)
        return idle(once, xp.where(alternates, repeated, longer))

    by_first = idle_early(alternating_stages > 1, first_stage_idle_time, first_stage_time, first_stage_kind_layers)
    by_middle = idle_early(alternating_stages > 0, middle_stage_idle_time, middle_stage_time, middle_stage_kind_layers)
    ends = xp.maximum(idle(last_stage_idle_time, last_stage_time), by_first)
    return xp.where(pp > 2, xp.maximum(ends, by_middle), xp.where(pp > 1, ends, 0.0))


@alternative(of="bubble_time", by="schedule", label="gpipe", unit="s", source="huang2019gpipe", where="section 2.3")
def gpipe_bubble_time(pp, microbatches, model_pass_time, slowest_stage_time, time_by_stage, pass_times_by_stage):
    """Idle time of the slowest stage in GPipe while the pipeline fills, reverses and drains.

    (p - 1)·(F + B + W) with equal stages, as in 1F1B, but more memory. Exact for stages of any length.
    """
    forward = at(pass_times_by_stage, phase="forward")
    slowest = slowest_stage_time, largest_of_stages(forward), largest_of_stages(time_by_stage - forward)
    return xp.where(pp > 1, gpipe_bubble(model_pass_time, *slowest, microbatches), 0.0)


# ---- point-to-point transfers that the step waits for ---------------------------------------------------------------


@formula(unit="1", source="narayanan2021")
def transfers_waited_for(pp, microbatches, chunks):
    """Point-to-point transfers on the longest path of 1F1B between equal stages: 2(p - 1)(m/p + 1) - 2 if p divides m.

    Receiving overlaps with other work. The interleaved schedule has other chunks to work on and waits only for the
    first and the last microbatch: 2(p·v - 1). Apart because ``exposed_pp_time`` is evaluated on all points of a grid.
    """
    return xp.where(chunks > 1, 2 * (pp * chunks - 1), transfers_on_the_way(pp, microbatches))


@alternative(of="exposed_pp_time", by="schedule", label="1f1b", unit="s", source="narayanan2021")
def one_forward_one_backward_exposed_pp_time(
    pp, microbatches, chunks, transfers_waited_for, stage_transfer_time, slowest_stage_time, model_pass_time
):
    """Time of the transfers between stages that 1F1B waits for, per step: at least those of one round trip.

    Uneven stages have slack: the path through all transfers takes one round trip per p microbatches, the slowest stage
    p times its own time. The last round trip has none, nor have interleaved stages.
    """
    waits = (round_trips(pp, microbatches) - 1) * (pp * slowest_stage_time - model_pass_time)
    slack = xp.where(chunks > 1, 0.0, waits)
    least = 2 * (pp - 1) * stage_transfer_time
    return xp.where(pp > 1, xp.maximum(transfers_waited_for * stage_transfer_time - slack, least), 0.0)


# ---- microbatches in flight -----------------------------------------------------------------------------------------


@alternative(
    of="in_flight_by_stage", by="schedule", label="1f1b", unit="1", source="narayanan2021", where="section 2.2"
)
def in_flight_of_1f1b(pp, chunks, microbatches):
    """Microbatches whose activations each stage of 1F1B keeps at most, in units of the whole stage, by stage.

    min(m, p - i) at stage i, interleaved min(m, (2(p - i - 1) + (v - 1)·p + 1)/v). Of middle stages the second one of
    the pipeline keeps most.
    """
    position = table("stage", first=0.0, middle=1.0, last=pp - 1)
    return stages_in_flight(pp, position, chunks, microbatches)


# ---- constraints -----------------------------------------------------------------------------------------------------


@constraint(reason="the schedule does not support so many chunks per device", source="narayanan2021")
def schedule_takes_chunks(chunks, most_chunks):
    """Whether the schedule supports this number of chunks (virtual stages) per device."""
    return chunks <= most_chunks


@constraint(reason="a V schedule holds exactly two chunks on every device: chunks = 2", source="qi2024zerobubble")
def folded_schedules_hold_two_chunks(chunks, folded):
    """Whether a V schedule has two chunks per device: one down the devices, one back up."""
    return (folded == 0) | (chunks == 2)
