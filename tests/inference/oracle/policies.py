"""How engines put iterations together, as rows of a table, and their defaults.

Sources (public documentation and code, read in November 2026):

* vLLM V1: ``vllm/v1/core/sched/scheduler.py`` (running sequences first, then waiting ones fill what is left of
  ``max_num_batched_tokens``), ``EngineArgs.get_batch_defaults`` (8,192 tokens and 1,024 sequences for a server on
  devices of 70 GiB and more but A100, otherwise 2,048 and 256), ``long_prefill_token_threshold`` (0: none).
  Asynchronous scheduling is on by default from 0.14, with pipelines from 0.15 (pull request 32359). Tokens count as
  computed when they are scheduled, so that the next batch of a pipeline may hold the next chunk of a prompt.
* SGLang: ``server_args.py`` (``chunked_prefill_size`` 8,192 up to 160 GB, 16,384 beyond; ``max_prefill_tokens``
  16,384; ``enable_mixed_chunk`` and ``disable_overlap_schedule`` off), ``scheduler.py`` (a batch of prompts goes before
  the running batch; in a group of attention ranks each decides for itself, so that others decode beside it unless
  tokens are drafted; ``pp_max_micro_batch_size`` is ``max_running_requests`` over ``pp_size``), and its page on
  pipelines for long contexts (chunks of a request are processed by several stages at once).
* TensorRT-LLM: ``_torch/pyexecutor/scheduler.py`` (generation first, then contexts in the order of their arrival that
  fit ``max_num_tokens`` whole, or chunks; requests in flight are passed over), reference of ``TorchLlmArgs``
  (``max_batch_size`` 2,048, ``max_num_tokens`` 8,192, ``enable_chunked_prefill`` and ``disable_overlap_scheduler``
  false, capacity ``GUARANTEED_NO_EVICT``: cache for the whole answer is set aside).

Not simulated: preemption, priorities, waits for a fuller batch (``batch_wait_timeout_iters``, 0 by default), and
SGLang's estimate of the cache that answers will need (``schedule_conservativeness``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Policy:
    """What an iteration of one rank may hold."""

    tokens: int = 8192  # of an iteration: max_num_batched_tokens, chunked_prefill_size, max_num_tokens
    places: int = 1024  # sequences of one rank and group: max_num_seqs, max_running_requests, max_batch_size
    mixed: bool = True  # prompts fill what decoding leaves; False: a rank computes them alone, before it decodes
    chunked: bool = True  # a prompt may be cut; False: it waits until all of it fits
    following: bool = (
        True  # chunks of a prompt follow each other through the stages of a pipeline; False: one at a time
    )
    longest_chunk: int = 0  # of one prompt in an iteration (long_prefill_token_threshold); 0: no limit
    ahead: bool = True  # an iteration is put together while the one before runs (asynchronous, overlapped)
    reserved: float = 1.0  # part of an answer for which cache is set aside when a sequence is admitted


POLICIES = {
    "vllm": Policy(),
    "vllm-sync": Policy(ahead=False),
    "sglang": Policy(mixed=False),
    "sglang-mixed": Policy(),
    "tensorrt-llm": Policy(places=2048, chunked=False, following=False),
    "tensorrt-llm-chunked": Policy(places=2048, following=False),
}


def policy(engine: str, **changes: Any) -> Policy:
    """A row of the table, with changes."""
    return replace(POLICIES[engine], **changes)
