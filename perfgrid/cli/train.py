"""``perfgrid train``: the best way to train a model on given devices."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from perfgrid.answers.train import train

from .answering import Answering
from .arguments import duration, names_in, sizes_in
from .options import (
    AsJson,
    Assumptions,
    CatalogFiles,
    Launch,
    Maximize,
    Minimize,
    Model,
    On,
    Overwrite,
    Price,
    RowsFile,
    SaveStudy,
    Software,
    Topology,
)


def train_command(
    model: Model,
    on: On,
    devices: Annotated[str, Option(help="Such as 512, 256,512 or 64-512 (powers of two).")],
    batch: Annotated[str | None, Option(help="Sequences of a step. Default: about 8 million tokens.")] = None,
    sequence: Annotated[
        str | None, Option(help="Tokens of a sequence, such as 32k, which is 32,768. Default: 8192.")
    ] = None,
    tokens: Annotated[str | None, Option(help="Tokens of the whole run, such as 15T. Default: 1T.")] = None,
    precision: Annotated[
        str | None, Option(help="Of matrix products: bf16, fp8, nvfp4, mxfp8, ... Default: bf16.")
    ] = None,
    topology: Topology = None,
    software: Software = None,
    minimize: Minimize = None,
    maximize: Maximize = None,
    lora: Annotated[str, Option(help="Rank of low-rank adapters; 0 trains all weights.")] = "0",
    within: Annotated[str | None, Option(help="Limit on the time of the whole run, such as 30d.")] = None,
    budget: Annotated[str | None, Option(help="Limit on the cost of the whole run in USD, such as 2M.")] = None,
    price: Price = None,
    headroom: Annotated[
        str | None,
        Option(help="Part of the device memory that stays free. Default: by records of such software."),
    ] = None,
    files: CatalogFiles = None,
    save: SaveStudy = None,
    csv: RowsFile = None,
    launch: Launch = None,
    assumptions: Assumptions = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Find the best way to train a model on given devices."""
    answering = Answering.of(launch, csv, save, assumptions, overwrite, as_json)
    found = train(
        model,
        names_in(on),
        sizes_in(devices),
        batch=batch,
        sequence=sequence,
        tokens=tokens,
        precision=precision,
        topology=topology,
        software=software,
        minimize=minimize,
        maximize=maximize,
        lora=lora,
        within=duration(within, "--within", "30d"),
        budget=budget,
        price=None if price is None else names_in(price),
        catalog=files,
        headroom=headroom,
    )
    answering.show(found, files or ())
