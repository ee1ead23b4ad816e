"""The execution of a pipeline schedule: which device computes, waits or sends what and when.

The order of a device is a list of patterns with how often each repeats (`order`); `execute` plays the orders of all
devices from event to event. The closed forms of `formulas` are not used, so an execution also shows how exact they are.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from perfgrid.engine.errors import PerfgridError

KINDS = {"F": "forward", "B": "backward", "I": "input_gradient", "W": "weight_gradient"}
PASSES = ("forward", "input_gradient", "weight_gradient")
BESIDE = ("transfer", "exchange")  # kinds of what communicates while passes run
NONE = -1  # microbatch, chunk and stage of a wait
Pattern = tuple[int, str]  # how often, and passes such as "F0 I1 W1"; "F0+B1" side by side, "W" the oldest put off
Work = tuple[str, int, int]  # kind of KINDS, microbatch, stage (in the order of a microbatch)


@dataclass(frozen=True)
class Event:
    """What a device does from ``start`` to ``end`` (seconds): a pass, a transfer beside it, or waiting.

    An ``exchange`` is the part of a pass in which it waits for other ranks, as no other pass hides it; it may be any
    part of the pass and stands at its end.
    ``stage``: the virtual stage of a pass, in the order in which a microbatch passes through them, or whose result is
    transferred; ``receiver``: the stage that a transfer goes to.
    """

    device: int
    chunk: int
    microbatch: int
    kind: str
    start: float
    end: float
    stage: int = NONE
    receiver: int = NONE


# ---- orders ---------------------------------------------------------------------------------------------------------


def order(schedule: str, pp: int, chunks: int, microbatches: int, device: int) -> list[Pattern]:
    """The patterns of one device; figures after a pass name the chunk, without them the schedule interleaves."""
    m, rest = microbatches, pp - 1 - device
    if schedule == "gpipe":
        return [(m, "F0"), (m, "B0")]
    if schedule == "1f1b":
        count = m * chunks
        ahead = min(rest if chunks == 1 else 2 * rest + (chunks - 1) * pp, count)
        return [(ahead, "F"), (count - ahead, "F B"), (ahead, "B")]
    if schedule == "zb_h1":
        ahead, late = min(rest, m), min(device, m)
        both = min(m - ahead, late)
        alternating = [(both, "F0 I0"), (late - both, "I0"), (m - ahead - both, "F0 I0 W0")]
        return [(ahead, "F0"), *alternating, (m - max(m - ahead, late), "I0 W0"), (late, "W0")]
    if schedule == "zb_v":
        filling = [(2 * rest + 1, "F0"), (device, "F1 F0"), (rest + 1, "F1 I1 W1")]
        steady = [(m - 2 * pp + 1 + device, "F0 I0 W0 F1 I1 W1"), (rest, "I0 W0 F1 I1 W1")]
        return [*filling, *steady, (device, "I0 I1"), (rest + 1, "I0 W0"), (device, "W1"), (device, "W0")]
    # both forms of DualPipe: `near` is the distance from an end of the pipeline, `half` the devices up to its middle
    half, near = (pp, device) if schedule == "dualpipe_v" else (pp // 2, min(device, rest))
    count, rest = m if schedule == "dualpipe_v" else m // 2, half - 1 - near
    steady: list[Pattern] = [(count - 2 * half + near + 1, "F0+B1 F1+B0")]
    if rest == 0:  # in the middle the first pair is taken apart
        steady = [(1, "F0 B1 F1+B0"), (steady[0][0] - 1, steady[0][1])]
    filling = [(2 * rest, "F0"), (near + 1, "F0 F1"), (rest, "I1 W F1")]
    whole, split = divmod(near + 1, 2)
    draining = [(rest, "B1 F1+B0"), (whole, "B1 B0"), (split, "B1 I0"), (whole, "I1 I0"), (rest, "W I0")]
    return [*filling, *steady, *draining, (near + 1, "W")]


def works(schedule: str, pp: int, chunks: int, microbatches: int, device: int) -> list[tuple[Work, ...]]:
    """What one device does, in order: one pass, or two side by side."""
    held: Callable[[int], int]
    first = [0, 0]  # microbatch with which a chunk begins
    if schedule == "dualpipe":  # chunk 0 is the stage that its microbatches reach first
        up = device >= pp // 2
        stages = (pp - 1 - device, device) if up else (device, pp - 1 - device)
        held, first = lambda chunk: stages[chunk], [microbatches // 2 * up, microbatches // 2 * (not up)]
    elif schedule in ("zb_v", "dualpipe_v"):
        held = lambda chunk: device if chunk == 0 else 2 * pp - 1 - device  # noqa: E731
    else:
        held = lambda chunk: chunk * pp + device  # noqa: E731
    done: defaultdict[tuple[str, int], int] = defaultdict(int)
    late: list[tuple[int, int]] = []

    def work(name: str) -> Work:
        kind = name[0]
        if name == "W":
            return ("W", *late.pop(0))
        if len(name) == 1:  # interleaved: groups of pp microbatches through every chunk
            number = done[kind, 0]
            done[kind, 0] += 1
            group, inside = divmod(number, pp * chunks)
            chunk = inside // pp if kind == "F" else chunks - 1 - inside // pp
            return kind, (group * pp + inside % pp if chunks > 1 else number), held(chunk)
        chunk = int(name[1])
        counted = "B" if kind == "I" else kind
        microbatch = first[chunk] + done[counted, chunk]
        done[counted, chunk] += 1
        if kind == "I":
            late.append((microbatch, held(chunk)))
        return kind, microbatch, held(chunk)

    patterns = order(schedule, pp, chunks, microbatches, device)
    return [tuple(map(work, names.split("+"))) for times, pattern in patterns for names in times * pattern.split()]


# ---- execution ------------------------------------------------------------------------------------------------------


def execute(
    schedule: str,
    pp: int,
    chunks: int,
    microbatches: int,
    times: Mapping[str, Sequence[float]],
    transfer: float = 0.0,
    alone: Sequence[float] = (),
) -> list[Event]:
    """Play a schedule: every pass, point-to-point transfer and wait of every device, by start.

    ``times`` gives forward, input_gradient and weight_gradient seconds of each stage, in the order in which a
    microbatch passes through them (two per device in a V). A pass starts when its device is free and what it needs has
    arrived; transfers run beside, out of two passes side by side within them. ``alone``: what a forward or backward
    pass of each stage takes longer without another beside it: its exchanges with other ranks. Raises PerfgridError for
    a schedule that waits for itself, which legal designs never do.
    """
    forward, gradient, weight = (times[kind] for kind in PASSES)
    stages = len(forward)
    lengths = {"F": forward, "I": gradient, "W": weight, "B": [i + w for i, w in zip(gradient, weight, strict=True)]}
    orders = [works(schedule, pp, chunks, microbatches, device) for device in range(pp)]
    home = {(kind, i, s): d for d, slots in enumerate(orders) for slot in slots for kind, i, s in slot}
    home |= {("I", i, s): d for (kind, i, s), d in home.items() if kind == "B"}  # a gradient, with weights' or without
    arrived: dict[tuple[int, Work], float] = {}
    position, free = [0] * pp, [0.0] * pp
    events: list[Event] = []
    agenda = [(0.0, device) for device in range(pp)]
    while agenda:
        _, device = heapq.heappop(agenda)
        if position[device] == len(orders[device]):
            continue
        slot = orders[device][position[device]]
        needs = [(device, n) for kind, i, s in slot if (n := _needed(kind, i, s, stages))]
        if any(n not in arrived for n in needs):
            continue  # whoever provides it calls again
        start = max(free[device], *(arrived[n] for n in needs)) if needs else free[device]
        end = start + sum(lengths[kind][s] for kind, _, s in slot)
        unhidden = alone[slot[0][2]] if len(slot) == 1 and slot[0][0] != "W" and alone else 0.0
        end += unhidden
        if start > free[device]:
            events.append(Event(device, NONE, NONE, "wait", free[device], start))
        free[device], position[device] = end, position[device] + 1
        heapq.heappush(agenda, (end, device))
        for kind, i, s in slot:
            chunk = int(s != device) if schedule == "dualpipe" else s // pp  # there the direction
            events.append(Event(device, chunk, i, KINDS[kind], start, end, s))
            if unhidden > 0:
                events.append(Event(device, chunk, i, "exchange", end - unhidden, end, s))
            result = ("I" if kind == "B" else kind, i, s)
            arrived[device, result] = end
            receiver = s + 1 if kind == "F" else s - 1
            reader = home.get(("F" if kind == "F" else "I", i, receiver)) if kind != "W" else None
            if reader is None or reader == device:
                continue
            arrival = end + transfer if len(slot) == 1 else end
            arrived[reader, result] = arrival
            heapq.heappush(agenda, (arrival, reader))
            if transfer > 0:
                sent = max(arrival - transfer, start)
                events.append(Event(device, chunk, i, "transfer", sent, arrival, s, receiver))
    if any(position[d] < len(orders[d]) for d in range(pp)):
        raise PerfgridError(f"the schedule {schedule} of {pp} devices and {microbatches} microbatches waits for itself")
    last = max(free)
    events += [Event(d, NONE, NONE, "wait", free[d], last) for d in range(pp) if free[d] < last]
    return sorted(events, key=lambda e: (e.start, e.device, e.end))


def _needed(kind: str, microbatch: int, stage: int, stages: int) -> Work | None:
    """What must have arrived before a pass starts."""
    if kind == "F":
        return ("F", microbatch, stage - 1) if stage else None
    if kind == "W":
        return ("I", microbatch, stage)
    return ("I", microbatch, stage + 1) if stage + 1 < stages else ("F", microbatch, stage)
