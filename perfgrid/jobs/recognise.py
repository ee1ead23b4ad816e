"""Which format the files of a job are in: the one that knows most of their keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache

from perfgrid.catalog.reading import from_json
from perfgrid.engine.errors import PerfgridError, shortened

from .arguments import hyphenated
from .deployments import deployment_in
from .formats import Format, formats
from .heredocs import files_written, named_by
from .kinds import UNKNOWN, kind_of
from .others import refuse_others
from .settings import settings_of
from .shell import Script, script_of, unlaunched
from .syntaxes import TABLES, Syntax, launched, syntax_of

LEAST = 2  # keys that a format has to know
EVERY: tuple[Syntax, ...] = ("python", *TABLES, "flags")
_ASSIGNED = re.compile(r"^\s*(?:export\s+)?(\w+)\+?=", re.MULTILINE)
_USED = re.compile(r"\$\{?(\w+)")
_CONFIGURATION = re.compile(r"(?<![\w./-])[\w./-]{1,300}[.](?:toml|ya?ml|json)\b")


def recognised(texts: Mapping[str, str]) -> str:
    """The format that knows most keys of some texts. PerfgridError where none or several do, with what is missing."""
    where, first = ", ".join(texts), next(iter(texts.values()))
    workers = {file: found for file, text in texts.items() if (found := deployment_in(text))}
    file, found = next(iter(workers.items()), ("", ""))
    if other := [file for file in texts if workers and file not in workers]:
        title = formats()[found].title
        raise PerfgridError(f"{where}: {file} starts workers of {title}, {other[0]} none: read one job at a time")
    if workers:
        return "dynamo" if "dynamo" in workers.values() else found
    for file, text in texts.items():
        if text.lstrip().startswith("{"):
            from_json(text, f"{file}: ")
    check_launched(texts)
    check_started(texts)
    started = _started(texts)
    if len(started) == len(texts) == 1:
        return started[0]
    if backed := [name for name, form in formats().items() if backend_of(form, texts) is not None]:
        return backed[0]
    scores, errors = dict[str, tuple[int, int]](), []
    for name, form in formats().items():
        if form.engines:
            continue
        try:
            scores[name] = _known(form, texts)
        except PerfgridError as error:
            errors += [error] if syntax_of(first, form.syntaxes) == syntax_of(first, EVERY) else []
    ranked = sorted(scores, key=lambda name: ([-n for n in scores[name]], name not in started))
    tied = len(ranked) > 1 and scores[ranked[1]] == scores[ranked[0]] and ranked[:1] != started
    if not ranked or scores[ranked[0]][0] < LEAST or tied:
        raise (
            errors[0]
            if errors
            else _unknown(texts, [n for n in ranked if scores[n][0] and scores[n] == scores[ranked[0]]])
        )
    if ranked[0] not in started:
        _check_margin(texts, ranked, scores)
    _check_alike(texts, ranked[0])
    return ranked[0]


def check_started(texts: Mapping[str, str]) -> None:
    """PerfgridError for a command that starts a server whose options are not read."""
    for file, text in texts.items():
        script = script_of(text, file) if syntax_of(text, EVERY) == "flags" else Script()
        refuse_others([*script.commands, *script.unsure], file)


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


def with_files(form: Format, texts: Mapping[str, str]) -> dict[str, str]:
    """Texts with the files of settings that they write themselves and name.

    PerfgridError where the settings of a format name a further file of settings that is not given.
    """
    found, given = dict(texts), {name.rpartition("/")[2] for name in texts}
    if not form.files:
        return found
    settings = settings_of(texts, form.syntaxes, programs=form.programs, arguments=form.arguments)
    open_ = {key: settings.words.get(key, "").partition(": ")[2].split(" (")[0] for key, *_ in settings.unread}
    names = {*map(hyphenated, form.files)}
    for key, value in {**settings.values, **open_}.items():
        path = str(value).strip("\"'")
        name = path.rpartition("/")[2]
        unsure = key in open_ or _CONFIGURATION.fullmatch(path)
        if hyphenated(key.rpartition(".")[2]) not in names or name in given or not unsure:
            continue
        written = (files_written(text, file).get(named_by(path)) for file, text in texts.items())
        if (text := next(filter(None, written), None)) is not None:
            found[f"{next(iter(texts))}, {path}"] = text
            continue
        raise PerfgridError(
            f"{', '.join(texts)}: the settings are in {path} ({key}), which is not given: name it, too: "
            f"perfgrid read-job {path} {' '.join(texts)}"
        )
    return found


def _started(texts: Mapping[str, str]) -> list[str]:
    """The formats whose programs the commands of some texts start."""
    script = Script()
    for file, text in texts.items():
        if syntax_of(text, EVERY) == "flags":
            script_of(text, file, script)
    commands = [*script.commands, *script.unsure]
    return [n for n, form in formats().items() if any(launched(words, form.programs) for words in commands)]


def _stated(form: Format, texts: Mapping[str, str]) -> list[str]:
    """The keys that some texts state, as a format reads them: formats of one syntax read the same ones."""
    syntaxes = tuple(dict.fromkeys(syntax_of(text, form.syntaxes) for text in texts.values()))
    own = form.name if form.launchers or form.positional else ""
    return _keys(tuple(texts.items()), syntaxes if len(syntaxes) == 1 else form.syntaxes, own, form.programs)


@lru_cache(maxsize=32)
def _keys(
    texts: tuple[tuple[str, str], ...], syntaxes: tuple[Syntax, ...], own: str, programs: tuple[str, ...]
) -> list[str]:
    form = formats()[own] if own else None
    how = {} if form is None else {"launchers": form.launchers, "arguments": form.arguments}
    return list(settings_of(dict(texts), syntaxes, programs=programs, **how).values)


def _known(form: Format, texts: Mapping[str, str]) -> tuple[int, int]:
    """How many stated keys of some texts a format knows, and how many are its own.

    None where it has keys of its own and none of these is stated.
    """
    stated = _stated(form, texts)
    own = sum(any(fnmatchcase(key, pattern) for pattern in form.distinctive) for key in stated)
    return (sum(map(form.matters, stated)), own) if own or not form.distinctive else (0, 0)


def _check_margin(texts: Mapping[str, str], ranked: list[str], scores: Mapping[str, tuple[int, int]]) -> None:
    """PerfgridError where the format that knows most of the keys does not know most of them."""
    best = formats()[ranked[0]]
    stated = _stated(best, texts)
    unknown = [key for key in stated if kind_of(best, key) == UNKNOWN]
    if best.strict and len(unknown) > len(stated) / 2:
        near = ", ".join(f"{name} ({scores[name][0]})" for name in ranked if scores[name][0])
        raise PerfgridError(
            f"{', '.join(texts)}: the format is not recognised: {len(unknown)} of {len(stated)} keys are of none, such "
            f"as {shortened(', '.join(unknown[:4]), 100)}; name it with --format if it is one of (keys known): {near}"
        )


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
                known[name] = 0 if form.engines else _known(form, {file: text})[0]
            except PerfgridError:
                continue
        best = max(known, key=lambda name: (known[name], name == chosen))
        if best != chosen and known[best] >= LEAST and known[best] > 2 * known.get(chosen, 0):
            raise PerfgridError(
                f"{', '.join(texts)}: {file} is a configuration of {formats()[best].title}, the others are of "
                f"{formats()[chosen].title}: read one job at a time, or state --format"
            )
