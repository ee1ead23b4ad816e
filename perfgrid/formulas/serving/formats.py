"""Number formats of inference: how weights and cache are stored, and what 8-bit integers compute."""

from perfgrid.catalog.number_formats import NUMBER_FORMATS
from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative
from perfgrid.formulas.axes import table
from perfgrid.formulas.hardware.device import QUANTISED, UNQUANTISED
from perfgrid.formulas.hardware.scaling import NAMES


def _stored(label):
    """A format in which weights, or keys and values, are stored."""
    return {"label": label, "unit": "byte", "family": {"STORED": ("weight", "kv")}, "by": "STORED_precision"}


@alternative(of="STORED_element_size", source="kwon2023vllm", **_stored("fp32"))
def fp32_STORED_element_size():
    """Bytes of a STORED element in single precision."""
    return NUMBER_FORMATS["fp32"].element_size


@alternative(of="STORED_element_size", source="kwon2023vllm", **_stored("fp16"))
def fp16_STORED_element_size():
    """Bytes of a STORED element in float16."""
    return NUMBER_FORMATS["fp16"].element_size


@alternative(of="STORED_element_size", source="kwon2023vllm", **_stored("bf16"))
def bf16_STORED_element_size():
    """Bytes of a STORED element in bfloat16."""
    return NUMBER_FORMATS["bf16"].element_size


@alternative(of="STORED_element_size", source="micikevicius2022fp8", **_stored("fp8"))
def fp8_STORED_element_size():
    """Bytes of a STORED element in 8-bit floating point; scales are per tensor or row and count for nothing."""
    return NUMBER_FORMATS["fp8"].element_size


@alternative(of="STORED_element_size", source="dettmers2022int8", **_stored("int8"))
def int8_STORED_element_size():
    """Bytes of a STORED element in 8-bit integers with a scale per row."""
    return NUMBER_FORMATS["int8"].element_size


@alternative(of="STORED_element_size", source="lin2023awq", **_stored("int4"))
def int4_STORED_element_size():
    """Bytes of a STORED element in 4-bit integers: half a byte and a 16-bit scale for every 128."""
    return NUMBER_FORMATS["int4"].element_size


@alternative(of="STORED_element_size", source="nvidia2025blackwell", **_stored("fp4"))
def fp4_STORED_element_size():
    """Bytes of a STORED element in NVFP4: half a byte and an 8-bit scale for every 16."""
    return NUMBER_FORMATS["fp4"].element_size


@alternative(of="STORED_element_size", source="rouhani2023mx", **_stored("mxfp4"))
def mxfp4_STORED_element_size():
    """Bytes of a STORED element in MXFP4: half a byte and an 8-bit exponent for every 32."""
    return NUMBER_FORMATS["mxfp4"].element_size


# ---- weights by part of the model -----------------------------------------------------------------------------------


@alternative(
    of="part_weight_size", by="weight_precision", label=tuple(NUMBER_FORMATS), unit="byte", source="lin2023awq"
)
def LABEL_part_weight_size(weight_element_size, head_size, quantised_attention):
    """Bytes of one weight by part of the model, all in LABEL: but head, embedding and router, and attention if stated.

    Those stay in the format of products that are not quantised.
    """
    projections = xp.where(quantised_attention, weight_element_size, head_size)
    return table(
        "weight_part",
        attention=projections,
        mixer=projections,
        indexer=weight_element_size,
        ffn=weight_element_size,
        shared_experts=weight_element_size,
        experts=weight_element_size,
        embedding=head_size,
        head=head_size,
        router=head_size,
    )


@alternative(
    of="part_weight_size", by="weight_precision", label="published", unit="byte", source="huggingface2026models"
)
def published_part_weight_size(
    published_attention_size,
    published_mixer_size,
    published_indexer_size,
    published_ffn_size,
    published_shared_size,
    published_expert_size,
    published_embedding_size,
    published_head_size,
    head_size,
):
    """Bytes of one weight by part of the model, as its checkpoint holds them: means over layers, scales among them."""
    return table(
        "weight_part",
        attention=published_attention_size,
        mixer=published_mixer_size,
        indexer=published_indexer_size,
        ffn=published_ffn_size,
        shared_experts=published_shared_size,
        experts=published_expert_size,
        embedding=published_embedding_size,
        head=published_head_size,
        router=head_size,
    )


@alternative(of="peak_matrix_rate", by="precision", label="int8", unit="FLOP/s", source="stas2025ml")
def int8_peak_matrix_rate(peak_int8_rate):
    """Peak rate of matrix products in 8-bit integers; 0 where there is none."""
    return peak_int8_rate


@alternative(of="reached_fraction", by="precision", label="int8", unit="1", source="stas2025ml")
def int8_reached_fraction(fp8_matrix_efficiency, matrix_efficiency):
    """Fraction of the peak rate that large products of 8-bit integers reach: as 8-bit floating point, or 16 bits."""
    return xp.where(fp8_matrix_efficiency > 0, fp8_matrix_efficiency, matrix_efficiency)


@alternative(of="unquantised_matrix_rate", by="precision", label="int8", unit="FLOP/s", source="stas2025ml")
def int8_unquantised_matrix_rate(half_precision_rate, matrix_efficiency):
    """Rate of the products that stay in 16-bit formats: attention and the output head."""
    return half_precision_rate * matrix_efficiency


@alternative(of="operand_size", by="precision", label="int8", unit="byte", source="dettmers2022int8")
def int8_operand_size():
    """Bytes of one operand element of a product of 8-bit integers."""
    return 1.0


@alternative(of="usual_scaling", by="precision", label="int8", unit="1", source="dettmers2022int8")
def int8_usual_scaling():
    """Number of the scaling that 8-bit integers suggest: one scale per row."""
    return float(NAMES.index("row"))


@alternative(of="scaling_fits", by="precision", label="int8", unit="1", source="dettmers2022int8")
def int8_scaling_fits(scaling_recipe):
    """1 where the scaling serves 8-bit integers: of tensors or rows."""
    return xp.where(scaling_recipe <= NAMES.index("row"), 1.0, 0.0)


@alternative(of="activation_size", by="precision", label="int8", unit="byte", source="dettmers2022int8")
def int8_activation_size(bf16_operand_size):
    """Bytes of one activation element beside 8-bit products: they stay in 16-bit formats."""
    return bf16_operand_size


@alternative(of="head_size", by="precision", label=UNQUANTISED, unit="byte", source="micikevicius2022fp8")
def LABEL_head_size(LABEL_operand_size):
    """Bytes of one weight of embedding and output head in LABEL."""
    return LABEL_operand_size


@alternative(of="head_size", by="precision", label=QUANTISED, unit="byte", source="micikevicius2022fp8")
def LABEL_head_size_in_16_bits(bf16_operand_size):
    """Bytes of one weight of embedding and output head beside LABEL products: they stay in 16-bit formats."""
    return bf16_operand_size


@alternative(of="head_size", by="precision", label="int8", unit="byte", source="dettmers2022int8")
def int8_head_size(bf16_operand_size):
    """Bytes of one weight of embedding and output head beside 8-bit integers: they stay in 16-bit formats."""
    return bf16_operand_size
