"""What `skipping.SkippingEngine` knows of a rank: numbers in the place of sequences."""

from __future__ import annotations

FOREVER = 1 << 60


class Part:
    """A prompt that is partly computed: which, tokens that are, and the rank that holds it."""

    __slots__ = ("done", "i", "rank")

    def __init__(self, i: int, done: int, rank: Rank):
        self.i, self.done, self.rank = i, done, rank


class Rank:
    """Sequences of one rank of one group."""

    __slots__ = (
        *("b", "ends", "gone", "gone_kept", "group", "kept", "parts", "places", "read", "since", "steps"),
        *("attention", "chunk", "own", "pieces", "room"),  # of an iteration
    )

    def __init__(self, group: SkippingGroup, parts: list[Part]):
        self.group = group
        self.ends: list[tuple[int, int]] = []  # the step after which each has its last token, and which
        self.parts = parts  # prompts that are partly computed, of all groups where they may follow each other
        self.b, self.read, self.steps = 0, 0, 0  # sequences that decode, tokens that they read, steps that were taken
        self.since: dict[float, int] = {}  # sequences that decode by the time of their last token
        self.places, self.kept = 0, 0  # sequences that hold a place, and cache
        self.gone, self.gone_kept = 0, 0  # and of those that left when the next iteration was put together already
        self.room, self.chunk, self.pieces, self.attention, self.own = 0, 0, 0, 0.0, 0.0  # of this iteration

    def hold(self, places: int, kept: int) -> None:
        """So many more places, and as often so much cache, are held."""
        self.places, self.kept, self.group.places = (
            self.places + places,
            self.kept + places * kept,
            self.group.places + places,
        )

    def left(self) -> int:
        """Steps until a sequence ends, this one included."""
        return self.ends[0][0] - self.steps if self.ends else FOREVER


class SkippingGroup:
    """The sequences of each rank, and when the group has come out of the last stage."""

    def __init__(self, parts: list[list[Part]]):
        self.ranks = [Rank(self, one) for one in parts]
        self.ready, self.begun = 0.0, 0.0
        self.places, self.gone = 0, False  # sequences of all ranks; whether some have just left
        self.refused = -1  # the first that waits had no place; so it stays until one ends

    def busy(self) -> bool:
        return self.places > 0
