"""Which format the files of a job are in: the one that knows most of their keys."""

from __future__ import annotations

import re
from collections.abc import Mapping

from perfgrid.catalog.reading import from_json
from perfgrid.engine.errors import PerfgridError, shortened

from .deployments import is_deployment
from .formats import Format, formats, reason_to_ignore
from .settings import settings_of
from .shell import Script, script_of, unlaunched
from .syntaxes import TABLES, Syntax, launched, syntax_of

LEAST = 2  # keys that a format has to know
EVERY: tuple[Syntax, ...] = ("python", *TABLES, "flags")
_ASSIGNED = re.compile(r"^\s*(?:export\s+)?(\w+)\+?=", re.MULTILINE)
_USED = re.compile(r"\$\{?(\w+)")
_CONFIGURATION = re.compile(r"[\w./-]+[.](?:toml|ya?ml|json)\b")


def recognised(texts: Mapping[str, str]) -> str:
    """The format that knows most keys of some texts. PerfgridError where none or several do, with what is missing."""
    where, first = ", ".join(texts), next(iter(texts.values()))
    deployments = [name for name, form in formats().items() if form.engines]
    workers = [file for file, text in texts.items() if is_deployment(text)]
    if other := [file for file in texts if workers and file not in workers]:
        raise PerfgridError(f"{where}: {workers[0]} starts workers of Dynamo, {other[0]} none: read one job at a time")
    if workers:
        return deployments[0]
    for file, text in texts.items():
        if text.lstrip().startswith("{"):
            from_json(text, f"{file}: ")
    check_launched(texts)
    started = _started(texts)
    if len(started) == len(texts) == 1:
        return started[0]
    scores, errors = {}, []
    for name, form in formats().items():
        if form.engines:
            continue
        try:
            if form.includes and not _known(form, texts, own=True):
                continue  # it is one of those that it includes
            scores[name] = _known(form, texts)
        except PerfgridError as error:
            errors += [error] if syntax_of(first, form.syntaxes) == syntax_of(first, EVERY) else []
    backed = [name for name, form in formats().items() if backend_of(form, texts) is not None]
    if backed and not any({*formats()[name].includes} & {*backed} for name in scores):
        return backed[0]
    ranked = sorted(scores, key=lambda name: (-scores[name], name not in started, len(formats()[name].includes)))
    tied = len(ranked) > 1 and scores[ranked[1]] == scores[ranked[0]] and ranked[:1] != started
    tied = tied and ranked[0] not in formats()[ranked[1]].includes
    if not ranked or scores[ranked[0]] < LEAST or tied:
        raise errors[0] if errors else _unknown(texts, [n for n in ranked if 0 < scores[n] == scores[ranked[0]]])
    _check_alike(texts, ranked[0])
    return ranked[0]


def check_launched(texts: Mapping[str, str]) -> None:
    """PerfgridError for scripts that hold options and give them to no command."""
    if lists := unlaunched(text for text in texts.values() if syntax_of(text, EVERY) == EVERY[-1]):
        raise PerfgridError(
            f"{', '.join(texts)}: no command takes the options in {shortened(', '.join(lists), 100)}: the script ends "
            "before its launch, or the launch is in another file: name that one, too"
        )


def backend_of(form: Format, texts: Mapping[str, str]) -> str | None:
    """The format of the backend that the settings of a format choose: they and their files are read as that."""
    if not form.backends:
        return None
    try:
        stated = settings_of(texts, form.syntaxes).values
    except PerfgridError:
        return None
    chosen = (by_value.get(str(stated.get(key))) for key, by_value in form.backends.items())
    return next(filter(None, chosen), None)


def check_files(form: Format, texts: Mapping[str, str]) -> None:
    """PerfgridError where the settings of a format name a further file of settings that is not given."""
    if not form.files:
        return
    given = {name.rpartition("/")[2] for name in texts}
    stated = settings_of(texts, form.syntaxes, launchers=form.launchers, programs=form.programs).values
    for key, value in stated.items():
        lacking = key.rpartition(".")[2] in form.files and _CONFIGURATION.fullmatch(str(value))
        if lacking and str(value).rpartition("/")[2] not in given:
            raise PerfgridError(
                f"{', '.join(texts)}: the settings are in {value} ({key}), which is not given: name it, too: "
                f"perfgrid read-job {value} {' '.join(texts)}"
            )


def _started(texts: Mapping[str, str]) -> list[str]:
    """The formats whose programs the commands of some texts start."""
    script = Script()
    for file, text in texts.items():
        if syntax_of(text, EVERY) == "flags":
            script_of(text, file, script)
    commands = [*script.commands, *script.unsure]
    return [n for n, form in formats().items() if any(launched(words, form.programs) for words in commands)]


def _known(form: Format, texts: Mapping[str, str], own: bool = False) -> int:
    """Stated keys of some texts that a format knows; ``own``: those that no format knows which it includes."""
    found = settings_of(texts, form.syntaxes, launchers=form.launchers, programs=form.programs).values
    others = [formats()[name] for name in form.includes] if own else []
    known = [key for key in found if form.matters(key)]
    return sum(not any(other.matters(key) or reason_to_ignore(other, key) for other in others) for key in known)


def _unknown(texts: Mapping[str, str], near: list[str]) -> PerfgridError:
    """What to say of texts in no known format."""
    tied = f" (it fits {' and '.join(near)} alike)" if len(near) > 1 else ""
    where = ", ".join(texts)
    if lacking := _lacking(texts):
        return PerfgridError(f"{where}: the settings are in {lacking[0]}, which is not given: name it before {where}")
    return PerfgridError(f"{where}: the format is not recognised{tied}: name it, --format {', '.join(formats())}")


def _lacking(texts: Mapping[str, str]) -> list[str]:
    """The configurations that some texts name and that are not among them."""
    found = [path for text in texts.values() for path in _CONFIGURATION.findall(text)]
    return [path for path in found if path.rpartition("/")[2] not in {name.rpartition("/")[2] for name in texts}]


def _check_alike(texts: Mapping[str, str], chosen: str) -> None:
    """PerfgridError for a file that is one of another framework than the files together."""
    for file, text in texts.items() if len(texts) > 1 else ():
        others = "\n".join(other for name, other in texts.items() if name != file)
        if {*_ASSIGNED.findall(text)} & {*_USED.findall(others)}:
            continue  # its variables are those of another file
        known = {}
        for name, form in formats().items():
            try:
                known[name] = 0 if form.engines else _known(form, {file: text})
            except PerfgridError:
                continue
        best = max(known, key=lambda name: (known[name], name == chosen, -len(formats()[name].includes)))
        if best != chosen and known[best] >= LEAST and known[best] > 2 * known.get(chosen, 0):
            raise PerfgridError(
                f"{', '.join(texts)}: {file} is a configuration of {formats()[best].title}, the others are of "
                f"{formats()[chosen].title}: read one job at a time, or state --format"
            )
