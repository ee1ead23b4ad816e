"""``perfgrid train``: the best way to train a model on given devices."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from perfgrid.answers.saved import save_study
from perfgrid.answers.screen import answer_rows, answer_units, print_answer
from perfgrid.answers.train import TOKENS, train
from perfgrid.printing.console import print_json

from .arguments import duration, names_in, number_or_text, whole_numbers_in
from .options import AsJson, CatalogFiles, Model, On, Overwrite, RowsFile, SaveStudy, Software, Topology
from .saving import Target


def train_command(
    model: Model,
    on: On,
    devices: Annotated[str, Option("--devices", help="Numbers of devices, comma-separated.")],
    batch: Annotated[int | None, Option(help="Sequences of a step. Default: about 8 million tokens.")] = None,
    sequence: Annotated[int | None, Option(help="Tokens of a sequence. Default: 8192.")] = None,
    tokens: Annotated[float, Option(help="Tokens of the whole run.")] = TOKENS,
    precision: Annotated[str, Option(help="Of matrix products: bf16, fp8, ...")] = "bf16",
    topology: Topology = None,
    software: Software = None,
    minimize: Annotated[str, Option(help="The quantity that decides.")] = "step_time",
    lora: Annotated[int, Option(help="Rank of low-rank adapters; 0 trains all weights.")] = 0,
    within: Annotated[str | None, Option(help="Limit on the time of the whole run, such as 30d.")] = None,
    budget: Annotated[str | None, Option(help="Limit on the cost of the whole run in USD, such as 2e6.")] = None,
    files: CatalogFiles = None,
    save: SaveStudy = None,
    csv: RowsFile = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Find the best way to train a model on given devices."""
    numbers = whole_numbers_in(devices, "--devices")
    target, _ = Target(csv, overwrite, ".csv"), Target(save, overwrite, ".toml")
    found = train(
        model,
        names_in(on),
        numbers,
        batch,
        sequence,
        tokens,
        precision,
        topology,
        software,
        minimize,
        lora,
        duration(within, "--within", "30d"),
        number_or_text(budget),
        files,
    )
    if save is not None:
        save_study(found, save, files or (), overwrite)
    target.save_rows(answer_rows(found), answer_units(found))
    if as_json:
        print_json(answer_rows(found))
        return
    print_answer(found)
