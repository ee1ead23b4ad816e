"""Latencies of a replica: one pass of the prefill and of decoding, and what a request makes of them."""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.formulas.axes import at, table, total
from perfgrid.formulas.kernels.host import counted

from .batching import REPLACED

WHOLE = 1e-6  # relative rounding of a number of passes


def in_pass(value, which):
    """The value of one pass."""
    return at(value, **{"pass": which})


def with_steps(prompts, steps, mixed):
    """Values by pass: what prompts take and, where iterations are mixed, the steps beside them; and steps alone."""
    return table("pass", prefill=prompts + mixed * steps, decode=steps)


@formula(unit="s", source="pope2022inference")
def kernels_time(
    products_time, experts_time, attention_time, mixers_time, indexers_time, streams_time, remaining_cores
):
    """Time of all kernels of one pass through all layers, by resource and pass."""
    return (
        products_time + experts_time + attention_time + mixers_time + indexers_time + streams_time
    ) / remaining_cores


@formula(
    unit="s",
    source="pope2022inference",
    family={"KIND": ("products", "experts", "attention", "mixers", "indexers", "streams")},
)
def KIND_busy_time(KIND_time, remaining_cores):
    """Time of the KIND of one pass through all layers, whatever they wait for, by pass."""
    return total(KIND_time, "resource") / remaining_cores


@formula(unit="s", source="pope2022inference")
def busy_time(
    products_busy_time, experts_busy_time, attention_busy_time, mixers_busy_time, indexers_busy_time, streams_busy_time
):
    """Time of all kernels of one pass through all layers, by pass."""
    mixing = attention_busy_time + mixers_busy_time + indexers_busy_time
    return products_busy_time + experts_busy_time + mixing + streams_busy_time


@formula(unit="1", source="deepseek2024v3")
def remaining_cores(exchange_core_share, batch_parts):
    """Part of the cores that is left for kernels, by pass: a hidden exchange of many tokens takes the others."""
    return table("pass", prefill=xp.where(batch_parts > 1, 1 - exchange_core_share, 1.0), decode=1.0)


@formula(unit="s", source="deepseek2024v3")
def exposed_exchange_time(exchange_time, busy_time, batch_parts, exchange_overlap):
    """Time of the exchange with experts that no kernels of another part of the batch hide, by pass."""
    hidden = xp.where(batch_parts > 1, exchange_overlap, 0.0)
    return exchange_time - hidden * xp.minimum(exchange_time, busy_time)


@alternative(of="communication_time", by="workload", label="inference", unit="s", source="pope2022inference")
def serving_communication_time(tp_time, exposed_exchange_time, pipeline_transfer_time, context_exchange_time):
    """Time in which a pass waits for other ranks, by pass."""
    return tp_time + exposed_exchange_time + pipeline_transfer_time + context_exchange_time


@formula(unit="s", source="pope2022inference")
def host_work_time(group_batch, pass_prompts, mixed_iterations, step_overhead, sequence_overhead):
    """Time of the host's work between two passes, by pass: it visits sequences, not positions."""
    return step_overhead + sequence_overhead * with_steps(pass_prompts, group_batch, mixed_iterations)


@formula(unit="1", source="vllm2026async, vllm2026mambaasync")
def works_ahead(asynchronous_scheduling, mixer_layers):
    """1 where the host puts an iteration together while one runs; not where prefixes of recurrent states are cached.

    That they are is taken for all models with recurrent layers: the default of vLLM.
    """
    return xp.where(asynchronous_scheduling, 1.0, 0.0) * xp.where(mixer_layers > 0, 0.0, 1.0)


@formula(unit="1", source="vllm2026async")
def rounds_ahead(works_ahead, pp):
    """Iterations that are put together ahead: a group of a pipeline is when it has come out of the last stage."""
    return works_ahead * xp.where(pp > 1, 0.0, 1.0)


@formula(unit="s", source="pope2022inference, vllm2026async")
def host_time(host_work_time, busy_time, communication_time, late_launch_time, step_overhead, works_ahead):
    """Time between two passes in which the devices wait for the host, by pass.

    A host that puts the next iteration together while one runs makes devices wait only if it takes longer.
    """
    late = xp.maximum(host_work_time - busy_time - communication_time - late_launch_time, step_overhead)
    return works_ahead * late + (1 - works_ahead) * host_work_time


@constraint(reason="this software is for training only", source="kwon2023vllm", about="pass_time")
def software_serves(serves):
    """The software has a loop that serves requests."""
    return xp.logical_and(serves, True)


@constraint(
    reason="this software does not run on devices of this vendor",
    source="vllm2026platforms",
    about="pass_time",
    of="software_runs_on_device",
    workload="inference",
)
def serving_software_runs_on_device(vendor_support):
    """The software runs on the device, as it is or ported."""
    return vendor_support > 0


@formula(unit="1", source="gray2019cudagraphs, zheng2024sglang")
def prefill_launches(
    kernels_time,
    decode_attention_time,
    decode_mixer_time,
    mixer_layers,
    mixed_iterations,
    launch_overhead,
    tp_all_reduces,
    moe_exchanges,
):
    """Kernels of a pass with prompts: those that the formulas count, all-reduces, sending to experts and returning.

    The host launches the attention of prompts and of the steps beside them as one operation.
    """
    beside = mixed_iterations * (decode_attention_time + mixer_layers * decode_mixer_time)
    kernels = counted(at(in_pass(kernels_time, "prefill") - beside, resource="launch"), launch_overhead)
    return kernels + tp_all_reduces + 2 * moe_exchanges


@formula(unit="s", source="sglang2025prefillgraph, deepspeed2026rollout")
def late_launch_time(prefill_launches, prompt_launch_time, busy_time, communication_time, late_step_time):
    """Time in which the devices wait for the host's launches, by pass: passes with prompts do not run as graphs.

    The host runs ahead while kernels last, so a pass takes the longer of both.
    """
    device = in_pass(busy_time + communication_time, "prefill")
    late = xp.maximum(prefill_launches * prompt_launch_time - device, 0.0)
    return table("pass", prefill=late, decode=late_step_time)


@formula(unit="s", source="pope2022inference")
def pass_time(busy_time, communication_time, late_launch_time, host_time, prefilled):
    """Time of one pass through all stages, by pass: kernels, other ranks, and the host, late or between passes.

    A request that comes with its cache begins with a step.
    """
    whole = busy_time + communication_time + late_launch_time + host_time
    prefill, decode = in_pass(whole, "prefill"), in_pass(whole, "decode")
    return table("pass", prefill=xp.where(prefilled, decode, prefill), decode=decode)


@alternative(of="awaited_passes", by="batch_rule", label="given", unit="1", source="narayanan2021",
             others={REPLACED: "own_passes"})  # fmt: skip
def given_awaited_passes(prefill_passes, batch_groups, batch_parts):
    """Passes of the prefill until a request has its first token: of all parts of the batch that starts together."""
    return prefill_passes * batch_groups * batch_parts


@formula(unit="1", source="narayanan2021")
def prefill_rounds(awaited_passes, stage_share):
    """Times that the pipeline is traversed in a prefill: by one pass, others follow at the fullest stage's pace."""
    return 1 + (awaited_passes - 1) * stage_share


@alternative(of="started_passes", by="batch_rule", label="given", unit="1", source="agrawal2024sarathi")
def given_started_passes(prefill_passes):
    """Part of a pass by which the last one of prompts that start together is begun and not filled."""
    return xp.maximum(xp.ceil(prefill_passes * (1 - WHOLE)) - prefill_passes, 0.0)


@alternative(of="started_passes", by="batch_rule", label=REPLACED, unit="1", source="agrawal2024sarathi")
def LABEL_started_passes(prompt_ratio, length_weight, computed_prompt_tokens, prompt_budget):
    """Part of a pass by which the last one of a prompt is begun and not filled, mean over prompts of all lengths."""
    parts = computed_prompt_tokens / prompt_budget
    passes = xp.maximum(xp.ceil(prompt_ratio * parts * (1 - WHOLE)), 1.0)
    return xp.maximum(total(passes * length_weight, "length") - xp.maximum(parts, 1.0), 0.0)


@formula(unit="s", source="narayanan2021, agrawal2024sarathi")
def prefill_time(pass_time, prefill_rounds, started_passes, begun_pass_time, stage_share):
    """Time until the prompts that a request waits for are computed: its own, or those of the batch that starts.

    What is left for the last pass of a prompt costs its tokens and, where that is not filled, as much as a step, or as
    any pass with so few tokens.
    """
    started = xp.maximum(started_passes * in_pass(pass_time, "decode"), begun_pass_time)
    return in_pass(pass_time, "prefill") * prefill_rounds + started * stage_share


@formula(unit="s", source="leviathan2023speculative")
def even_step_time(pass_time, batch_parts, draft_tokens, draft_cost, batch_groups, stage_share):
    """Time of one decoding step of a batch in even groups, all its parts and drafting included.

    A group is back at the first stage when it has passed all of them, or when the fullest has computed every group.
    """
    paced = in_pass(pass_time, "decode") * xp.maximum(batch_groups * stage_share, 1.0)
    return batch_parts * paced * (1 + draft_tokens * draft_cost)
