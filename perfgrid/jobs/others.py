"""Servers whose options are not read, though they look like those of an engine that is."""

from __future__ import annotations

from collections.abc import Iterable

from perfgrid.engine.errors import PerfgridError

from .syntaxes import launched

OTHERS = {  # patterns of the words that start them, or of their images -> name
    "atom.entrypoints.*": "ATOM",
    "text-generation-launcher": "Text Generation Inference",
    "*huggingface/text-generation-inference*": "Text Generation Inference",
    "llama-server": "llama.cpp",
    "ollama serve": "Ollama",
    "mlc_llm serve": "MLC LLM",
    "tritonserver": "Triton",
}


def refuse_others(commands: Iterable[list[str]], where: str) -> None:
    """PerfgridError for a command of a server whose options are not read."""
    for words in commands:
        if name := next((name for pattern, name in OTHERS.items() if launched(words, [pattern])), None):
            raise PerfgridError(
                f"{where}: starts {name}, whose options perfgrid does not read: state the design to perfgrid serve, or "
                "--format vllm for options that are spelled alike"
            )
