"""``perfgrid train``: the best way to train a model on given devices."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from perfgrid.answers.saved import save_study
from perfgrid.answers.train import TOKENS, train
from perfgrid.cli.printing.answer import answer_rows, print_answer
from perfgrid.cli.printing.console import print_json

from .arguments import names_in, whole_numbers_in
from .options import AsJson, CatalogFiles, Overwrite, SaveStudy

ROWS = {
    "time per step": "step_time",
    "tokens per second": "tokens_per_second",
    "utilization": "model_flops_utilization",
    "the whole run": "training_time",
    "cost of the run": "cost_per_training_run",
    "energy per step": "step_energy",
}


def train_command(
    model: Annotated[str, Argument(help="Model of the catalog, or a config.json or a folder with one.")],
    on: Annotated[str, Option("--on", help="Devices of the catalog, comma-separated.")],
    devices: Annotated[str, Option("--devices", help="Numbers of devices, comma-separated.")],
    batch: Annotated[int | None, Option(help="Sequences of a step. Default: about 8 million tokens.")] = None,
    sequence: Annotated[int | None, Option(help="Tokens of a sequence. Default: 8192.")] = None,
    tokens: Annotated[float, Option(help="Tokens of the whole run.")] = TOKENS,
    precision: Annotated[str, Option(help="Of matrix products: bf16, fp8, ...")] = "bf16",
    topology: Annotated[str | None, Option(help="Default: that in which each device is mostly sold.")] = None,
    software: Annotated[str | None, Option(help="Default: that with which each device is mostly used.")] = None,
    minimize: Annotated[str, Option(help="The quantity that decides.")] = "step_time",
    lora: Annotated[int, Option(help="Rank of low-rank adapters; 0 trains all weights.")] = 0,
    files: CatalogFiles = None,
    save: SaveStudy = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Find the best way to train a model on given devices."""
    numbers = whole_numbers_in(devices, "--devices")
    found = train(
        model, names_in(on), numbers, batch, sequence, tokens, precision, topology, software, minimize, lora, files
    )
    if save is not None:
        save_study(found, save, files or (), overwrite)
    if as_json:
        print_json(answer_rows(found))
        return
    print_answer(found, ROWS)
