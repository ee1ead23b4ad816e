"""Command lines and shell scripts as text: what bash would make of them, or "not read"; nothing is executed.

A text becomes a tree (`parser`), and its commands are followed in order over variables that are known or not
(`execution`). What depends on other commands, on files or on the environment is unread: a condition on it is followed
both ways, values that differ are unread behind it, and commands under it are unsure. Names that no text sets are
unread, too, and are presumed to be unset where a script asks for that (``${A:-1}``, ``[ -z "$A" ]``).
"""

from __future__ import annotations

from collections.abc import Iterable

from perfgrid.engine.errors import PerfgridError

from .script import LARGEST_SCRIPT, UNREAD, CommandWords, Script, is_unread

__all__ = ["LARGEST_SCRIPT", "UNREAD", "CommandWords", "Script", "is_unread", "script_of", "unlaunched"]


def script_of(text: str, where: str, known: Script | None = None) -> Script:
    """The script that a text holds, behind one already read. PerfgridError if it cannot be parsed or is too long."""
    from .execution import Shell

    if len(text) > LARGEST_SCRIPT:
        raise PerfgridError(f"{where}: a script has at most {LARGEST_SCRIPT:,} characters, found {len(text):,}")
    found = known or Script()
    Shell(found, where).read(text.replace(UNREAD, ""))
    return found


def unlaunched(texts: Iterable[str]) -> list[str]:
    """The lists and variables of scripts that hold options, where none of these is given to a command."""
    script = Script()
    try:
        for text in texts:
            script_of(text, "", script)
    except PerfgridError:
        return []
    held = {**script.lists, **{name: value.split() for name, value in script.variables.items()}}
    held = {name: {w for w in words if w.startswith("--")} for name, words in held.items()}
    given = {word for words in (*script.commands, *script.unsure) for text in words for word in text.split()}
    return [] if any(own & given for own in held.values()) else [name for name, own in held.items() if len(own) > 1]
