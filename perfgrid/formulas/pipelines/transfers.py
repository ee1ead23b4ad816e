"""Point-to-point transfers of activations and gradients between neighbouring pipeline stages: bytes, time, calls.

How many of them a step waits for is up to the schedule (`exposed_pp_time`).
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.collectives.placement import outermost


@formula(unit="byte", source="narayanan2021")
def pp_message(tp_message, tp):
    """Activations of one microbatch that one rank sends to the next stage: 1/tp of them."""
    return tp_message / tp


@alternative(of="pp_transfer_time", by="library", label="nccl", unit="s", source="nccl2026tuning")
def pp_library_transfer_time(
    pp_message, pp_tier_ranks, collective_launch_latency, tier_transfer_latency, tier_peer_bandwidth
):
    """Time of one point-to-point transfer between neighbouring stages, across the outermost tier of the pipeline.

    latency + message/bandwidth, at the bandwidth from one device to one other.
    """
    latency = collective_launch_latency + tier_transfer_latency
    return outermost(latency, pp_tier_ranks) + pp_message / outermost(tier_peer_bandwidth, pp_tier_ranks)


@formula(unit="s", source="narayanan2021", where="section 4.1")
def stage_transfer_time(pp_transfer_time, tp_gather_time, sequence_parallel, pp):
    """Time to bring the activations of one microbatch to the next stage: a point-to-point transfer and a gather.

    Every tensor-parallel rank sends its part; the receiving ranks all-gather the parts (the scatter/gather
    optimisation) unless sequence parallelism keeps them split.
    """
    return pp_transfer_time + xp.where(sequence_parallel | (pp <= 1), 0.0, tp_gather_time)


@formula(unit="1", source="narayanan2021")
def pp_calls(pp, microbatches, chunks):
    """Point-to-point transfers that one device of the busiest stage sends in one step: m·(2v - 1) or 2·m·v.

    Activations of every chunk go on and gradients go back; with two stages each is an end of the pipeline.
    """
    ends = xp.where(pp > 2, 0.0, 1.0)
    return xp.where(pp > 1, microbatches * (2 * chunks - ends), 0.0)


@formula(unit="byte", source="narayanan2021")
def pp_bytes(pp_calls, pp_message):
    """Bytes that one device of the busiest stage sends to its neighbours in one step."""
    return pp_calls * pp_message
