"""A job, steps and a table's usual columns; measurements written and read."""

from typing import Any

from perfgrid.validation.measurements.measured import Measured
from perfgrid.validation.schema import Record, read_records

JOB = """torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
  --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 8192 \\
  --swiglu --bf16 --max-position-embeddings 8192 --untie-embeddings-and-output-weights --disable-bias-linear \\
  --normalization RMSNorm --position-embedding-type rope --micro-batch-size 1 --global-batch-size 128 \\
  --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce \\
  --overlap-param-gather --attention-dropout 0 --hidden-dropout 0 --vocab-size 128256
"""


STEPS = [(1, 21000.0), *((n, 9000.0 + n) for n in range(2, 22))]


BASE = {
    "device": "h100-sxm-80gb",
    "devices": 64,
    "model": "llama-3.1-8b",
    "tp": 2,
    "pp": 1,
    "gbs": 256,
    "seq_len": 8192,
}


def table(folder, header, *rows, name="runs.csv"):
    path = folder / name
    path.write_text("\n".join([",".join(header), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def read(path, **options) -> Any:
    """The records of a file that has no problem."""
    records, problems = read_records([Measured(path, **options)])
    assert problems == []
    for record in records:
        assert Record.model_validate_json(record.model_dump_json()) == record  # as `perfgrid records read` writes it
    return records
