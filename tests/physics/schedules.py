"""Pipeline schedules executed event by event, in plain Python: the reference of the closed forms."""

from __future__ import annotations

from dataclasses import dataclass, field

Work = tuple[str, int, int]  # ("F" or "B", microbatch, chunk)
Times = list[list[float]]  # by rank and chunk


def gpipe(microbatches: int) -> list[Work]:
    """The GPipe order of every rank: all forward passes, then all backward passes."""
    return [("F", i, 0) for i in range(microbatches)] + [("B", i, 0) for i in range(microbatches)]


def one_forward_one_backward(pp: int, microbatches: int, rank: int) -> list[Work]:
    """The 1F1B order of one rank: fill, alternate, drain."""
    ahead = min(pp - 1 - rank, microbatches)
    order: list[Work] = [("F", i, 0) for i in range(ahead)]
    for i in range(microbatches - ahead):
        order += [("F", ahead + i, 0), ("B", i, 0)]
    return order + [("B", i, 0) for i in range(microbatches - ahead, microbatches)]


def interleaved(pp: int, microbatches: int, chunks: int, rank: int) -> list[Work]:
    """The interleaved order of one rank: groups of pp microbatches go through chunk after chunk."""

    def item(kind: str, i: int) -> Work:
        group, inside = divmod(i, pp * chunks)
        chunk = inside // pp
        return kind, group * pp + inside % pp, chunk if kind == "F" else chunks - 1 - chunk

    count = microbatches * chunks
    ahead = min((pp - rank - 1) * 2 + (chunks - 1) * pp, count)
    order = [item("F", i) for i in range(ahead)]
    for i in range(count - ahead):
        order += [item("F", ahead + i), item("B", i)]
    return order + [item("B", i) for i in range(count - ahead, count)]


def order_of(schedule: str, pp: int, microbatches: int, chunks: int, rank: int) -> list[Work]:
    """What one rank does, in order."""
    if schedule == "gpipe":
        return gpipe(microbatches)
    if chunks > 1:
        return interleaved(pp, microbatches, chunks, rank)
    return one_forward_one_backward(pp, microbatches, rank)


@dataclass
class Pipeline:
    """Stages with their own times; a stage computes one thing at a time, sending and receiving run beside it."""

    forward: Times
    backward: Times
    transfer: float = 0.0
    schedule: str = "1f1b"
    kept: list[float] = field(default_factory=list)  # most microbatches kept by each rank, in units of whole stages

    def run(self, microbatches: int) -> float:
        """The time from the first start to the last end; notes what is kept."""
        pp, chunks = len(self.forward), len(self.forward[0])
        orders = [order_of(self.schedule, pp, microbatches, chunks, r) for r in range(pp)]
        finished: dict[tuple[str, int, int], float] = {}  # (kind, microbatch, virtual stage)
        clock, position, kept, most = [0.0] * pp, [0] * pp, [0] * pp, [0] * pp
        last = pp * chunks - 1
        while any(position[r] < len(orders[r]) for r in range(pp)):
            moved = False
            for r in range(pp):
                while position[r] < len(orders[r]):
                    kind, microbatch, chunk = orders[r][position[r]]
                    stage = chunk * pp + r
                    if kind == "F":
                        needs = [("F", microbatch, stage - 1)] if stage > 0 else []
                    else:
                        needs = [("B", microbatch, stage + 1)] if stage < last else [("F", microbatch, stage)]
                    if any(n not in finished for n in needs):
                        break
                    ready = max((finished[n] + (self.transfer if n[2] != stage else 0.0) for n in needs), default=0.0)
                    length = (self.forward if kind == "F" else self.backward)[r][chunk]
                    clock[r] = max(clock[r], ready) + length
                    finished[(kind, microbatch, stage)] = clock[r]
                    kept[r] += 1 if kind == "F" else -1
                    most[r] = max(most[r], kept[r])
                    position[r] += 1
                    moved = True
            assert moved, "the schedule waits for itself"
        self.kept = [m / chunks for m in most]
        return max(clock)


def layers_of_chunks(layers: int, pp: int, chunks: int) -> list[list[int]]:
    """Layers of every chunk of every stage.

    They are dealt to the stages one by one, so that stages short of one are the last, the first, then the latest
    others. The layer that a stage is short of is missing in its last chunk if it is the last stage, in its first chunk
    otherwise.
    """
    stages = [layers // pp] * pp
    dealt = [*range(1, pp - 1), 0, pp - 1] if pp > 1 else [0]
    for stage in dealt[: layers % pp]:
        stages[stage] += 1
    full = max(stages)
    assert full % chunks == 0
    found = [[full // chunks] * chunks for _ in stages]
    for rank, held in enumerate(stages):
        found[rank][-1 if rank == pp - 1 else 0] -= full - held
    return found


def stage_times(held: list[list[int]], layer: float, embedding: float, head: float) -> Times:
    """Time of every chunk; the embedding comes before the first layer, the head after the last."""
    times = [[n * layer for n in chunks] for chunks in held]
    times[0][0] += embedding
    times[-1][-1] += head
    return times
