"""What a key could be about, by the words of its name, and whether a pattern of a table is about it."""

from __future__ import annotations

import re

from .arguments import hyphenated

SUBJECTS = {  # what a key could change -> words of its name, a star for words that begin so
    "the layout": (
        *("parallel*", "degree", "tp", "pp", "cp", "dp", "ep", "etp", "vp", "sp", "pipeline*", "virtual", "replica*"),
        *("replicate*", "shard*", "zero*", "fsdp*", "hsdp", "nodes", "nnodes", "nproc*", "gpus", "devices", "world"),
        *("mesh", "ulysses*", "expert*", "moe", "stage*", "ranks", "ici", "dcn", "deepspeed"),
    ),
    "the batch": ("batch*", "microbatch*", "minibatch*", "mbs", "gbs", "minibs", "accumulat*", "grad_accum"),
    "the number formats": (
        *("precision*", "dtype*", "fp8*", "fp4*", "fp6*", "fp16*", "bf16*", "fp32*", "nvfp4", "mxfp8", "mxfp4", "int8"),
        *("int4", "quant*", "float8", "amp", "half", "bits", "4bit", "8bit"),
    ),
    "recomputation": ("recompute*", "checkpointing", "remat*", "activation*"),
    "which weights are trained": ("adapter*", "lora*", "qlora", "dora", "peft*", "freeze*", "frozen", "trainable"),
    "what is kept in host memory": ("offload*",),
    "the memory": ("memory", "buffer*"),
    "the sequence": ("seq", "sequence*", "seqlen", "length*", "packing", "packed", "pack", "context", "window"),
    "the optimizer": ("optimizer*", "optim", "muon", "adafactor", "moments"),
    "the model": ("layers", "hidden", "heads", "ffn", "vocab", "width", "depth", "topk", "mtp", "attention"),
}
OFF = ("", "null", "none", "false", "no", "off", "0", "0.0", "[]", "{}")  # with which an unknown key has no effect
_PATTERNS = [
    (subject, re.compile(f"(?:{'|'.join(word.replace('*', '.*') for word in words)})"))
    for subject, words in SUBJECTS.items()
]
_WORDS = re.compile(r"[^a-z0-9]+")


def could_change(key: str, value: str = "on") -> str:
    """What an unknown key could change, by the words of its name; empty for nothing, and for a key that is off."""
    words = list(filter(None, _WORDS.split(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower())))
    found = next((subject for subject, pattern in _PATTERNS if any(map(pattern.fullmatch, words))), "")
    single = found == "the layout" and value == "1"  # a group of one
    return "" if single or value.strip().lower() in OFF else found


def covers(pattern: str, key: str, strict: bool) -> bool:
    """Whether a pattern of a table is about a key.

    A star stands for any end; in a strict table not of a key that could matter by its name, unless the star is doubled.
    """
    pattern, key = hyphenated(pattern), hyphenated(key)
    if not pattern.endswith("*"):
        return key == pattern
    begun = key.startswith(pattern.rstrip("*"))
    return begun and (not strict or pattern.endswith("**") or not could_change(key))
