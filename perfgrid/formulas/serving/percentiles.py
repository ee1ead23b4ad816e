"""Percentiles of what requests wait for, and the share of them that keeps limits.

The first token comes after a wait by what a request meets (`arrivals`, `clients`), and its own prefill. The tokens
after it come with the steps of the batch that runs, which changes while a request does, and with the prompts that hold
up its steps. Prompts that are computed in a row hold up the first of them until the last is done. The times of a
request are those of its length: percentiles are over requests of all lengths.

Batches that start and end together, and those that never end, have no arrivals: their percentiles are the means.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constant, formula
from perfgrid.formulas.axes import at, total

from .arrivals import ARRIVALS, moments
from .batching import FIXED
from .distributions import (
    Z,
    added,
    at_deviation,
    deviation_and_skewness,
    mixed,
    packed,
    percentile_of_mixture,
    share_below,
    share_of_mixture,
    unpacked,
)

MOVING = ("rate", "clients")
RULES = {"RULE": MOVING}
PERCENTILES = {"PERCENTILE": tuple(Z)}


@constant(unit="1", source="johnson1949")
def p50_point():
    """Standard deviations of a normal distribution below which half of it lies."""
    return Z["p50"]


@constant(unit="1", source="johnson1949")
def p90_point():
    """Standard deviations of a normal distribution below which nine tenths of it lie."""
    return Z["p90"]


@constant(unit="1", source="johnson1949")
def p99_point():
    """Standard deviations of a normal distribution below which 99 of 100 parts of it lie."""
    return Z["p99"]


# ---- the first token ------------------------------------------------------------------------------------------------


@formula(unit="s", source="kleinrock1975queueing", family=RULES)
def RULE_prefill_sojourn(RULE_arrival_wait, prefill_time, load_weight, mean_prefill_ratio, prefill_moment):
    """Time of a request from its arrival to the end of its prefill, its wait and its own, by arrival and statistic."""
    own = total(prefill_time * load_weight, "load") * mean_prefill_ratio
    second, third, _ = moments(prefill_moment)
    prefill = (own, own**2 * (second - 1), own**3 * (third - 3 * second + 2))
    return packed(*added(unpacked(RULE_arrival_wait), prefill))


def parts_of(sojourn, share, delay):
    """Share, mean, standard deviation and skewness of a time by arrival, and of what adds to all alike."""
    parts = []
    for kind in ARRIVALS:
        mean, variance, third = unpacked(at(sojourn, arrival=kind))
        parts.append((at(share, arrival=kind), delay + mean, *deviation_and_skewness(mean, variance, third)))
    return parts


@alternative(
    of="time_to_first_token_PERCENTILE",
    by="batch_rule",
    label=FIXED,
    unit="s",
    source="pope2022inference",
    family=PERCENTILES,
)
def LABEL_time_to_first_token_PERCENTILE(time_to_first_token):
    """PERCENTILE of the time to the first token: its mean, as requests do not arrive."""
    return time_to_first_token


@alternative(
    of="time_to_first_token_PERCENTILE",
    by="batch_rule",
    label=MOVING,
    unit="s",
    source="kleinrock1975queueing, johnson1949",
    family=PERCENTILES,
)
def LABEL_first_token_PERCENTILE(
    LABEL_prefill_sojourn, LABEL_arrival_share, front_end_time, cache_transfer_time, PERCENTILE_point
):
    """PERCENTILE of the time from arrival to first token, over requests."""
    parts = parts_of(LABEL_prefill_sojourn, LABEL_arrival_share, front_end_time + cache_transfer_time)
    return percentile_of_mixture(PERCENTILE_point, parts)


# ---- the tokens after it --------------------------------------------------------------------------------------------


def over_lengths(parts, length_weight):
    """Mean, variance and third central moment over requests of all lengths; ``parts``: (share, mean, ...) by length."""
    of_all = [(share * length_weight, *times) for share, *times in parts]
    mean = total(sum(share * own for share, own, _, _ in of_all), "length")
    variance = total(sum(share * (square + (own - mean) ** 2) for share, own, square, _ in of_all), "length")
    cubes = (s * (cube + 3 * (own - mean) * square + (own - mean) ** 3) for s, own, square, cube in of_all)
    return mean, variance, total(sum(cubes), "length")


def answers(free_answer_time, crowd_answer_time, crowd_answer_share, per):
    """Parts of the answers, with and without a crowd, of their times over ``per``."""
    shares = (1 - crowd_answer_share, crowd_answer_share)
    times = (unpacked(time) for time in (free_answer_time, crowd_answer_time))
    return [(share, m / per, v / per**2, t / per**3) for share, (m, v, t) in zip(shares, times, strict=True)]


@formula(unit="1", source="pope2022inference")
def answer_steps(decode_steps, output_ratio):
    """Decoding steps of a request, by length: at least one."""
    return xp.maximum(decode_steps * output_ratio, 1.0)


@formula(unit="s", source="kleinrock1975queueing", family=RULES)
def RULE_token_time_spread(
    RULE_free_answer_time, RULE_crowd_answer_time, RULE_crowd_answer_share, answer_steps, accepted_tokens, length_weight
):
    """Mean time between the tokens of a request, over requests, by statistic."""
    parts = answers(
        RULE_free_answer_time, RULE_crowd_answer_time, RULE_crowd_answer_share, answer_steps * accepted_tokens
    )
    return packed(*over_lengths(parts, length_weight))


@formula(unit="s", source="kleinrock1975queueing", family=RULES)
def RULE_latency_spread(
    RULE_free_answer_time,
    RULE_crowd_answer_time,
    RULE_crowd_answer_share,
    decode_steps,
    length_weight,
    RULE_prefill_sojourn,
    RULE_arrival_share,
    front_end_time,
    cache_transfer_time,
):
    """Time from the arrival of a request to its last token, over requests, by statistic."""
    further = xp.where(decode_steps > 0, 1.0, 0.0)
    parts = answers(RULE_free_answer_time, RULE_crowd_answer_time, RULE_crowd_answer_share, 1.0)
    answer = [m * further for m in over_lengths(parts, length_weight)]
    first = mixed(
        [(at(RULE_arrival_share, arrival=k), *unpacked(at(RULE_prefill_sojourn, arrival=k))) for k in ARRIVALS]
    )
    mean, variance, third = added(first, answer)
    return packed(front_end_time + cache_transfer_time + mean, variance, third)


def percentile(point, spread):
    """Percentile of a time by its statistics."""
    mean, variance, third = unpacked(spread)
    deviation, skewness = deviation_and_skewness(mean, variance, third)
    return mean + deviation * at_deviation(point, skewness)


@alternative(
    of="time_per_output_token_PERCENTILE",
    by="batch_rule",
    label=FIXED,
    unit="s",
    source="pope2022inference",
    family=PERCENTILES,
)
def LABEL_time_per_output_token_PERCENTILE(time_per_output_token):
    """PERCENTILE of the time between tokens: its mean, as requests do not arrive."""
    return time_per_output_token


@alternative(
    of="time_per_output_token_PERCENTILE",
    by="batch_rule",
    label=MOVING,
    unit="s",
    source="johnson1949",
    family=PERCENTILES,
)
def LABEL_token_time_PERCENTILE(LABEL_token_time_spread, PERCENTILE_point):
    """PERCENTILE of the mean time between the tokens of a request, over requests."""
    return percentile(PERCENTILE_point, LABEL_token_time_spread)


@alternative(
    of="request_latency_PERCENTILE",
    by="batch_rule",
    label=FIXED,
    unit="s",
    source="pope2022inference",
    family=PERCENTILES,
)
def LABEL_request_latency_PERCENTILE(request_latency):
    """PERCENTILE of the time to the last token: its mean, as requests do not arrive."""
    return request_latency


@alternative(
    of="request_latency_PERCENTILE",
    by="batch_rule",
    label=MOVING,
    unit="s",
    source="johnson1949",
    family=PERCENTILES,
)
def LABEL_latency_PERCENTILE(LABEL_latency_spread, PERCENTILE_point):
    """PERCENTILE of the time from the arrival of a request to its last token, over requests."""
    return percentile(PERCENTILE_point, LABEL_latency_spread)


# ---- limits ---------------------------------------------------------------------------------------------------------


@alternative(of="limited_first_token_time", by="limit_statistic", label="mean", unit="s", source="zhong2024distserve")
def mean_limited_first_token_time(time_to_first_token):
    """Time to the first token that a limit is for: the mean."""
    return time_to_first_token


@alternative(of="limited_first_token_time", by="limit_statistic", label=tuple(Z), unit="s", source="zhong2024distserve")
def LABEL_limited_first_token_time(time_to_first_token_LABEL):
    """Time to the first token that a limit is for: a percentile."""
    return time_to_first_token_LABEL


@alternative(of="limited_token_time", by="limit_statistic", label="mean", unit="s", source="zhong2024distserve")
def mean_limited_token_time(time_per_output_token):
    """Time between tokens that a limit is for: the mean."""
    return time_per_output_token


@alternative(of="limited_token_time", by="limit_statistic", label=tuple(Z), unit="s", source="zhong2024distserve")
def LABEL_limited_token_time(time_per_output_token_LABEL):
    """Time between tokens that a limit is for: a percentile over requests."""
    return time_per_output_token_LABEL


@alternative(of="kept_limits_share", by="batch_rule", label=FIXED, unit="1", source="zhong2024distserve")
def LABEL_kept_limits_share(
    time_to_first_token, time_per_output_token, time_to_first_token_limit, time_per_output_token_limit, decode_steps
):
    """Part of the requests that keep both limits: all or none."""
    later = (time_per_output_token <= time_per_output_token_limit) | (decode_steps == 0)
    return xp.where((time_to_first_token <= time_to_first_token_limit) & later, 1.0, 0.0)


@alternative(of="kept_limits_share", by="batch_rule", label=MOVING, unit="1", source="zhong2024distserve")
def LABEL_keeping_requests_share(
    LABEL_prefill_sojourn,
    LABEL_arrival_share,
    front_end_time,
    cache_transfer_time,
    LABEL_token_time_spread,
    time_to_first_token_limit,
    time_per_output_token_limit,
    decode_steps,
):
    """Part of the requests that keep both limits: one limit is kept as often by those that keep the other."""
    parts = parts_of(LABEL_prefill_sojourn, LABEL_arrival_share, front_end_time + cache_transfer_time)
    first = share_of_mixture(time_to_first_token_limit, parts)
    mean, variance, third = unpacked(LABEL_token_time_spread)
    deviation, skewness = deviation_and_skewness(mean, variance, third)
    later = share_below((time_per_output_token_limit - mean) / deviation, skewness)
    return first * xp.where(decode_steps > 0, later, 1.0)


@formula(unit="1/s", source="zhong2024distserve")
def request_goodput(served_rate, kept_limits_share):
    """Requests per second that keep both limits."""
    return served_rate * kept_limits_share
