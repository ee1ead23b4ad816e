"""The prompt tokens of an iteration, which a serving question searches where nobody states them."""

from __future__ import annotations

from typing import Any, cast

from .question import Question
from .search import STAGES

TOKENS, SEQUENCES = "prefill_chunk_tokens", "batch_limit"
TRIED = (256, 512, 1024, 2048)  # beside the engine's default
WHOLE = 2**17  # tokens: an engine with this limit or more has none


def budget_axis(asked: Question, places: bool) -> tuple[dict[str, Any] | None, str | None]:
    """The axis of what an iteration may hold, the engine's default first, and a condition on its designs.

    Nothing is searched where the question or an entry of the user states either, where systems have several engines,
    and where the engine cuts no prompts. An engine that mixes prompts and steps runs at most as many sequences as an
    iteration has tokens [vllm2026arguments]: so many ``places`` a replica has where the system chooses the batch.
    Pipelines keep the default: where they compute prompts in several parts they are predicted up to a third too fast.
    """
    usual = asked.usual["software"]
    engines = {asked.software} if asked.software else set(usual)
    name = engines.pop()
    entry = asked.catalog.entry("software", str(name))
    policy, own = entry.values, {TOKENS, SEQUENCES} & {*entry.stated}
    default, most = (int(cast(float, policy[name])) for name in (TOKENS, SEQUENCES))
    if engines or own or not policy["chunked_prompts"] or default >= WHOLE:
        return None, None
    tokens = [default, *(count for count in TRIED if count != default)]
    columns = {TOKENS: tokens}
    if places and not policy["prefill_first"]:
        columns[SEQUENCES] = [min(most, count) for count in tokens]
    return {"labels": tokens, "zip": columns}, f"{STAGES} == 1 or {TOKENS} == {default}"
