"""Pipeline schedules executed event by event, in plain Python: the reference of the closed forms."""

from __future__ import annotations

Work = tuple[str, int, int]  # ("F" or "B", microbatch, chunk)


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


def simulate(
    pp: int, microbatches: int, chunks: int, forward: list[float], backward: list[float], handover: float = 0.0
) -> tuple[float, list[float]]:
    """The makespan and, by rank, the most microbatches kept (in units of a whole stage).

    ``forward`` and ``backward`` are the times of each rank for one microbatch and all its chunks.
    """
    orders = [
        one_forward_one_backward(pp, microbatches, r) if chunks == 1 else interleaved(pp, microbatches, chunks, r)
        for r in range(pp)
    ]
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
                ready = max((finished[n] + (handover if n[2] != stage else 0.0) for n in needs), default=0.0)
                length = (forward if kind == "F" else backward)[r] / chunks
                clock[r] = max(clock[r], ready) + length
                finished[(kind, microbatch, stage)] = clock[r]
                kept[r] += 1 if kind == "F" else -1
                most[r] = max(most[r], kept[r])
                position[r] += 1
                moved = True
        assert moved, "the schedule waits for itself"
    return max(clock), [m / chunks for m in most]
