"""The algorithms of the mixers in loops, with what they multiply, read and write. Nothing is taken from the program.

Kernel by kernel, chunk by chunk and head by head: `Count` notes the FLOPs of every matrix product and the bytes of what
a kernel reads from memory and writes to it, each array of a chunk once. Every algorithm is checked against the plain
recurrence, or against attention under a mask, by its caller.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

HALF, SINGLE = 2, 4  # bytes of activations, and of decays, strengths and sums


class Count:
    """FLOPs by product, bytes by kernel, and the pairs that attention computes."""

    def __init__(self):
        self.flops, self.bytes, self.pairs = defaultdict(int), defaultdict(int), 0

    def product(self, name, a, b):
        """The matrix product a b."""
        self.flops[name] += 2 * a.shape[0] * a.shape[1] * b.shape[1]
        return a @ b

    def move(self, kernel, array, size):
        """An array that a kernel reads or writes."""
        self.bytes[kernel] += array.size * size


def padded(array, chunk):
    """Zeros behind the tokens, up to whole chunks; tokens are the first axis."""
    lacking = -len(array) % chunk
    return np.concatenate([array, np.zeros((lacking, *array.shape[1:]))])


def chunks_of(tokens, chunk):
    return [slice(i, i + chunk) for i in range(0, tokens, chunk)]


# ---- plain recurrences ----------------------------------------------------------------------------------------------


def linear_recurrence(q, k, v, g):
    """S <- exp(g) S + k v'; o = S'q. q, k [T, G, N]; v [T, H, P]; g [T, H]."""
    tokens, heads, width = v.shape
    share = heads // k.shape[1]
    state, out = np.zeros((heads, k.shape[2], width)), np.zeros_like(v)
    for t in range(tokens):
        for h in range(heads):
            state[h] = np.exp(g[t, h]) * state[h] + np.outer(k[t, h // share], v[t, h])
            out[t, h] = state[h].T @ q[t, h // share]
    return out, state


def delta_recurrence(q, k, v, g, strength):
    """S <- exp(g) S; S <- S + k (b (v - S'k))'; o = S'q. g [T, H, 1 or N]; strength [T, H]."""
    tokens, heads, width = v.shape
    share = heads // k.shape[1]
    state, out = np.zeros((heads, k.shape[2], width)), np.zeros_like(v)
    for t in range(tokens):
        for h in range(heads):
            key = k[t, h // share]
            state[h] = np.exp(g[t, h])[:, None] * state[h]
            state[h] += np.outer(key, strength[t, h] * (v[t, h] - state[h].T @ key))
            out[t, h] = state[h].T @ q[t, h // share]
    return out, state


# ---- chunked recurrences --------------------------------------------------------------------------------------------


def linear_chunked(q, k, v, g, chunk):
    """Mamba-2 in chunks."""
    count, tokens, heads = Count(), len(v), v.shape[1]
    q, k, v, g = (padded(a, chunk) for a in (q, k, v, g))
    share, spans = heads // k.shape[1], chunks_of(len(v), chunk)
    sums, scores, added, before = {}, {}, {}, {}
    for c, span in enumerate(spans):  # kernel "decays"
        for h in range(heads):
            sums[c, h] = np.cumsum(g[span, h])
            count.move("decays", g[span, h], SINGLE)
            count.move("decays", sums[c, h], SINGLE)
    for c, span in enumerate(spans):  # kernel "scores"
        for group in range(k.shape[1]):
            scores[c, group] = count.product("scores", q[span, group], k[span, group].T)
            count.move("scores", q[span, group], HALF)
            count.move("scores", k[span, group], HALF)
            count.move("scores", scores[c, group], SINGLE)
    for c, span in enumerate(spans):  # kernel "writes"
        for h in range(heads):
            key = k[span, h // share]
            if h % share == 0:
                count.move("writes", key, HALF)
            count.move("writes", v[span, h], HALF)
            count.move("writes", sums[c, h], SINGLE)
            left = np.exp(sums[c, h][-1] - sums[c, h])[:, None]
            added[c, h] = count.product("state_update", (left * key).T, v[span, h])
            count.move("writes", added[c, h], SINGLE)
    state = np.zeros((heads, k.shape[2], v.shape[2]))
    for c in range(len(spans)):  # kernel "states": one chunk after the other
        for h in range(heads):
            count.move("states", added[c, h], SINGLE)
            before[c, h] = state[h].copy()
            count.move("states", before[c, h], SINGLE)
            state[h] = np.exp(sums[c, h][-1]) * state[h] + added[c, h]
    count.move("states", state, SINGLE)
    out = np.zeros_like(v)
    for c, span in enumerate(spans):  # kernel "results"
        for h in range(heads):
            query = q[span, h // share]
            if h % share == 0:
                count.move("results", query, HALF)
                count.move("results", scores[c, h // share], SINGLE)
            for array, size in ((v[span, h], HALF), (before[c, h], SINGLE), (out[span, h], HALF)):
                count.move("results", array, size)
            count.move("results", sums[c, h], SINGLE)
            mask = np.tril(np.exp(np.minimum(sums[c, h][:, None] - sums[c, h][None, :], 0)))
            inside = count.product("values", mask * scores[c, h // share], v[span, h])
            earlier = count.product("state_output", query, before[c, h])
            out[span, h] = inside + np.exp(sums[c, h])[:, None] * earlier
    for arrays, size in (((q, k, v, out), HALF), ((g, state), SINGLE)):
        for array in arrays:
            count.move("least", array, size)
    return out[:tokens], state, count


def fixed_chunked(q, k, v, decay, chunk):
    """Lightning attention in chunks: a fixed decay exp(decay) of every head, states and results in 16 bits."""
    count, heads, before = Count(), v.shape[1], {}
    tokens, spans = np.arange(1, chunk + 1), chunks_of(len(v), chunk)
    state = np.zeros((heads, k.shape[2], v.shape[2]))
    for c, span in enumerate(spans):  # kernel "states": one chunk after the other
        for h in range(heads):
            count.move("states", k[span, h], HALF)
            count.move("states", v[span, h], HALF)
            before[c, h] = state[h].copy()
            count.move("states", before[c, h], HALF)
            left = np.exp(decay * (chunk - tokens))[:, None]
            update = count.product("state_update", (left * k[span, h]).T, v[span, h])
            state[h] = np.exp(decay * chunk) * state[h] + update
    count.move("states", state, HALF)
    out = np.zeros_like(v)
    mask = np.tril(np.exp(np.minimum(decay * (tokens[:, None] - tokens[None, :]), 0)))
    for c, span in enumerate(spans):  # kernel "results"
        for h in range(heads):
            scores = mask * count.product("scores", q[span, h], k[span, h].T)
            inside = count.product("values", scores, v[span, h])
            earlier = count.product("state_output", q[span, h], before[c, h])
            out[span, h] = inside + np.exp(decay * tokens)[:, None] * earlier
            for array in (q[span, h], k[span, h], v[span, h], before[c, h], out[span, h]):
                count.move("results", array, HALF)
    for array in (q, k, v, out, state):
        count.move("least", array, HALF)
    return out, state, count


def delta_chunked(q, k, v, g, strength, chunk):
    """Gated delta net (one decay a head) and Kimi delta attention (one a channel) in chunks."""
    count, tokens, heads = Count(), len(v), v.shape[1]
    q, k, v, g, strength = (padded(a, chunk) for a in (q, k, v, g, strength))
    share, spans = heads // k.shape[1], chunks_of(len(v), chunk)
    sums, products, inverse, keys, values, before, written = {}, {}, {}, {}, {}, {}, {}
    for c, span in enumerate(spans):  # kernel "decays"
        for h in range(heads):
            sums[c, h] = np.cumsum(g[span, h], axis=0)
            count.move("decays", g[span, h], SINGLE)
            count.move("decays", sums[c, h], SINGLE)
    for c, span in enumerate(spans):  # kernel "scores"
        for h in range(heads):
            key, gate = k[span, h // share], np.exp(sums[c, h])
            if h % share == 0:
                count.move("scores", key, HALF)
            count.move("scores", sums[c, h], SINGLE)
            count.move("scores", strength[span, h], SINGLE)
            every = count.product("key_products", gate * key, (key / gate).T)
            products[c, h] = np.tril(strength[span, h][:, None] * every, -1)
            count.move("scores", products[c, h], SINGLE)
    for c in range(len(spans)):  # kernel "inverse": (1 + A)^-1 row by row
        for h in range(heads):
            count.move("inverse", products[c, h], SINGLE)
            found = np.eye(chunk)
            for i in range(chunk):
                for j in range(i):
                    for between in range(j, i):
                        found[i, j] -= products[c, h][i, between] * found[between, j]
                        count.flops["inverse"] += 2
            inverse[c, h] = found
            count.move("inverse", found, HALF)
    for c, span in enumerate(spans):  # kernel "writes"
        for h in range(heads):
            key, gate = k[span, h // share], np.exp(sums[c, h])
            if h % share == 0:
                count.move("writes", key, HALF)
            for array, size in ((inverse[c, h], HALF), (v[span, h], HALF), (sums[c, h], SINGLE)):
                count.move("writes", array, size)
            count.move("writes", strength[span, h], SINGLE)
            by = strength[span, h][:, None]
            keys[c, h] = count.product("keys_solved", inverse[c, h], by * gate * key)
            values[c, h] = count.product("values_solved", inverse[c, h], by * v[span, h])
            count.move("writes", keys[c, h], HALF)
            count.move("writes", values[c, h], HALF)
    state = np.zeros((heads, k.shape[2], v.shape[2]))
    for c, span in enumerate(spans):  # kernel "states": one chunk after the other
        for h in range(heads):
            key = k[span, h // share]
            if h % share == 0:
                count.move("states", key, HALF)
            for array, size in ((keys[c, h], HALF), (values[c, h], HALF), (sums[c, h], SINGLE)):
                count.move("states", array, size)
            before[c, h] = state[h].copy()
            written[c, h] = values[c, h] - count.product("state_correction", keys[c, h], state[h])
            last = sums[c, h][-1]
            update = count.product("state_update", (np.exp(last - sums[c, h]) * key).T, written[c, h])
            state[h] = np.exp(last)[:, None] * state[h] + update
            count.move("states", written[c, h], HALF)
            count.move("states", before[c, h], HALF)
    count.move("states", state, SINGLE)
    out = np.zeros_like(v)
    for c, span in enumerate(spans):  # kernel "results"
        for h in range(heads):
            query, key, gate = q[span, h // share], k[span, h // share], np.exp(sums[c, h])
            if h % share == 0:
                count.move("results", query, HALF)
                count.move("results", key, HALF)
            for array, size in ((written[c, h], HALF), (before[c, h], HALF), (sums[c, h], SINGLE)):
                count.move("results", array, size)
            inside = np.tril(count.product("scores", gate * query, (key / gate).T))
            out[span, h] = count.product("values", inside, written[c, h])
            out[span, h] += count.product("state_output", gate * query, before[c, h])
            count.move("results", out[span, h], HALF)
    for arrays, size in (((q, k, v, out), HALF), ((g, strength, state), SINGLE)):
        for array in arrays:
            count.move("least", array, size)
    return out[:tokens], state, count


def step(state, q, k, v, g, strength=None):
    """One decoding step of one head, element by element; FLOPs counted. Returns the result, the state and FLOPs."""
    flops, new = 0, state.copy()
    width, columns = state.shape
    for i in range(width):
        for j in range(columns):
            new[i, j] *= np.exp(g[i % len(g)])
            flops += 1
    out, seen = np.zeros(columns), np.zeros(columns)
    if strength is not None:
        for i in range(width):
            for j in range(columns):
                seen[j] += new[i, j] * k[i]
                flops += 2
    write = v if strength is None else strength * (v - seen)
    for i in range(width):
        for j in range(columns):
            new[i, j] += k[i] * write[j]
            out[j] += new[i, j] * q[i]
            flops += 4
    return out, new, flops


# ---- softmax attention ----------------------------------------------------------------------------------------------


def masked_attention(q, k, v, mask):
    """Attention under a mask. q [T, H, N]; k [T, G, N]; v [T, G, P]; mask [T, T]."""
    share, out = q.shape[1] // k.shape[1], np.zeros((*q.shape[:2], v.shape[2]))
    for h in range(q.shape[1]):
        scores = np.where(mask, q[:, h] @ k[:, h // share].T / np.sqrt(q.shape[2]), -np.inf)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        out[:, h] = weights / weights.sum(1, keepdims=True) @ v[:, h // share]
    return out


def attend(q, k, v, seen):
    """Attention pair by pair with a running maximum and sum (flash); ``seen(t)`` names the tokens that t sees."""
    count, share, out = Count(), q.shape[1] // k.shape[1], np.zeros((*q.shape[:2], v.shape[2]))
    for t in range(len(q)):
        tokens = list(seen(t))
        count.pairs += len(tokens)
        for h in range(q.shape[1]):
            largest, norm, sums = -np.inf, 0.0, np.zeros((1, v.shape[2]))
            for s in tokens:
                score = count.product("scores", q[t, h][None], k[s, h // share][:, None])[0, 0] / np.sqrt(q.shape[2])
                new = max(largest, score)
                weight = np.exp(score - new)
                old = np.exp(largest - new)
                sums = old * sums + count.product("values", np.array([[weight]]), v[s, h // share][None])
                norm, largest = old * norm + weight, new
            out[t, h] = sums[0] / norm
    for array in (q, k, v, out):
        count.move("least", array, HALF)
    return out, count


def index_choice(queries, keys, weights, chosen):
    """Sparse attention's choice: for every token the best ones by the indexer. Queries [T, Hi, d]; keys [T, d]."""
    count, choice, scores = Count(), [], []
    for t in range(len(keys)):
        row = np.zeros(t + 1)
        for s in range(t + 1):
            for h in range(queries.shape[1]):
                product = count.product("index_scores", queries[t, h][None], keys[s][:, None])[0, 0]
                row[s] += weights[t, h] * max(product, 0.0)
        count.move("index", row, SINGLE)
        count.move("choice", row, SINGLE)
        scores.append(row)
        choice.append(sorted(np.argsort(-row, kind="stable")[:chosen].tolist()))
    for array, size in ((queries, 1), (weights, SINGLE), (keys, 1)):
        count.move("index", array, size)
    return choice, scores, count
