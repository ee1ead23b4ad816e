"""What the devices of a pipeline hold while its schedule is executed: state, working space, activations in flight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfgrid.formulas.axes import at, of_kinds

from .execution import Event

STAGES = ("first", "middle", "last")
OF_STAGE = ("state_memory", "memory", "in_flight", "kind_layers", "embeddings")
OTHERS = ("layer_activations", "resident_share", "embedding_activations", "reserved_memory")
LOSS = ("forward_head_activations", "head_activations", "loss_working_memory", "layer_working_memory")
IN_PASSES = ("device_heads_by_stage", "state_in_passes_by_stage", "buffers_by_stage", "cached_casts_by_stage")
QUANTITIES = (*(f"{stage}_stage_{name}" for stage in STAGES for name in OF_STAGE), *OTHERS, *LOSS, *IN_PASSES)
RELEASING = ("backward", "weight_gradient")  # after which nothing needs the activations of a microbatch


def microbatch_memory(values: Mapping[str, Any], held: Sequence[Any]) -> list[float]:
    """Bytes of activations that a microbatch leaves in each virtual stage, whose layers by kind are ``held``."""
    return [_activations(values, layers, float(stage == 0)) for stage, layers in enumerate(held)]


def constant_memory(values: Mapping[str, Any], pp: int) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of state of each device, and of what else it holds beside activations in flight, by the formulas.

    Devices between the first and the last count as the fullest of them.
    """
    names = [STAGES[0], *[STAGES[1]] * (pp - 2), *[STAGES[2]] * (pp > 1)]
    state, others = [], []
    for name in names:
        whole, own, in_flight, layers, embeddings = (
            values[f"{name}_stage_{quantity}"] for quantity in ("memory", "state_memory", *OF_STAGE[2:])
        )
        activations = np.squeeze(in_flight) * _activations(values, layers, np.squeeze(embeddings))
        state.append(float(np.squeeze(own)))
        others.append(float(np.squeeze(whole) - np.squeeze(own) - activations + np.squeeze(values["reserved_memory"])))
    return np.array(state), np.array(others)


def memory_of_events(
    events: Sequence[Event], values: Mapping[str, Any], kept: np.ndarray, stages: int, pp: int
) -> np.ndarray:
    """Bytes that the device of each event needs during it, by the moments of the formulas; ``kept``: activations.

    A forward pass of the last of the virtual stages ends with the loss, its backward pass begins with the gradient of
    the loss; layers run backward in all of them.
    """
    forward, loss, beside_loss, beside_layer = (float(np.squeeze(values[name])) for name in LOSS)
    found = []
    for event, activations in zip(events, kept, strict=True):
        stage = STAGES[0] if event.device == 0 else STAGES[2] if event.device == pp - 1 else STAGES[1]
        at_stage = {name: float(np.squeeze(at(np.asarray(values[name]), stage=stage))) for name in IN_PASSES}
        heads = at_stage["device_heads_by_stage"] * (event.stage == stages - 1)
        held = activations + at_stage["state_in_passes_by_stage"] + float(np.squeeze(values["reserved_memory"]))
        held += at_stage["buffers_by_stage"]
        if event.kind == "forward":
            held += heads * forward + at_stage["cached_casts_by_stage"] + beside_loss
        elif event.kind in ("backward", "input_gradient", "weight_gradient"):
            held += max(heads * loss + beside_loss, beside_layer)
        found.append(held)
    return np.array(found)


def _activations(values: Mapping[str, Any], layers: Any, embeddings: Any) -> float:
    """Bytes of activations of one microbatch in so many layers of each kind and embeddings."""
    of_layers = np.squeeze(of_kinds(layers * values["resident_share"], values["layer_activations"]))
    return float(of_layers + embeddings * np.squeeze(values["embedding_activations"]))


def held_at(events: Sequence[Event], sizes: Sequence[float]) -> np.ndarray:
    """What the device of each event holds at its start, where a microbatch leaves ``sizes`` in each stage.

    A forward pass adds its activations when it starts; they are free when the weight gradient of the same stage ends.
    """
    found = np.zeros(len(events))
    for device in {e.device for e in events}:
        own = [e for e in events if e.device == device]
        changes = [(e.start, sizes[e.stage]) for e in own if e.kind == "forward"]
        changes += [(e.end, -sizes[e.stage]) for e in own if e.kind in RELEASING]
        changes.sort()  # at the same moment what is free comes first
        moments, steps = np.array(changes).T
        totals = np.maximum(np.concatenate([[0.0], np.cumsum(steps)]), 0.0)  # rounding leaves less than nothing
        rows = [row for row, e in enumerate(events) if e.device == device]
        found[rows] = totals[np.searchsorted(moments, [events[row].start for row in rows], side="right")]
    return found
