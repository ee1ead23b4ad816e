"""Serving: what requests wait for, tokens per second, goodput, and disaggregated pools, in steady state."""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.engine.graph.tables import by_label
from perfgrid.formulas.axes import at, total

from .batching import LOOPS, NODES
from .iterations import LEAST_ADDED, UNBOUND
from .latency import in_pass

PARTS = {"PART": ("kernels", "communication", "host", "late_launch")}  # of a pass

# ---- latencies ------------------------------------------------------------------------------------------------------


@alternative(of="loaded_step_time", by="batch_rule", label=LOOPS, unit="s", source="little1961",
             others={"given": "loop_step_time"})  # fmt: skip
def LABEL_loaded_step_time(loop_step_time, interference):
    """Time from step to step of a running sequence, prompts of others included."""
    return loop_step_time / (1 - interference)


@alternative(of="loaded_step_time", by="batch_rule", label="rate", unit="s", source="little1961")
def rate_loaded_step_time(free_answer, crowd_answer, crowd_share, decode_steps, answering_step_time):
    """Time from step to step of a running sequence, prefills of others in between included (`answering`)."""
    mean = free_answer + crowd_share * (crowd_answer - free_answer)
    return xp.where(decode_steps > 0, mean / xp.maximum(decode_steps, 1.0), answering_step_time)


@formula(unit="s", source="leviathan2023speculative")
def time_per_output_token(loaded_step_time, accepted_tokens):
    """Mean time between the tokens of one sequence."""
    return loaded_step_time / accepted_tokens


@alternative(of="queueing_time", by="batch_rule", label="rate", unit="s", source="kleinrock1975queueing",
             others={"given": 0.0, LOOPS: "loop_queueing_time"})  # fmt: skip
def rate_queueing_time(front_end_time, free_wait, crowd_share, crowd_wait):
    """Mean wait of a request before its prefill: for the server, and for what it meets there (`arrivals`)."""
    free = at(free_wait, statistic="mean")
    return front_end_time + free + crowd_share * (crowd_wait - free)


@formula(unit="1", source="little1961")
def occupied_share(offered_rate, request_capacity):
    """Part of the time in which a replica has a sequence to decode: at low rates one after the other."""
    return xp.minimum(offered_rate / at(request_capacity, load=NODES[0]), 1.0)


@formula(unit="s", source="pope2022inference")
def time_to_first_token(first_time, mean_prefill_ratio, queueing_time):
    """Mean time from arrival to first token; by the rule given, of prompts that arrive together.

    By the others a request waits for the iterations that hold its own prompt, beside others that came in a step.
    """
    return queueing_time + first_time * mean_prefill_ratio


@formula(unit="s", source="pope2022inference")
def request_latency(time_to_first_token, loaded_step_time, decode_steps):
    """Time from the arrival of a request to its last token, mean; of short closed loops as if they went on."""
    return time_to_first_token + decode_steps * loaded_step_time


# ---- what a request waits for ---------------------------------------------------------------------------------------


@formula(unit="s", source="williams2009roofline", family=PARTS)
def prefill_PART_time(PART_time, prefill_rounds, started_passes, stage_share, load_weight):
    """PART part of the time of a prefill (kernels: by resource)."""
    started = started_passes * stage_share * in_pass(PART_time, "decode")
    return total((in_pass(PART_time, "prefill") * prefill_rounds + started) * load_weight, "load")


@formula(unit="s", source="williams2009roofline", family=PARTS)
def decode_PART_time(PART_time, batch_parts, load_weight):
    """PART part of the time of one decoding step (kernels: by resource)."""
    return total(batch_parts * in_pass(PART_time, "decode") * load_weight, "load")


@formula(unit="s", source="williams2009roofline, little1961", family=PARTS)
def replica_PART_time(PART_time, pass_time, going_on, request_prefill_time, request_decode_time, load_weight):
    """PART part of the time of a replica that a request takes: of what its prompt adds, and of its share of steps.

    Prompts of others hold a request up, too: its own passes do not tell what more requests would wait for.
    """
    prefill, step = in_pass(PART_time, "prefill"), in_pass(PART_time, "decode")
    whole, each = in_pass(pass_time, "prefill"), in_pass(pass_time, "decode")
    added = (prefill - going_on * step) / xp.maximum(whole - going_on * each, LEAST_ADDED * whole)
    return total((request_prefill_time * added + request_decode_time * step / each) * load_weight, "load")


# ---- rates ----------------------------------------------------------------------------------------------------------


@formula(unit="1/s", source="yu2022orca")
def output_tokens_per_second(served_rate, output_tokens):
    """Output tokens of the whole system per second, prefills included."""
    return served_rate * output_tokens


@formula(unit="1/s", source="yu2022orca")
def output_tokens_per_second_per_device(output_tokens_per_second, devices):
    """Output tokens per second and device, prefills included."""
    return output_tokens_per_second / devices


@formula(unit="1/s", source="yu2022orca")
def output_tokens_per_second_per_user(time_per_output_token):
    """Output tokens of one sequence per second while it is decoded."""
    return 1 / time_per_output_token


@formula(unit="1/s", source="zhong2024distserve")
def decode_tokens_per_second(tabulated_batch, accepted_tokens, decode_step_time, load_weight):
    """Output tokens per second of devices that decode only, with the same batch."""
    return total(tabulated_batch * accepted_tokens / decode_step_time * load_weight, "load")


@formula(unit="1/s", source="zhong2024distserve")
def prefill_tokens_per_second(prompt_tokens, request_prefill_time, load_weight, dp):
    """Prompt tokens per second of devices that compute prefills only, cached ones included."""
    return dp * prompt_tokens / total(request_prefill_time * load_weight, "load")


@alternative(of="goodput", by="workload", label=("inference", "pools"), unit="1/s", source="zhong2024distserve")
def LABEL_goodput(output_tokens_per_second, first_token_in_time, output_tokens_in_time):
    """Output tokens per second where both latencies keep their limits (`limit_statistic`), otherwise 0."""
    return xp.where(first_token_in_time & output_tokens_in_time, output_tokens_per_second, 0.0)


@alternative(of="tokens_per_second", by="workload", label=("inference", "pools"), unit="1/s", source="yu2022orca")
def LABEL_tokens_per_second(served_rate, prompt_tokens, output_tokens):
    """Tokens of the whole system per second, of prompts (cached ones included) and outputs alike."""
    return served_rate * (prompt_tokens + output_tokens)


@formula(unit="USD", source="epoch2024costs")
def cost_per_million_output_tokens(working_charge, output_tokens_per_second):
    """Cost of a million output tokens, that of their prompts included."""
    return 1e6 * working_charge / output_tokens_per_second


# ---- constraints ----------------------------------------------------------------------------------------------------


@constraint(
    kind="exceeds",
    reason="requests arrive faster than the largest batch that fits serves them at largest_load",
    source="little1961",
)
def arrivals_are_served(arrival_rate, arrival_limit):
    """The arrival rate stays below the part ``largest_load`` of what the largest batch serves."""
    return arrival_rate <= arrival_limit * (1 + 1e-6)


FORMULAS = by_label(
    "batch_rule",
    {"prompted_batch": ("1", "agrawal2024sarathi", "Sequences without end for whose prompts iterations have room.")},
    {"concurrency": ("prompt_bound_batch",), ("given", "memory", "run", "clients", "rate"): (UNBOUND,)},
)


@constraint(
    kind="exceeds",
    about="tabulated_batch",
    reason="iterations have no room for the prompts of so many sequences at largest_load: fewer run",
    source="agrawal2024sarathi",
)
def prompts_keep_up(active_clients, prompted_batch, largest_load):
    """Prompts are computed as fast as the stated number of sequences needs; beyond a load of 1 they queue for room."""
    return active_clients <= largest_load * prompted_batch * (1 + 1e-6)


@constraint(kind="exceeds", reason="the time to the first token exceeds its limit", source="zhong2024distserve")
def first_token_in_time(limited_first_token_time, time_to_first_token_limit):
    """The first token comes within its limit."""
    return limited_first_token_time <= time_to_first_token_limit


@constraint(kind="exceeds", reason="the time per output token exceeds its limit", source="zhong2024distserve")
def output_tokens_in_time(limited_token_time, time_per_output_token_limit, decode_steps):
    """Later tokens come within their limit, where there are any."""
    return (limited_token_time <= time_per_output_token_limit) | (decode_steps == 0)
