"""Schedules with separate weight gradients executed event by event, in plain Python: the reference of the closed forms.

Orders follow the publications: ZB-H1 figure 2 and ZB-V section 6 of arXiv 2401.10241, the latter in the order of
torch.distributed.pipelining; DualPipe and DualPipeV the steps that github.com/deepseek-ai/DualPipe names.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

Work = tuple[str, int, int]  # ("F", "B" or "W", microbatch, stage)
Slot = tuple[Work, ...]  # what a device does at once: its results are ready at its end


def zb_h1(pp: int, microbatches: int, rank: int) -> list[Slot]:
    """1F1B in which a stage puts weight gradients off by as many microbatches as its number."""
    ahead = min(pp - 1 - rank, microbatches)
    order: list[Slot] = [(("F", i, rank),) for i in range(ahead)]
    for i in range(microbatches):
        if ahead + i < microbatches:
            order.append((("F", ahead + i, rank),))
        order.append((("B", i, rank),))
        if i >= rank:
            order.append((("W", i - rank, rank),))
    return order + [(("W", i, rank),) for i in range(max(microbatches - rank, 0), microbatches)]


def zb_v(pp: int, microbatches: int, rank: int) -> list[Slot]:
    """Two chunks in a V; the pattern is that of 2 pp - 1 microbatches at least, of which those that exist are done."""
    pattern = max(2 * pp - 1, microbatches)
    stages = (rank, 2 * pp - 1 - rank)
    done: Counter[tuple[str, int]] = Counter()
    order: list[Slot] = []

    def do(*works: tuple[str, int]) -> None:
        for kind, chunk in works:
            order.append(((kind, done[kind, chunk], stages[chunk]),))
            done[kind, chunk] += 1

    do(*[("F", 0)] * (2 * (pp - rank) - 1))
    do(*[("F", 1), ("F", 0)] * rank)
    do(*[("F", 1), ("B", 1), ("W", 1)] * (pp - rank))
    while done["F", 1] < done["F", 0] or done["F", 0] < pattern:
        if done["F", 0] < pattern:
            do(("F", 0))
        do(("B", 0), ("W", 0), ("F", 1), ("B", 1), ("W", 1))
    do(*[("B", 0), ("B", 1)] * rank)
    do(*[("B", 0), ("W", 0)] * (pp - rank))
    for chunk in (1, 0):
        do(*[("W", chunk)] * (done["B", chunk] - done["W", chunk]))
    return [slot for slot in order if slot[0][1] < microbatches]


def dualpipe(half: int, position: int, count: int, near: tuple[int, int], far: tuple[int, int]) -> list[Slot]:
    """The eight steps of DualPipe on one of ``half`` devices, with ``count`` microbatches from either side.

    ``near`` and ``far`` are (stage, number of the first microbatch) of the two stages: near the end of a pipeline where
    microbatches enter, and far from it.
    """
    sides, started, returned = (near, far), [0, 0], [0, 0]
    put_off: list[Work] = []
    order: list[Slot] = []

    def forward(side: int) -> Slot:
        stage, first = sides[side]
        started[side] += 1
        return (("F", first + started[side] - 1, stage),)

    def backward(side: int, split: bool = False) -> Slot:
        stage, first = sides[side]
        returned[side] += 1
        work = first + returned[side] - 1, stage
        if split:
            put_off.append(("W", *work))
            return (("B", *work),)
        return (("B", *work), ("W", *work))

    def weight() -> Slot:
        return (put_off.pop(0),)

    rest = half - position - 1
    order += [forward(0) for _ in range(2 * rest)]
    for _ in range(position + 1):
        order += [forward(0), forward(1)]
    for _ in range(rest):
        order += [backward(1, split=True), weight(), forward(1)]
    for i in range(count - 2 * half + position + 1):
        order += [forward(0), backward(1)] if i == 0 and rest == 0 else [forward(0) + backward(1)]
        order.append(forward(1) + backward(0))
    for _ in range(rest):
        order += [backward(1), forward(1) + backward(0)]
    for i in range(2 * (position + 1)):  # the second half of them split
        order.append(backward(1 - i % 2, split=i >= position + 1))
    for _ in range(rest):
        order += [weight(), backward(0, split=True)]
    order += [weight() for _ in range(position + 1)]
    assert not put_off
    assert started == returned == [count, count]
    return order


def order_of(schedule: str, pp: int, microbatches: int, rank: int) -> list[Slot]:
    """What one device does, in order."""
    if schedule == "zb_h1":
        return zb_h1(pp, microbatches, rank)
    if schedule == "zb_v":
        return zb_v(pp, microbatches, rank)
    if schedule == "dualpipe_v":
        return dualpipe(pp, rank, microbatches, (rank, 0), (2 * pp - 1 - rank, 0))
    down, up = (rank, 0), (pp - 1 - rank, microbatches // 2)  # the first half of the microbatches goes down
    position, sides = (rank, (down, up)) if rank < pp // 2 else (pp - 1 - rank, (up, down))
    return dualpipe(pp // 2, position, microbatches // 2, *sides)


@dataclass
class SplitPipeline:
    """Stages with their own times of the passes F, B, W; transfers run beside, out of a pair F and B for free."""

    schedule: str
    pp: int
    times: dict[str, list[float]]  # by kind and stage
    transfer: float = 0.0
    unpaired: float = 0.0  # what a forward or backward pass waits for if no other runs beside it
    kept: list[int] = field(default_factory=list)  # most activations of a stage kept by each device

    def device(self, microbatch: int, stage: int, microbatches: int) -> int:
        """The device that holds the stage for this microbatch."""
        if self.schedule == "dualpipe":
            return stage if microbatch < microbatches // 2 else self.pp - 1 - stage
        return min(stage, len(self.times["F"]) - 1 - stage) if len(self.times["F"]) > self.pp else stage

    def run(self, microbatches: int) -> float:
        """The time from the first start to the last end; notes what is kept."""
        stages = len(self.times["F"])
        orders = [order_of(self.schedule, self.pp, microbatches, r) for r in range(self.pp)]
        ready: dict[Work, tuple[float, float]] = {}  # when a result is ready here, and on another device
        clock, position = [0.0] * self.pp, [0] * self.pp
        now, self.kept = [0] * self.pp, [0] * self.pp
        while any(position[r] < len(orders[r]) for r in range(self.pp)):
            moved = False
            for r in range(self.pp):
                while position[r] < len(orders[r]):
                    slot = orders[r][position[r]]
                    needs = [n for work in slot for n in self.needs(work, stages) if n not in slot]
                    if any(n not in ready for n in needs):
                        break
                    assert all(self.device(i, s, microbatches) == r for _, i, s in slot)
                    at = [ready[n][self.device(n[1], n[2], microbatches) != r] for n in needs]
                    clock[r] = max(clock[r], *at, 0.0) + sum(self.times[k][s] for k, _, s in slot)
                    pair = {"F", "B"} <= {k for k, _, _ in slot}
                    if not pair and {"F", "B"} & {k for k, _, _ in slot}:
                        clock[r] += self.unpaired
                    ready |= {work: (clock[r], clock[r] + (0.0 if pair else self.transfer)) for work in slot}
                    now[r] += sum(k == "F" for k, _, _ in slot)
                    self.kept[r] = max(self.kept[r], now[r])
                    now[r] -= sum(k == "W" for k, _, _ in slot)
                    position[r] += 1
                    moved = True
            assert moved, "the schedule waits for itself"
        assert len(ready) == 3 * stages * microbatches
        return max(clock)

    def needs(self, work: Work, stages: int) -> list[Work]:
        """What must be ready before a piece of work starts."""
        kind, microbatch, stage = work
        if kind == "F":
            return [("F", microbatch, stage - 1)] if stage else []
        if kind == "B":
            return [("B", microbatch, stage + 1) if stage + 1 < stages else ("F", microbatch, stage)]
        return [("B", microbatch, stage)]
