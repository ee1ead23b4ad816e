"""Reading a job: settings of a framework become quantities; nothing is guessed silently."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from perfgrid.catalog import Catalog, load_catalog
from perfgrid.catalog.reading import read_text
from perfgrid.engine.errors import PerfgridError

from .deployments import read_deployment
from .formats import BETWEEN, INSIDE, USUAL, Format, format_of, glossary
from .job import Job
from .kinds import UNMODELLED
from .manifests import as_script
from .models import model_in, named_model, of_named
from .reader import Reader
from .recognise import backend_of, check_launched, recognised, with_files
from .settings import settings_of
from .surroundings import surroundings
from .syntaxes import TABLES, syntax_of
from .words import check_experts

MOST_FILES = 20
_WRITTEN = re.compile(r"perfgrid format: (\S+)")


def read_files(paths: list[Path], **options: Any) -> Job:
    """The job of some files, read in order; see `read_job`."""
    if not 0 < len(paths) <= MOST_FILES:
        raise PerfgridError(f"a job has 1 to {MOST_FILES} files, found {len(paths)}")
    return read_job({str(path): read_text(path) for path in paths}, **options)


def read_job(
    text: str | Mapping[str, str],
    format: str | None = None,
    devices: int | None = None,
    model: str | None = None,
    stated: Mapping[str, Any] | None = None,
    catalog: Catalog | None = None,
    which: str | None = None,
    ignore: Sequence[str] = (),
) -> Job:
    """The job that a configuration of a framework states.

    Parameters
    ----------
    text
        A command line, script or configuration, or several by their names: those behind replace settings of those
        before. Text is read, never executed.
    format
        ``megatron-lm``, or with a version ``megatron-lm@0.14``. Default: the format that knows most of the keys.
    devices, model
        What the configuration leaves open: the number of devices, and the model by its name in the catalog.
    stated
        Further quantities that it leaves open, such as ``{"sequence_length": 4096}``.
    catalog
        A loaded catalog. Default: the built-in one.
    which
        Of several launches or recipes in one file: its number, from 1, or its name.
    ignore
        Keys of the configuration that are left out where perfgrid does not know what they change.

    Returns
    -------
    Job
        Quantities of the design, and what was understood, assumed and ignored.

    Raises
    ------
    PerfgridError
        For text that is no configuration, settings that contradict each other, an unknown format or model, and a key or
        a value that could change the answer and is not known.

    Examples
    --------
    >>> import perfgrid as pg
    >>> job = pg.read_job(
    ...     "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --tensor-model-parallel-size 2 "
    ...     "--micro-batch-size 1 --global-batch-size 128 --seq-length 4096 --bf16",
    ...     model="llama-3.1-8b",
    ... )
    >>> job.values["dp"], job.values["global_batch"], job.model.name
    (8, 128, 'llama-3.1-8b')
    """
    texts = {"job": text} if isinstance(text, str) else dict(text)
    texts = {file: as_script(own, f"{file}: ") for file, own in texts.items()}
    written = _WRITTEN.search(next(iter(texts.values()), ""))
    named = format or (written[1] if written else None) or recognised(texts)
    form, version = format_of(named)
    if (backend := backend_of(form, texts)) is not None:
        form, version = format_of(backend)
    syntax = syntax_of(next(iter(texts.values()), ""), form.syntaxes)
    if "@" not in named and form.dated:
        version = form.dated.get(syntax, version)
    form = form.spelled(syntax)
    if syntax == "flags":
        check_launched(texts)
    texts = _commands_last(form, with_files(form, texts))
    given = dict(stated or {})
    catalog = catalog or load_catalog()
    if form.engines:
        read = partial(_job, given=given, model=model, catalog=catalog, which=None, ignore=ignore)
        return _with_surroundings(read_deployment(texts, form, version, read, which), texts)
    given |= {} if devices is None else {"devices": devices}
    return _with_surroundings(_job(texts, form, version, given, model, catalog, which, ignore), texts)


def _with_surroundings(job: Job, texts: Mapping[str, str]) -> Job:
    """The job, with what its files say beside its settings among what is ignored."""
    rows = surroundings(texts, f"{job.format.title} {job.version}")
    rows = [row for row in rows if row[0] not in job.stated]
    return replace(job, ignored=[*job.ignored, *rows]) if rows else job


def _commands_last(form: Format, texts: Mapping[str, str]) -> dict[str, str]:
    """Files of settings before command lines, which replace what these state, as programs have it; else as given."""
    if form.files_win:
        return dict(texts)
    return dict(sorted(texts.items(), key=lambda item: syntax_of(item[1], form.syntaxes) not in TABLES))


def _job(
    texts: Mapping[str, str],
    form: Format,
    version: str,
    given: Mapping[str, Any],
    model: str | None,
    catalog: Catalog,
    which: str | None,
    ignore: Sequence[str],
) -> Job:
    """The job of texts in a known format."""
    settings = settings_of(texts, form.syntaxes, form.matters, which, form.launchers, form.programs, form.arguments)
    reader = Reader(form, version, settings, ignore)
    where = f"{', '.join(texts)}: "
    reader.state(given, where)
    if form.named is not None or model is not None:  # layers of a model by name, from which chunks may follow
        named = model or reader.found.get(form.named or "")
        if named and (by_name := named_model(catalog, str(named))) is not None:
            for name, value in of_named(by_name, str(reader.found.get(form.named or "") or named)).items():
                reader.found.setdefault(name, value)
    values = reader.values(where)
    form = form.model_copy(update={"software": values["software"]}) if values.get("software") else form
    entry, own, origin = model_in(catalog, form, values, model, where)
    kept = {
        n: v for n, v in values.items() if n in glossary() and glossary()[n].of != "model" and v not in (None, USUAL)
    }
    if kept.get("recompute") != "layers":
        kept.pop("recompute_layers", None)
    experts = entry.values["experts"] if entry is not None else values.get("experts")
    kept = {n: v for n, v in kept.items() if n not in ("ep", "etp") or experts}
    check_experts(kept, where)
    axes = (BETWEEN + tier.partition("=")[0] for tier in form.tiers)
    tiers = {name: values[name] for name in axes if values.get(name)}
    told = {name for name, *_ in origin}  # says more than that it is as published
    assumed = [*(row for row in reader.assumed if row[0] not in told), *origin]
    domain, crossing = _domain_of(form, values)
    ignored = [*reader.ignored, *crossing]
    job = Job(form, version, kept, entry, own, reader.understood, assumed, ignored, tiers, domain)
    return replace(job, open=tuple(reader.open))


def _domain_of(form: Format, values: Mapping[str, Any]) -> tuple[int, list[tuple[str, str, str]]]:
    """Devices of a scale-up domain by a mesh that has several, and keys that part it otherwise than ranks are placed.

    Ranks fill a domain axis by axis, innermost first: outside an axis that goes on between domains none is within one.
    """
    axes = [tier.partition("=")[0] for tier in form.tiers]
    inside, between = ([values.get(f"{side}{axis}") or 1 for axis in axes] for side in (INSIDE, BETWEEN))
    if prod(between) == 1:
        return 0, []
    why = f"{UNMODELLED} change the time: ranks fill a domain axis by axis"
    crossing = [i for i, size in enumerate(between) if size > 1 and prod(inside[i + 1 :]) > 1]
    keys = {row.quantity: key for key, row in form.keys.items()}
    names = [(keys[f"{BETWEEN}{axes[i]}"], str(between[i]), why) for i in crossing]
    return prod(inside), [(form.shown(key), text, told) for key, text, told in names]


def stated_values(
    text: str | Mapping[str, str], form: Format, version: str, given: Mapping[str, Any], own: Mapping[str, Any]
) -> dict[str, Any]:
    """The quantities that texts of a format state, beside some that its reader is given; without those of a model.

    ``own``: quantities of the model, such as its layers. Raises PerfgridError like `read_job`.
    """
    texts = {"this design": text} if isinstance(text, str) else text
    settings = settings_of(texts, form.syntaxes, programs=form.programs, arguments=form.arguments)
    reader = Reader(form, version, settings)
    reader.state(given, "this design: ")
    for name, value in own.items():
        reader.found.setdefault(name, value)
    return reader.values("this design: ")
