"""``python tools/validation/torch_memory.py > torch_memory.jsonl`` in its folder: memory of steps of PyTorch, traced.

Runs fine-tuning steps of Transformers and PEFT under fake tensors, which have shapes and formats but no memory, and
counts storages as they come and go. Needs torch, transformers and peft (made with 2.14, 5.24 and 0.21 on a CPU); no
device. Traced steps agree with the peaks of those measured on an H200 (trainer_moments.toml) within 3 %.
"""

import json
import weakref
from typing import Any

import peft  # pyright: ignore[reportMissingImports]
import torch  # pyright: ignore[reportMissingImports]
import transformers  # pyright: ignore[reportMissingImports]
from torch._subclasses.fake_tensor import FakeTensorMode  # pyright: ignore[reportMissingImports]
from torch.utils._python_dispatch import TorchDispatchMode  # pyright: ignore[reportMissingImports]
from torch.utils._pytree import tree_iter  # pyright: ignore[reportMissingImports]

GIB = 2**30
BLOCK = 512  # bytes to which PyTorch's allocator rounds
SMALL = {"layers": 24, "hidden_size": 2048, "heads": 16, "kv_heads": 16, "ffn_size": 5504, "vocab_size": 151936}
MIDDLE = {"layers": 32, "hidden_size": 4096, "heads": 32, "kv_heads": 32, "ffn_size": 11008, "vocab_size": 32000}
LARGE = {**MIDDLE, "kv_heads": 8, "ffn_size": 14336, "vocab_size": 128256}
CASES = (  # shape, mode, sequence, batch, checkpointing, what AdamW works on at once
    (MIDDLE, "lora", 2048, 1, True, "tensor"),
    (MIDDLE, "lora", 1024, 2, False, "tensor"),
    (LARGE, "lora", 16384, 1, True, "tensor"),
    (SMALL, "lora", 8192, 1, True, "tensor"),
    (SMALL, "autocast", 8192, 1, True, "tensor"),
    (SMALL, "autocast", 2048, 1, True, "all"),
    (SMALL, "autocast", 1024, 2, False, "tensor"),
    (LARGE, "pure", 8192, 1, True, "tensor"),
    (LARGE, "pure", 8192, 1, True, "all"),
    (MIDDLE, "pure", 2048, 2, True, "tensor"),
    (MIDDLE, "pure", 2048, 1, False, "tensor"),
)
KEYS = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "intermediate_size": "ffn_size",
    "vocab_size": "vocab_size",
}


class Alive(TorchDispatchMode):
    """Counts the bytes of storages that are alive, and their peak since `start`."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.now = self.peak = 0

    def start(self) -> None:
        """Begin a new peak."""
        self.peak = self.now

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count the storages of its results."""
        found = function(*args, **(kwargs or {}))
        for tensor in tree_iter(found):
            if isinstance(tensor, torch.Tensor) and (key := tensor.untyped_storage()._cdata) not in self.sizes:
                self.sizes[key] = -(-tensor.untyped_storage().nbytes() // BLOCK) * BLOCK
                self.now += self.sizes[key]
                self.peak = max(self.peak, self.now)
                weakref.finalize(tensor.untyped_storage(), self._freed, key)
        return found

    def _freed(self, key: int) -> None:
        self.now -= self.sizes.pop(key, 0)


def _apply(module: torch.nn.Module, function: Any, recurse: bool = True) -> torch.nn.Module:
    """`torch.nn.Module._apply` that replaces parameters: storages that are watched cannot be swapped."""
    for child in module.children():
        child._apply(function)
    for name, parameter in list(module._parameters.items()):
        if parameter is not None:
            with torch.no_grad():
                module._parameters[name] = torch.nn.Parameter(function(parameter), parameter.requires_grad)
    module._buffers.update({name: function(b) for name, b in module._buffers.items() if b is not None})
    return module


def traced(
    shape: dict[str, int], mode: str, sequence: int, batch: int, checkpointing: bool, step: str
) -> dict[str, Any]:
    """Peaks of the second step of a case in GiB."""
    with FakeTensorMode(allow_non_fake_inputs=True), Alive() as alive:
        torch.set_default_dtype(torch.float32 if mode == "autocast" else torch.bfloat16)
        config = transformers.LlamaConfig(
            **{key: shape[name] for key, name in KEYS.items()}, attn_implementation="sdpa", use_cache=False
        )
        model = transformers.LlamaForCausalLM(config)
        torch.set_default_dtype(torch.float32)
        model.train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        if mode == "lora":
            model.enable_input_require_grads()
            matrices = [f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")]
            model = peft.get_peft_model(model, peft.LoraConfig(r=64, lora_dropout=0.0, target_modules=matrices))
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, fused=False, foreach=step == "all")
        tokens = torch.randint(0, 30000, (batch, sequence))
        found = {}
        for _ in range(2):  # the first one makes the state of the optimizer
            alive.start()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode != "pure"):
                loss = model(input_ids=tokens, labels=tokens).loss
            found["forward"] = alive.peak / GIB
            alive.start()
            loss.backward()
            found["backward"] = alive.peak / GIB
            alive.start()
            optimizer.step()
            found["optimizer_step"] = alive.peak / GIB
            optimizer.zero_grad(set_to_none=True)
    about = {"mode": mode, "sequence": sequence, "batch": batch, "checkpointing": checkpointing, "optimizer": step}
    rank = 64 if mode == "lora" else 0
    return {**about, "rank": rank, **shape, **{name: round(size, 3) for name, size in found.items()}}


if __name__ == "__main__":
    torch.nn.Module._apply = _apply  # type: ignore[method-assign]
    for case in CASES:
        print(json.dumps(traced(*case)), flush=True)
