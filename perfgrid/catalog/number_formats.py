"""Number formats in which weights are stored: bits of an element, and those of the scales that blocks share.

The sizes that formulas and readers of published checkpoints take are those of this table.
"""

from __future__ import annotations

from dataclasses import dataclass

UNSCALED = 0  # elements that share a scale: so many that it counts for nothing (a tensor, a row)


@dataclass(frozen=True)
class NumberFormat:
    """How an element is stored: its bits, the elements that share a scale, the bits of that scale and a zero point."""

    word: str  # the legal name that stands for it, of ``published_precision`` and ``weight_precision``
    bits: float
    block: int = UNSCALED
    scale_bits: float = 0
    zero_bits: float = 0

    @property
    def element_size(self) -> float:
        """Bytes of one element with its part of scale and zero point."""
        shared = (self.scale_bits + self.zero_bits) / self.block if self.block else 0.0
        return (self.bits + shared) / 8


NUMBER_FORMATS = {
    form.word: form
    for form in (
        NumberFormat("fp32", 32),
        NumberFormat("fp16", 16),
        NumberFormat("bf16", 16),
        NumberFormat("fp8", 8),  # one scale for a tensor or a row (micikevicius2022fp8)
        NumberFormat("int8", 8),  # one scale for a row (dettmers2022int8)
        NumberFormat("int4", 4, 128, 16),  # groups as most publish them (lin2023awq)
        NumberFormat("fp4", 4, 16, 8),  # NVFP4 (nvidia2025nvfp4)
        NumberFormat("mxfp4", 4, 32, 8),  # (rouhani2023mx)
    )
}
FOUR_BITS = frozenset(form.word for form in NUMBER_FORMATS.values() if form.bits == 4)
SIXTEEN_BITS = NUMBER_FORMATS["bf16"]
WIDE = SIXTEEN_BITS.element_size  # bytes of an element that is not quantised
