"""What a collective schedule asks of a network, free of units, and what that costs on links of given speed.

A schedule is a number of synchronous steps, the links passed on the way and the load of the busiest link per byte of
message. It depends on ranks and shapes alone; latencies and bandwidth enter through `Schedule.on`, the message last of
all, through `Coefficients.time`. All members broadcast: plain numbers, NumPy or JAX arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import jax

from perfgrid.engine import xp

UNAVAILABLE = 1e10  # s: longer than any run, small enough for products in single precision


class _Sums:
    """Member-wise sum, multiple and minimum of dataclasses."""

    def _members(self) -> list[Any]:
        return [getattr(self, f.name) for f in fields(self)]  # type: ignore[arg-type]

    def __add__(self, other: Any) -> Any:
        return type(self)(*(a + b for a, b in zip(self._members(), other._members(), strict=True)))

    def __mul__(self, factor: Any) -> Any:
        return type(self)(*(a * factor for a in self._members()))

    __rmul__ = __mul__


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Coefficients(_Sums):
    r"""Time of a collective as a function of its message B, in s and s/byte.

    .. math:: t = \alpha + \beta B + \min_{C \ge 1} (C \alpha_c + \beta_c B / C)

    with the coefficients of the message and of a chunk. With the best number of chunks C the last term is twice the
    root of chunk latency · chunk inverse bandwidth · B once that is more than one chunk. The sum of two is both with
    one number of chunks. Source: thakur2005, sanders2009twotree.
    """

    latency: Any
    inverse_bandwidth: Any
    chunk_latency: Any = 0.0
    chunk_inverse_bandwidth: Any = 0.0

    def time(self, size: Any) -> Any:
        """Time of a message of ``size`` bytes, in s."""
        filling = self.chunk_inverse_bandwidth * size
        cut = 2 * xp.root(self.chunk_latency * filling)
        chunks = xp.where(filling > self.chunk_latency, cut, self.chunk_latency + filling)
        return self.latency + self.inverse_bandwidth * size + chunks


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Schedule(_Sums):
    """Steps, link traversals on the critical path and bytes over the busiest link per byte of message (all unit 1).

    On links it takes steps·step latency + hops·hop latency + volume·B/bandwidth for a message of B bytes (alpha-beta
    model). Cut into C chunks it takes C·chunk_steps and C·chunk_hops more and chunk_volume/C more load; C is the best
    unless `chunked` fixes it. ``messages`` counts those that a rank posts one by one because they go to different ranks
    in the same step (0 where a step has one partner). Valid for cut-through switching and a barrier after each step.
    Source: thakur2005, rashidi2020astrasim.
    """

    steps: Any
    hops: Any
    volume: Any
    chunk_steps: Any = 0.0
    chunk_hops: Any = 0.0
    chunk_volume: Any = 0.0
    messages: Any = 0.0

    def on(self, step_latency: Any, hop_latency: Any, bandwidth: Any, message_latency: Any = 0.0) -> Coefficients:
        """Coefficients on links of ``bandwidth`` byte/s per direction, latencies in s (``message``: to post one)."""
        return Coefficients(
            self.steps * step_latency + self.hops * hop_latency + self.messages * message_latency,
            self.volume / bandwidth,
            self.chunk_steps * step_latency + self.chunk_hops * hop_latency,
            self.chunk_volume / bandwidth,
        )

    def chunked(self, count: Any) -> Schedule:
        """The same schedule with a fixed number of chunks."""
        return Schedule(
            self.steps + count * self.chunk_steps,
            self.hops + count * self.chunk_hops,
            self.volume + self.chunk_volume / count,
            messages=self.messages,
        )

    def load(self, factor: Any) -> Schedule:
        """The same steps with another message: ``factor`` times the bytes (a share, or links that groups share)."""
        return replace(self, volume=self.volume * factor, chunk_volume=self.chunk_volume * factor)


NOTHING = Schedule(0.0, 0.0, 0.0)


def several(n: Any) -> Any:
    """1 for a group of more than one rank, else 0."""
    return xp.where(n > 1, 1.0, 0.0)


def exponent(n: Any) -> Any:
    """Rounds of doubling that reach n ranks: log2 n rounded up."""
    return xp.ceil(xp.log2(n) - 1e-5)  # a logarithm in single precision may come out a rounding above a whole number
