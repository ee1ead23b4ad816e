"""Closed loops: so many clients that each wait for an answer before they ask again, as benchmarks run.

All clients ask at once in the beginning. A replica has places for as many sequences as fit; other requests wait for
one. From then on requests come one by one, as answers end: each waits for the pass that is under way, and then for its
own. An engine that computes prompts before anything else holds up all answers alike, so that answers of equal length
end together, and every round is a beginning. Tabulated by `load`: passes of one prompt first, then passes of as many
prompts as fit, as in the beginning.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import at, table

from .batching import NODES

ONE, MANY = NODES[:2]

# ---- equations ------------------------------------------------------------------------------------------------------


def ends_of_passes(prompts, most, first, full):
    """Mean and last time at which passes end that compute ``prompts`` in turn, ``most`` in each but the last.

    A pass of one prompt takes ``first``, a full one ``full``, others lie on the line between them.
    """
    passes = xp.ceil(prompts / most - 1e-9)
    left = prompts - (passes - 1) * most
    shorter = xp.where(most > 1, (most - left) / xp.maximum(most - 1, 1e-9), 0.0) * (full - first)
    last = passes * full - shorter
    return (most * full * (passes - 1) * passes / 2 + left * last) / prompts, last


# ---- who runs -------------------------------------------------------------------------------------------------------


@alternative(of="tabulated_batch", by="batch_rule", label="clients", unit="1", source="yu2022orca")
def clients_tabulated_batch(batch, largest_batch, dp):
    """Sequences that run together: one for each client, as many as fit."""
    return xp.minimum(batch, xp.maximum(largest_batch, dp))


@alternative(of="prefill_sequences", by="batch_rule", label="clients", unit="1", source="agrawal2024sarathi")
def clients_prefill_sequences(replica_batch, prefill_chunk_tokens, computed_prompt_tokens, cp, decode_steps):
    """Prompts of one pass, by load: as many as answers end in a step, and as many as a pass holds and are there.

    A batch b of answers that take n steps ends b/n of them in a step; most steps see one or none where b < n.
    """
    batch = xp.maximum(at(replica_batch, load=ONE), 1.0)
    held = xp.maximum(xp.floor(prefill_chunk_tokens * cp / computed_prompt_tokens), 1.0)
    many = xp.minimum(held, xp.floor(batch))
    few = xp.minimum(xp.maximum(batch / xp.maximum(decode_steps, 1.0), 1.0), many)
    return table("load", **{node: few if node == ONE else many for node in NODES})


@formula(unit="1", source="agrawal2024sarathi")
def waiting_clients(batch, tabulated_batch, dp):
    """Clients of one replica that wait for a place."""
    return xp.maximum(batch - at(tabulated_batch, load=ONE), 0.0) / dp


@formula(unit="1", source="little1961")
def starting_share(batch, requests):
    """Part of the requests that are there in the beginning; none where they never end."""
    return xp.where(requests > 0, xp.minimum(batch / xp.maximum(requests, 1.0), 1.0), 0.0)


@formula(unit="1", source="zheng2024sglang")
def rounds_begin_together(prefill_first, equal_lengths):
    """1 where every round of a closed loop begins together: all answers are held up alike, and as long."""
    return xp.where(prefill_first, 1.0, 0.0) * xp.where(equal_lengths, 1.0, 0.0)


# ---- what a request waits for ---------------------------------------------------------------------------------------


def together(prefill_time, prefill_sequences, replica_batch):
    """Mean and last time to the first token of requests that come together."""
    few, many = (at(prefill_sequences, load=node) for node in (ONE, MANY))
    shared, full = (at(prefill_time, load=node) for node in (ONE, MANY))
    further = xp.where(many > few, (full - shared) / xp.maximum(many - few, 1e-9), 0.0)  # seconds of one more prompt
    return ends_of_passes(xp.maximum(at(replica_batch, load=ONE), 1.0), many, full - further * (many - 1), full)


@formula(unit="s", source="agrawal2024sarathi")
def starting_time(prefill_time, prefill_sequences, replica_batch):
    """Mean time to the first token of requests that come together: passes of many prompts, one after the other."""
    return together(prefill_time, prefill_sequences, replica_batch)[0]


@formula(unit="s", source="agrawal2024sarathi")
def starting_pause(prefill_time, prefill_sequences, replica_batch):
    """Mean time from the first token of requests that come together until all of them have theirs."""
    mean, last = together(prefill_time, prefill_sequences, replica_batch)
    return last - mean


@formula(unit="s", source="little1961")
def pass_wait(prefill_load, prefill_time, decode_step_time, replica_batch):
    """Mean time until the pass ends that begins as a request comes: one with a prompt, or a step.

    An answer ends with a pass, and the next one of the others is under way before the client asks again.
    """
    busy = xp.minimum(prefill_load, 0.99)
    others = xp.minimum(xp.maximum(at(replica_batch, load=ONE) - 1, 0.0), 1.0)
    return others * (busy * at(prefill_time, load=ONE) + (1 - busy) * at(decode_step_time, load=ONE))


@alternative(of="queueing_time", by="batch_rule", label="clients", unit="s", source="little1961, yu2022orca")
def clients_queueing_time(
    starting_time,
    prefill_time,
    pass_wait,
    starting_share,
    rounds_begin_together,
    waiting_clients,
    served_rate,
    dp,
    front_end_time,
):
    """Mean wait of a request beyond the pass with its own prompt: for the server, the beginning or a pass, and a place.

    Clients without a place wait (c - b) / X, with c clients, b places and X requests per second (Little's law).
    """
    together = xp.maximum(starting_share, rounds_begin_together)
    others = xp.maximum(starting_time - at(prefill_time, load=ONE), 0.0)
    waits = together * others + (1 - together) * pass_wait
    return front_end_time + waits + waiting_clients * dp / served_rate


@alternative(of="interference", by="batch_rule", label="clients", unit="1", source="little1961")
def clients_interference(
    busy_share, replica_batch, rounds_begin_together, starting_pause, decode_steps, decode_step_time
):
    """Part of the time of a running sequence in which prompts of others hold up its steps.

    Where rounds begin together those of its own round; otherwise those of the others, not its own.
    """
    others = xp.maximum(1 - 1 / at(replica_batch, load=ONE), 0.0) * busy_share / (1 - busy_share)
    pause = starting_pause / (xp.maximum(decode_steps, 1.0) * at(decode_step_time, load=ONE))
    waits = rounds_begin_together * pause + (1 - rounds_begin_together) * others  # over the time of the steps
    return waits / (1 + waits)
