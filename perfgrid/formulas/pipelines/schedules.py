"""What schedules but 1F1B ask for in numbers that are linear in the stages p: transfers waited for, microbatches.

Transfers are point-to-point ones that a step waits for while the pipeline fills and drains (those of pairs of passes
hide behind the pairs). In ZB-V none is at the turn of the V, on one device. A device of a zero-bubble schedule keeps
the activations of p microbatches until their weight gradients are done: later stages have fewer ahead than in 1F1B but
put off more. DualPipe keeps p + 1, DualPipeV 2p + 1 chunks, p + 1/2 stages. ZB-V needs as many microbatches as its
first device does before the first returns, 2p - 1; the two ways of DualPipe need two per device.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.tables import bind

# transfers: of each stage, beside; where a source states them
TRANSFERS = {
    "gpipe": (2, -2, "huang2019gpipe", ""),
    "zb_v": (5, -7, "qi2024zerobubble", ""),
    "dualpipe": (2.5, -2, "deepseek2024v3", "section 3.2.1"),
    "dualpipe_v": (5, -5, "deepseek2025dualpipe", ""),
}
KEPT = {  # microbatches in flight beyond the stages
    "zb_h1": (0, "qi2024zerobubble", ""),
    "zb_v": (0, "qi2024zerobubble", ""),
    "dualpipe": (1, "deepseek2024v3", "table 2"),
    "dualpipe_v": (0.5, "deepseek2025dualpipe", ""),
}
NEEDED = {  # microbatches beyond two for each stage
    "zb_v": (-1, "qi2024zerobubble"),
    "dualpipe": (0, "deepseek2025dualpipe"),
    "dualpipe_v": (0, "deepseek2025dualpipe"),
}


def transfer_time(each, beside):
    """The function that gives the time of so many transfers; none where there is one stage."""

    def time(pp, stage_transfer_time):
        return xp.where(pp > 1, (each * pp + beside) * stage_transfer_time, 0.0)

    return time


def in_flight(beyond):
    """The function that gives the microbatches in flight: no more than a step has."""

    def kept(pp, microbatches):
        return xp.minimum(pp + beyond, microbatches)

    return kept


def fewest(beyond):
    """The function that gives the microbatches that a schedule needs at least."""

    def needed(pp):
        return 2 * pp + beyond

    return needed


FORMULAS = (
    *(
        entry
        for label, (each, beside, source, where) in TRANSFERS.items()
        for entry in bind(
            *(transfer_time(each, beside), f"{label}_exposed_pp_time", "pp stage_transfer_time", "s", source),
            f"Time of the transfers that {label} waits for, per step: {each}p - {-beside}.",
            of=("exposed_pp_time", "schedule", label),
            where=where,
        )
    ),
    *(
        entry
        for label, (beyond, source, where) in KEPT.items()
        for entry in bind(
            *(in_flight(beyond), f"in_flight_of_{label}", "pp microbatches", "1", source),
            f"Microbatches whose activations a device of each stage of {label} keeps at most: p + {beyond}.",
            of=("in_flight_by_stage", "schedule", label),
            where=where,
        )
    ),
    *(
        entry
        for label, (beyond, source) in NEEDED.items()
        for entry in bind(
            *(fewest(beyond), f"fewest_microbatches_of_{label}", "pp", "1", source),
            f"Microbatches that {label} needs at least: 2p - {-beyond}.",
            of=("fewest_microbatches", "schedule", label),
        )
    ),
)
