"""Percentiles of what requests wait for, and the share of them that keeps limits.

The first token comes after a wait by what a request meets (`arrivals`, `clients`), and its own prefill. The tokens
after it come with the steps of the batch that runs, which changes while a request does, and with the prompts that hold
up its steps. Prompts that are computed in a row hold up the first of them until the last is done. The times of a
request are those of its length: percentiles are over requests of all lengths.

Batches that start and end together have no arrivals: their percentiles are the means.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import by_label, constants
from perfgrid.formulas.axes import at

from .arrivals import ARRIVALS
from .batching import ONE_BATCH, REPLACED
from .distributions import (
    Z,
    added,
    at_deviation,
    deviation_and_skewness,
    mixed,
    of_all_lengths,
    of_each_token,
    packed,
    percentile_of_mixture,
    scale_and_width,
    share_below,
    share_of_mixture,
    unpacked,
)

PERCENTILES = {"PERCENTILE": tuple(Z)}


def percentile_of(time, source):
    """A percentile of a time, which is its mean where a batch starts together."""
    about = {"of": f"{time}_PERCENTILE", "by": "batch_rule", "label": REPLACED, "unit": "s", "source": source}
    return alternative(**about, family=PERCENTILES, others={"given": time})


FORMULAS = (
    *constants(
        {
            f"{p}_point": (z, "1", "johnson1949", f"Standard deviations of a normal distribution below which {p} lies.")
            for p, z in Z.items()
        }
    ),
    *by_label(
        "batch_rule",
        {"crowd_answer_share": ("1", "halfin1981", "Part of the answers that begin in a crowd.")},
        {"rate": ("crowd_share",), ONE_BATCH: ("beginning_share",)},
    ),
    *by_label(
        "limit_statistic",
        {
            "limited_first_token_time": ("s", "zhong2024distserve", "Time to the first token that a limit is for."),
            "limited_token_time": (
                "s",
                "zhong2024distserve",
                "Time between tokens that a limit is for, over requests.",
            ),
        },
        {
            "mean": ("time_to_first_token", "time_per_output_token"),
            **{p: (f"time_to_first_token_{p}", f"time_per_output_token_{p}") for p in Z},
        },
    ),
)


# ---- the first token ------------------------------------------------------------------------------------------------


def scaled(mean, variance, third):
    """Scale and width of a time by its moments."""
    return scale_and_width(*deviation_and_skewness(mean, variance, third))


def shape(spread):
    """Mean, scale and width of a time by its statistics."""
    mean, *rest = unpacked(spread)
    return mean, *scaled(mean, *rest)


def parts_of(share, sojourn, delay):
    """Share, mean, scale and width of the parts of a time that depends on the arrival, and of what adds to all alike.

    Requests that find a place and no prompts before them are one part, whether a step runs or not.
    """
    shares = {kind: at(share, arrival=kind) for kind in ARRIVALS}
    times = {kind: unpacked(at(sojourn, arrival=kind)) for kind in ARRIVALS}
    free = shares["idle"] + shares["step"]
    idle = shares["idle"] / xp.where(free > 0, free, 1.0)
    alone = mixed([(idle, *times["idle"]), (1 - idle, *times["step"])])
    parts = [(free, *alone), *((shares[kind], *times[kind]) for kind in ("prompts", "crowd"))]
    return [(own, delay + mean, *scaled(mean, *rest)) for own, mean, *rest in parts]


@percentile_of("time_to_first_token", "kleinrock1975queueing, johnson1949")
def LABEL_first_token_PERCENTILE(
    arrival_share,
    prefill_sojourn,
    asking_time,
    PERCENTILE_point,
):
    """PERCENTILE of the time from arrival to first token, over requests."""
    parts = parts_of(arrival_share, prefill_sojourn, asking_time)
    return percentile_of_mixture(PERCENTILE_point, parts)


# ---- the tokens after it --------------------------------------------------------------------------------------------


@formula(unit="s", source="kleinrock1975queueing")
def token_time_spread(
    free_answer_time, crowd_answer_time, crowd_answer_share, answer_moment, decode_steps, accepted_tokens
):
    """Mean time between the tokens of a request, over requests, by statistic."""
    free, crowd = (of_each_token(t, answer_moment) for t in (free_answer_time, crowd_answer_time))
    tokens = xp.maximum(decode_steps, 1.0) * accepted_tokens
    mean, variance, third = mixed([(1 - crowd_answer_share, *free), (crowd_answer_share, *crowd)])
    return packed(mean / tokens, variance / tokens**2, third / tokens**3)


@formula(unit="s", source="kleinrock1975queueing")
def first_token_spread(arrival_share, prefill_sojourn):
    """Time of a request in the queue and in its prefill, over requests, by statistic."""
    parts = [(at(arrival_share, arrival=k), *unpacked(at(prefill_sojourn, arrival=k))) for k in ARRIVALS]
    return packed(*mixed(parts))


@formula(unit="s", source="kleinrock1975queueing")
def latency_spread(
    free_answer_time,
    crowd_answer_time,
    crowd_answer_share,
    answer_moment,
    decode_steps,
    first_token_spread,
    asking_time,
):
    """Time from the arrival of a request to its last token, over requests, by statistic."""
    further = xp.where(decode_steps > 0, 1.0, 0.0)
    free, crowd = (of_all_lengths(t, answer_moment) for t in (free_answer_time, crowd_answer_time))
    later = mixed([(1 - crowd_answer_share, *free), (crowd_answer_share, *crowd)])
    mean, variance, third = added(unpacked(first_token_spread), [further * moment for moment in later])
    return packed(asking_time + mean, variance, third)


def percentile(point, spread):
    """Percentile of a time by its statistics."""
    return at_deviation(point, *shape(spread))


@percentile_of("time_per_output_token", "johnson1949")
def LABEL_token_time_PERCENTILE(token_time_spread, PERCENTILE_point):
    """PERCENTILE of the mean time between the tokens of a request, over requests."""
    return percentile(PERCENTILE_point, token_time_spread)


@percentile_of("request_latency", "johnson1949")
def LABEL_latency_PERCENTILE(latency_spread, PERCENTILE_point, time_to_first_token_PERCENTILE, decode_steps):
    """PERCENTILE of the time from the arrival of a request to its last token, over requests.

    It is not before that of the first token, and with a single token is the same.
    """
    last = xp.maximum(percentile(PERCENTILE_point, latency_spread), time_to_first_token_PERCENTILE)
    return xp.where(decode_steps > 0, last, time_to_first_token_PERCENTILE)


# ---- limits ---------------------------------------------------------------------------------------------------------


@alternative(of="kept_limits_share", by="batch_rule", label="given", unit="1", source="zhong2024distserve")
def given_kept_limits_share(
    time_to_first_token, time_per_output_token, time_to_first_token_limit, time_per_output_token_limit, decode_steps
):
    """Part of the requests that keep both limits: all or none."""
    later = (time_per_output_token <= time_per_output_token_limit) | (decode_steps == 0)
    return xp.where((time_to_first_token <= time_to_first_token_limit) & later, 1.0, 0.0)


@alternative(of="kept_limits_share", by="batch_rule", label=REPLACED, unit="1", source="zhong2024distserve")
def LABEL_keeping_requests_share(
    arrival_share,
    prefill_sojourn,
    asking_time,
    token_time_spread,
    time_to_first_token_limit,
    time_per_output_token_limit,
    decode_steps,
):
    """Part of the requests that keep both limits: one limit is kept as often by those that keep the other."""
    parts = parts_of(arrival_share, prefill_sojourn, asking_time)
    first = share_of_mixture(time_to_first_token_limit, parts)
    later = share_below(time_per_output_token_limit, *shape(token_time_spread))
    return first * xp.where(decode_steps > 0, later, 1.0)


@formula(unit="1/s", source="zhong2024distserve")
def request_goodput(served_rate, kept_limits_share):
    """Requests per second that keep both limits."""
    return served_rate * kept_limits_share
