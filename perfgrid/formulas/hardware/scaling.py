"""Scaled number formats: values that share a scale, bytes of the scales, and reads of the input of a conversion.

A recipe is data: a row of `RECIPES`, named by the code ``scaling``. The recipe ``usual`` is that of the format: one
scale per tensor, known from earlier steps, in 8 bits, and blocks of 16 values in 4 bits.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import by_label, positive

from .device import UNQUANTISED

# 8-bit numbers that scales take per element; reads of the input of a conversion; whether shards of a weight can be
# converted alone; copies of converted tokens that two products need, 0 where tokens cannot be converted alone
RECIPES = {
    "usual": (0.0, 1.0, 0.0, 0.0),  # stands for no scaling in 16-bit formats and wider
    "delayed": (0.0, 1.0, 1.0, 1.0),  # one scale per tensor, known from earlier steps (micikevicius2022fp8)
    "tensor": (0.0, 2.0, 1.0, 1.0),  # one scale per tensor, found by reading it first (liang2024torchtitan)
    "row": (0.0, 2.0, 0.0, 0.0),  # a scale per row, along rows for one product and along columns for the other
    "block": (4 / 128, 1.0, 0.0, 2.0),  # a float32 scale for 128 values, which fit in registers (deepseek2024v3)
    "mx": (1 / 32, 1.0, 0.0, 2.0),  # an 8-bit exponent for 32 values (rouhani2023mx)
    "nvfp4": (1 / 16, 2.0, 0.0, 2.0),  # an 8-bit scale for 16 values, below one of the tensor (nvidia2025nvfp4)
}
NAMES = tuple(RECIPES)
BLOCK = 128  # values of the recipe "block" that share a scale
PROMOTION = 5.5  # vector instructions for the sum of a block: with them 1550 TFLOP/s, the most of DeepGEMM on H800

SERVES = positive(
    *("scaling_serves_format", "scaling_fits", "rouhani2023mx"),
    "The format of the study is scaled in a way that exists for it.",
    "this scaling does not exist for the number format (nvfp4 is for fp4; fp4 needs mx or nvfp4)",
)
FORMULAS = SERVES + by_label(
    "precision",
    {
        "usual_scaling": ("1", "micikevicius2022fp8", "Number of the usual scaling of the format."),
        "scaling_fits": ("1", "rouhani2023mx", "1 where the scaling serves the format."),
    },
    {
        UNQUANTISED: (NAMES.index("usual"), 1),
        "fp8": (NAMES.index("delayed"), None),
        "fp4": (NAMES.index("nvfp4"), None),
    },
)


def of_recipe(recipe, column):
    """The entry of a recipe, given by its number, in a column of `RECIPES`."""
    entries = (row[column] for row in RECIPES.values())
    return sum(xp.where(recipe == number, entry, 0.0) for number, entry in enumerate(entries) if entry)


def converted_copies(recipe):
    """Copies of tokens converted before all are gathered that two products need; 0 where a rank cannot convert its own.

    One with a scale for all; two where scales lie along rows for one product and along columns for the other, output
    gradients for both products of the backward pass. None where a scale spans all tokens, as for columns of their own.
    Source: nvidia2026telinear.
    """
    return of_recipe(recipe, 3)


def promoted_rate(recipe, vector_rate):
    """Largest rate of products whose sums over blocks of 128 are scaled and added up by vector units.

    128 multiply-adds of the matrix units take i vector instructions: r = 256·(vector rate/2)/i. Matrix units that take
    scales themselves (MX, NVFP4) are not limited. Source: deepseek2024v3; i by deepseek2025deepgemm.
    """
    return xp.where(recipe == NAMES.index("block"), 2 * BLOCK * (vector_rate / 2) / PROMOTION, 1e30)


# ---- which recipe ---------------------------------------------------------------------------------------------------


@formula(unit="1", source="micikevicius2022fp8")
def scaling_recipe(scaling, usual_scaling):
    """Number of the scaling in use: the study's, or what the format suggests."""
    return xp.where(scaling > 0, scaling, usual_scaling)


# ---- its sizes and copies -------------------------------------------------------------------------------------------


@formula(unit="byte", source="rouhani2023mx")
def scale_size(scaling_recipe, fp8_element_size):
    """Bytes of scales per element of a quantised operand."""
    return of_recipe(scaling_recipe, 0) * fp8_element_size


@formula(unit="FLOP/s", source="stas2025ml")
def matrix_rate(usable_peak_rate, reached_fraction, scaling_recipe, vector_rate):
    """Rate that large matrix products reach in the format of the study: peak rate · reached fraction, or less where
    vector units add up what blocks give.
    """
    return xp.minimum(usable_peak_rate * reached_fraction, promoted_rate(scaling_recipe, vector_rate))


@formula(unit="1", source="nvidia2025nvfp4")
def scaling_reads(scaling_recipe):
    """Times that the conversion of an operand reads it."""
    return of_recipe(scaling_recipe, 1)


@alternative(of="scaling_fits", by="precision", label="fp8", unit="1", source="rouhani2023mx")
def fp8_scaling_fits(scaling_recipe):
    """1 where the scaling serves the format: all but that of NVFP4 serve 8 bits."""
    return xp.where(scaling_recipe == NAMES.index("nvfp4"), 0.0, 1.0)


@alternative(of="scaling_fits", by="precision", label="fp4", unit="1", source="rouhani2023mx")
def fp4_scaling_fits(scaling_recipe):
    """1 where the scaling serves the format: 4 bits need scales for small blocks, MX or NVFP4."""
    return xp.where(scaling_recipe >= NAMES.index("mx"), 1.0, 0.0)
