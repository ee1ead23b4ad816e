"""Loads: when requests come, and how long they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NEVER = np.inf


@dataclass(frozen=True)
class Lengths:
    """Tokens of prompts and answers: their means, coefficients of variation, and part of a prompt that caches hold."""

    prompt: float
    output: float
    prompt_variation: float = 0.0
    output_variation: float = 0.0
    cached: float = 0.0
    family: str = "lognormal"  # or uniform
    longest: int = 32768  # of prompts, and of answers

    def draw(self, generator: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Whole lengths of prompts, of their parts in the cache, and of answers, at least one token each."""
        prompt = drawn(generator, self.family, self.prompt, self.prompt_variation, count)
        output = drawn(generator, self.family, self.output, self.output_variation, count)
        prompt, output = np.minimum(prompt, self.longest), np.minimum(output, self.longest)
        return prompt, np.minimum(np.round(self.cached * prompt).astype(np.int64), prompt - 1), output


@dataclass(frozen=True)
class Traffic:
    """A column per property of a request, in the order of arrival."""

    arrival: np.ndarray  # s; NEVER where it follows the answer of a client's request
    prompt: np.ndarray  # tokens
    cached: np.ndarray  # of them, in the cache of a prefix
    output: np.ndarray  # tokens, at least one
    kind: str  # open, clients or endless
    clients: int = 0  # that begin together and each send the next request when the last one is answered
    seed: int = 0


def drawn(generator: np.random.Generator, family: str, mean: float, variation: float, count: int) -> np.ndarray:
    """Whole numbers, at least one, with this mean and coefficient of variation."""
    if variation == 0:
        found = np.full(count, mean)
    elif family == "lognormal":
        width = np.sqrt(np.log1p(variation**2))
        found = generator.lognormal(np.log(mean) - width**2 / 2, width, count)
    elif family == "uniform":
        found = mean * generator.uniform(1 - np.sqrt(3) * variation, 1 + np.sqrt(3) * variation, count)
    else:
        raise ValueError(f"no distribution of lengths is called {family!r}: lognormal or uniform")
    return np.maximum(np.round(found), 1).astype(np.int64)


def arriving(rate: float, lengths: Lengths, count: int, variation: float = 1.0, seed: int = 0) -> Traffic:
    """Open arrivals at so many per second; gamma gaps with this coefficient of variation (1: Poisson, 0: even)."""
    generator = np.random.default_rng(seed)
    gaps = np.full(count, 1 / rate)
    if variation > 0:
        gaps = generator.gamma(1 / variation**2, variation**2 / rate, count)
    return Traffic(np.cumsum(gaps), *lengths.draw(generator, count), "open", seed=seed)


def of_clients(clients: int, lengths: Lengths, count: int, seed: int = 0) -> Traffic:
    """So many clients that send ``count`` requests together."""
    arrival = np.where(np.arange(count) < clients, 0.0, NEVER)
    drawn_lengths = lengths.draw(np.random.default_rng(seed), count)
    return Traffic(arrival, *drawn_lengths, "clients", clients=min(clients, count), seed=seed)


def endless(lengths: Lengths, count: int, seed: int = 0) -> Traffic:
    """A queue that never ends: all requests wait from the beginning; so many of them are simulated."""
    return Traffic(np.zeros(count), *lengths.draw(np.random.default_rng(seed), count), "endless", seed=seed)
