# pyright: reportMissingImports=false
"""A small Llama and a plain training loop for it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from .measure import DEVICE


class Norm(nn.RMSNorm):
    """One fused kernel also where weights are kept in float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The norm over the last dimension."""
        assert self.weight is not None
        return F.rms_norm(x, tuple(self.normalized_shape), self.weight.to(x.dtype))


class Layer(nn.Module):
    """A layer as in Llama: grouped-query attention, gated feed-forward part, pre-norms, rotary positions."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, ffn: int):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, hidden // heads
        self.norm1, self.norm2 = Norm(hidden), Norm(hidden)
        self.q = nn.Linear(hidden, hidden, bias=False)
        self.k = nn.Linear(hidden, kv_heads * self.size, bias=False)
        self.v = nn.Linear(hidden, kv_heads * self.size, bias=False)
        self.o = nn.Linear(hidden, hidden, bias=False)
        self.gate, self.up = nn.Linear(hidden, ffn, bias=False), nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def rotated(self, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Rotary positions."""
        left, right = x.chunk(2, -1)
        return x * turn[0] + torch.cat((-right, left), -1) * turn[1]

    def forward(self, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """The layer."""
        batch, length, _ = x.shape
        y = self.norm1(x)
        q = self.q(y).view(batch, length, self.heads, self.size).transpose(1, 2)
        k = self.k(y).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        v = self.v(y).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        q, k = self.rotated(q, turn), self.rotated(k, turn)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv_heads != self.heads)
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, length, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    """A decoder of such layers with its loss."""

    def __init__(self, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocabulary: int):
        super().__init__()
        self.size = hidden // heads
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads, kv_heads, ffn) for _ in range(layers))
        self.norm, self.head = Norm(hidden), nn.Linear(hidden, vocabulary, bias=False)

    def turn(self, length: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of the positions."""
        frequency = 1e4 ** (-torch.arange(0, self.size, 2, device=DEVICE) / self.size)
        angle = torch.outer(torch.arange(length, device=DEVICE), frequency).repeat(1, 2)
        return angle.cos().to(dtype), angle.sin().to(dtype)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The loss of predicting each token, on the tokens themselves."""
        x = self.embedding(tokens).to(torch.bfloat16)
        turn = self.turn(tokens.shape[1], x.dtype)
        for layer in self.layers:
            x = layer(x, turn)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())


def training(shape: list, length: int, sequences: int, compiled: bool) -> Callable[[int], float]:
    """A training step of a number of microbatches, as an unsharded loop in mixed precision makes it."""
    torch.manual_seed(0)
    model = Model(*shape).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=DEVICE == "cuda")
    tokens = torch.randint(shape[-1], (sequences, length), device=DEVICE)
    if compiled:
        for layer in model.layers:
            layer.compile()

    def step(microbatches: int) -> float:
        for _ in range(microbatches):
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = model(tokens)
            (loss / microbatches).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss.item() + norm.item()  # as training loops log it: the host waits for the device

    return step
