"""What a study file may hold."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from perfgrid.engine.errors import nearest
from perfgrid.formulas import WORKLOADS

from .view import View

POOLS = ("prefill", "decode")  # tables of a study of two pools
LAYOUT = "parallelism"  # the axis of layouts
CLUSTER_SIZE = "devices"  # clusters of different sizes are weighed against each other only where that is asked for


def _plain(value: Any) -> Any:
    """NumPy numbers, arrays, tuples and ranges of a Python study as what a TOML file holds."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(inside) for key, inside in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple, range)) else value


def _workload(name: str) -> str:
    if name not in WORKLOADS:
        raise ValueError(f"there is no such workload{nearest(name, WORKLOADS)}")
    return name


WorkloadName = Annotated[str, AfterValidator(_workload)]
Plain = Annotated[dict[str, Any], BeforeValidator(_plain)]


class Table(BaseModel):
    """A table that holds no other keys than those stated."""

    model_config = ConfigDict(extra="forbid")


class Best(Table):
    """The ``[best]`` table of a study: which axes to choose along, by which quantity, at which labels of others.

    ``ties``: the quantities of which the least, of the first one first, decides between designs that are equal by that
    one, or not worse than the best by more than the part ``within``.
    """

    over: str | list[str]
    minimize: str | None = None
    maximize: str | None = None
    ties: str | list[str] | None = None
    within: float | None = Field(default=None, gt=0, lt=1, allow_inf_nan=False, strict=True)
    at: dict[str, Any] = Field(default_factory=dict)


class Pareto(Table):
    """The ``[pareto]`` table of a study: which axes to choose along, and two quantities to maximize."""

    over: str | list[str]
    maximize: list[str] = Field(min_length=2, max_length=2)
    at: dict[str, Any] = Field(default_factory=dict)


class Optimize(Table):
    """The ``[optimize]`` table of a study: what to minimise or maximise, over which quantities, within which limits.

    ``over`` names quantities, or tables them with their bounds. Each workload takes its best label along the axes of
    ``choose`` (those of ``[best]`` if absent), all workloads the same label along those of ``choose_jointly``; every
    label of the others has an optimum of its own. ``quantile``: of the objective over the axis ``sample``.
    """

    minimize: str | None = None
    maximize: str | None = None
    over: list[str] | dict[str, list[Any]] = Field(default_factory=list)
    subject_to: list[str] = Field(default_factory=list)
    choose: str | list[str] | None = None
    choose_jointly: str | list[str] | None = None
    quantile: float | None = None


class Workload(Table):
    """One of the ``[[workloads]]`` of an optimisation: its name and weight, and what differs from the study."""

    name: str
    weight: float | None = Field(default=None, ge=0, allow_inf_nan=False, strict=True)
    workload: WorkloadName | None = None
    outputs: list[str] | None = Field(default=None, min_length=1)
    where: str | None = None
    axes: Plain | None = None
    workload_parameters: Plain | None = None
    overrides: Plain | None = None
    choices: dict[str, str | list[Any]] | None = None


class StudyFile(Table):
    """What a study file may hold."""

    title: str = "untitled study"
    workload: WorkloadName = "training"
    outputs: list[str] = Field(min_length=1)
    where: str | None = None
    dtype: Literal["float32", "float64"] = "float32"
    axes: Plain = Field(default_factory=dict)
    workload_parameters: Plain = Field(default_factory=dict)
    overrides: Plain = Field(default_factory=dict)
    choices: dict[str, str] = Field(default_factory=dict)
    catalog: list[str] = Field(default_factory=list)
    trace: str | None = None  # file of requests, whose lengths and arrivals are taken
    best: Best | None = None
    pareto: Pareto | None = None
    optimize: Optimize | None = None
    workloads: list[Workload] = Field(default_factory=list)  # of [optimize]
    view: list[View] = Field(default_factory=list)  # its pictures


class Pool(Table):
    """The ``[prefill]`` or ``[decode]`` table of two pools: what is the pool's own, beside what both have."""

    axes: Plain = Field(default_factory=dict)
    workload_parameters: Plain = Field(default_factory=dict)
    overrides: Plain = Field(default_factory=dict)


class PoolsFile(StudyFile):
    """What a study file of two pools may hold: a study of the workload ``pools``, and a table for each pool."""

    prefill: Pool
    decode: Pool


@dataclass(frozen=True)
class Ties:
    """Quantities that decide between designs of nearly the same objective, and how near; None: but for rounding."""

    by: tuple[str, ...] = ()
    within: float | None = None

    @property
    def exact(self) -> str | None:
        """What decides between equal objectives alone."""
        return self.by[-1] if self.by else None


def ties_of(choice: Best | None, objective: str) -> Ties:
    """What decides between designs of equal objective, if it is the one that ``[best]`` names."""
    if choice is None or choice.ties is None or objective not in (choice.minimize, choice.maximize):
        return Ties()
    return Ties((choice.ties,) if isinstance(choice.ties, str) else tuple(choice.ties), choice.within)


def chosen_along(over: str | Sequence[str], grouped: str | None, axes: Collection[str]) -> tuple[list[str], bool]:
    """The axes to choose along, and whether designs of every ``grouped`` size are weighed against each other.

    They are where the size is named in ``over`` though it is no axis of its own but belongs to one (``parallelism``).
    """
    named = [over] if isinstance(over, str) else list(dict.fromkeys(over))
    weighed = grouped in named and grouped not in axes
    return [axis for axis in named if axis != grouped or not weighed], weighed
