"""``perfgrid serve``: the best way to serve a model on given devices."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from perfgrid.answers.saved import save_study
from perfgrid.answers.serve import serve
from perfgrid.cli.printing.answer import answer_rows, print_answer
from perfgrid.cli.printing.console import print_json

from .arguments import names_in, whole_numbers_in
from .options import AsJson, CatalogFiles, Overwrite, SaveStudy

ROWS = {
    "cost of 1 M tokens": "cost_per_million_output_tokens",
    "first token": "time_to_first_token",
    "time per token": "time_per_output_token",
    "tokens per second": "output_tokens_per_second",
    "per device": "output_tokens_per_second_per_device",
    "per user": "output_tokens_per_second_per_user",
    "requests at once": "running_batch",
    "energy per token": "energy_per_output_token",
}


def serve_command(
    model: Annotated[str, Argument(help="Model of the catalog, or a config.json or a folder with one.")],
    on: Annotated[str, Option("--on", help="Devices of the catalog, comma-separated.")],
    devices: Annotated[
        str | None, Option("--devices", help="Numbers of devices, comma-separated. Default: up to a node.")
    ] = None,
    prompt: Annotated[int, Option(help="Tokens of a prompt.")] = 1000,
    output: Annotated[int, Option(help="Tokens of an answer.")] = 500,
    ttft: Annotated[str | None, Option(help="Limit on the time to the first token, such as 500ms.")] = None,
    tpot: Annotated[str | None, Option(help="Limit on the time per further token, such as 25ms.")] = None,
    rate: Annotated[float | None, Option(help="Requests per second that arrive at random.")] = None,
    clients: Annotated[int | None, Option(help="Requests in progress at any time.")] = None,
    precision: Annotated[str, Option(help="Of weights, cache and products: bf16, fp8, ...")] = "bf16",
    topology: Annotated[str | None, Option(help="Default: that in which each device is mostly sold.")] = None,
    software: Annotated[str | None, Option(help="Default: that with which each device is mostly used.")] = None,
    files: CatalogFiles = None,
    save: SaveStudy = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Find the best way to serve a model on given devices."""
    sizes = None if devices is None else whole_numbers_in(devices, "--devices")
    found = serve(
        model, names_in(on), sizes, prompt, output, ttft, tpot, rate, clients, precision, topology, software, files
    )
    if save is not None:
        save_study(found, save, files or (), overwrite)
    if as_json:
        print_json(answer_rows(found))
        return
    print_answer(found, ROWS)
