"""Which layers of a configuration have experts, and which an indexer of their own: by steps, words or numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfgrid.engine.errors import PerfgridError

from .architectures import Architecture

At = Callable[[str], Any]  # the value of a key


def sparse_layers(row: Architecture, at: At, layers: int, stated: tuple[int, int], where: str) -> tuple[list[int], int]:
    """The layers with experts, the first layer being 0, and the step between them; 0 where no key says it.

    ``stated``: leading dense layers, and the step that a quantity states. All layers from one on have experts, or every
    n-th, less those that are listed as dense. Raises PerfgridError for other places.
    """
    leading, step = stated
    placed = [i for i in range(layers) if i >= leading and (i + 1) % max(step, 1) == 0]
    key = next((key for key in row.keys_of("expert_layer_step") if at(key) is not None), "")
    if row.dense_list and (dense := at(row.dense_list)):
        key, without = row.dense_list, {*_numbers(row.dense_list, dense, layers, where)}
        placed = [i for i in placed if i not in without]
    if row.layer_kinds and (kinds := at(row.layer_kinds)) is not None:
        _check_words(row.layer_kinds, kinds, ("dense", "sparse"), layers, where)
        key, placed = row.layer_kinds, [i for i, kind in enumerate(kinds) if kind == "sparse"]
    if row.expert_list and (experts := at(row.expert_list)):
        key, placed = row.expert_list, _numbers(row.expert_list, experts, layers, where)
    if not key:
        return placed, 0
    step = placed[1] - placed[0] if len(placed) > 1 else 1
    if placed != list(range(layers - 1 - step * (len(placed) - 1), layers, step)) or (placed and placed[0] < step - 1):
        raise PerfgridError(
            f"{where}: {key} is not supported, only experts in every n-th layer, the last one among them"
        )
    return placed, step


def own_indexers(row: Architecture, at: At, layers: int, where: str) -> int | None:
    """How many layers choose tokens by an indexer of their own; None where all do.

    Raises PerfgridError for a list that does not name each layer, and where layers share without one.
    """
    if not row.indexer_list:
        return None
    if (kinds := at(row.indexer_list)) is None:
        if at("index_topk_freq") not in (None, 1):
            raise PerfgridError(f"{where} lacks {row.indexer_list} (layers with an indexer), beside index_topk_freq")
        return None
    _check_words(row.indexer_list, kinds, ("full", "shared"), layers, where)
    if kinds[0] != "full":
        raise PerfgridError(f"{where} contradicts itself: {row.indexer_list} shares before the first indexer")
    return kinds.count("full")


def _check_words(key: str, words: Any, legal: tuple[str, str], layers: int, where: str) -> None:
    """PerfgridError unless a key has one of two words for each layer."""
    if not isinstance(words, list) or len(words) != layers or any(word not in legal for word in words):
        raise PerfgridError(f"{where}, {key} must name each of {layers} layers {' or '.join(legal)}")


def _numbers(key: str, numbers: Any, layers: int, where: str) -> list[int]:
    """The layers that a key lists, in order, the first layer being 0."""
    if not isinstance(numbers, list) or any(isinstance(n, bool) or not isinstance(n, int) for n in numbers):
        raise PerfgridError(f"{where}, {key} must list numbers of layers, found {numbers!r}")
    if sorted({*numbers}) != sorted(numbers) or not all(0 <= n < layers for n in numbers):
        named = f"{key} = {numbers!r} does not name layers of {layers} once each"
        raise PerfgridError(f"{where} contradicts itself: {named}")
    return sorted(numbers)
