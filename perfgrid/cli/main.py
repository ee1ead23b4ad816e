"""The command line: data on standard output, progress on standard error; bad input ends with status 2 and one line.

A command is a file, imported when it is called: ``perfgrid --help`` needs none of them.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import signal
import sys
import warnings
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

COMMANDS = {  # name, which is also that of its file (with _ for -): first line of its help
    "train": "Find the best way to train a model on given devices.",
    "serve": "Find the best way to serve a model on given devices.",
    "read-job": "Read the configuration of a training or serving job: what it states, and with --on the verdict.",
    "run": "Evaluate every design of a study, print the best ones and save the result.",
    "plan": "Show what a study evaluates: quantity, columns, points, bytes.",
    "best": "Find the best designs or the Pareto front of a study of any size.",
    "optimize": "Find the best design over continuous quantities by gradients.",
    "distribution": "Quantiles and a histogram over the feasible designs.",
    "explain": "Explain one number: what adds up to it, largest first.",
    "kernels": "List every kernel of one design with the resource that bounds it.",
    "timeline": "Execute the pipeline schedule of one design.",
    "plot": "Draw a view of a study or a result as a picture.",
    "compare": "Show why design B is faster than A, part by part of a step or a request.",
    "sensitivity": "Rank elasticities of outputs over the feasible designs.",
    "uncertainty": "Quantiles, tornado, Morris or Sobol over the catalog's ranges.",
    "diff": "Compare two results: labels, variables, values, feasibility.",
    "report": "Write one HTML page with tables, pictures, derivations, sources and their numbers.",
    "explore": "Show a study or a result as a page on this machine that evaluates while one moves sliders.",
    "expand": "Write a factored result, or a part of it, as netCDF.",
    "verify": "Check that a store is complete, unchanged and of its study.",
    "validate": "Compare predictions with published measurements.",
    "records": "Write templates for measurements, and records of logs.",
    "calibrate": "Fit what differs on your cluster, or named constants, to measurements.",
    "catalog": "List, show, check and write catalog entries.",
    "formulas": "List every formula: quantity, unit, arguments, source; or explain words.",
}

SURROUNDINGS = {  # errors of a path or of the machine wherever they come up; others are caught where a file is used
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
}


class Once(TyperCommand):
    """A command whose options are stated once each, but for those that take several values."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments. PerfgridError for an option that is stated twice, of which the last would win."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for parameter in order:
            several = parameter.multiple or getattr(parameter, "is_flag", False)
            single = parameter.param_type_name == "option" and not several
            if single and order.count(parameter) > 1:
                from perfgrid.engine.errors import PerfgridError

                raise PerfgridError(f"{parameter.opts[0]} is stated twice: state it once")
        return super().parse_args(ctx, args)


class Commands(TyperGroup):
    """The table of commands; the one that is called is imported."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A name with its line of help, for lists of commands."""
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that is called."""
        if args[0] not in COMMANDS:
            from perfgrid.engine.errors import PerfgridError, nearest

            raise PerfgridError(f"no command {args[0]!r}{nearest(args[0], COMMANDS)}")
        command = imported(args[0])
        from perfgrid.engine.renamed import current  # which the command has loaded

        return args[0], command, current(args[1:], "the command line")


@cache
def _freeze_imports() -> None:
    """Leave what is imported to the end of the process: a tenth of a short run is spent on looking through it."""
    gc.freeze()


def command_of(name: str) -> Any:
    """The function, or the commands, in the file of a name."""
    plain = name.replace("-", "_")
    return getattr(import_module(f"perfgrid.cli.{plain}"), f"{plain}_command")


def imported(name: str) -> Any:
    """The command of a name, from its file."""
    gc.disable()
    try:
        found = command_of(name)
    finally:
        _freeze_imports()
        gc.enable()
    if not isinstance(found, typer.Typer):
        single = typer.Typer(add_completion=False)
        single.command(name, cls=Once)(found)
        found = single
    command = get_command(found)
    command.name = name
    return command


app = typer.Typer(
    name="perfgrid",
    help="Time, memory, energy and cost of LLM training and serving for millions of design points at once.",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the versions of perfgrid, its catalog and its records.")
    ] = False,
) -> None:
    """Time, memory, energy and cost of LLM training and serving for millions of design points at once."""
    if version:
        from importlib.metadata import version as installed

        from perfgrid.catalog import catalog_release
        from perfgrid.validation.schema import records_release

        print(f"perfgrid {installed('perfgrid')}\ncatalog {catalog_release()}\nrecords {records_release()}")
        raise typer.Exit


def warning_text(message: Warning | str, category: type[Warning], *place: Any) -> str:
    """A warning for users in one line; others with their place in the code."""
    if category.__module__.startswith("perfgrid."):
        from perfgrid.engine.errors import one_line

        return f"perfgrid: {one_line(str(message))}\n"
    return python_text(message, category, *place)


python_text = warnings.formatwarning


def main() -> None:
    """Entry point: a mistake of the user's ends with status 2 and one line on standard error."""
    check_streams()
    try:
        called()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):  # else the interpreter complains of it when it ends
                _discard(stream)


def called() -> None:
    """The command that is called, with what goes wrong in it as one line and a status."""
    warnings.formatwarning = warning_text
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that unfinished files are cleaned up
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show
    try:
        status = app(standalone_mode=False)  # of an Exit; nothing of a command that ended
        sys.stdout.flush()  # here, where a full disk or a closed pipe is caught
        sys.exit(status)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich and click end with 1
            closed_pipe()
        raise
    except (BrokenPipeError, ConnectionResetError):
        closed_pipe()
    except KeyboardInterrupt:
        sys.exit(130)
    except MemoryError:
        refuse("not enough memory; ask for fewer outputs or shorter axes (run -o STORE.zarr takes any size)")
    except OSError as error:
        if error.errno not in SURROUNDINGS:
            raise
        name = f"{str(error.filename)!r}: " if error.filename else ""
        refuse(f"{name}{error.strerror}")
    except Exception as error:
        from perfgrid.engine.errors import PerfgridError, in_own_file  # loaded by the command that raised it

        if told := in_own_file(error):
            refuse(told)
        if isinstance(error, PerfgridError):
            refuse(str(error))
        describe = getattr(error, "format_message", None)
        if describe is None:  # no mistake in the command line
            raise
        if message := describe().strip():  # none where help has been printed
            refuse(message[0].lower() + message[1:].rstrip("."))
        sys.exit(2)


def check_streams() -> None:
    """Refuse to begin with a standard output that is closed (``>&-``) or cannot be written (``1< FILE``).

    What is printed to a closed standard error is lost.

    Nothing may take the place of a closed stream: messages of libraries would be written into a file of results.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            held = os.open(os.devnull, os.O_RDWR)
            if held != number:
                os.dup2(held, number)
                os.close(held)
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(os.devnull, "w"))
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.FileIO(os.devnull, "w"))
        refuse("standard output is closed: direct it to a file, or to /dev/null")
    with suppress(ImportError, OSError, ValueError):
        from fcntl import F_GETFL, fcntl  # not on every system

        if fcntl(sys.stdout.fileno(), F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            refuse("standard output is open for reading only: direct it to a file, or to /dev/null")


def closed_pipe() -> NoReturn:
    """End quietly, as `head` and its like expect; what is still buffered has no reader."""
    for stream in (sys.stdout, sys.stderr):
        _discard(stream)
    sys.exit(128 + signal.SIGPIPE)


def _discard(stream: Any) -> None:
    """Lose what is still buffered for a stream that takes no more."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def refuse(why: str) -> NoReturn:
    """One line on standard error, and status 2."""
    from perfgrid.engine.errors import one_line

    with suppress(OSError):  # on a full disk the status has to do
        print(f"perfgrid: {one_line(why)}", file=sys.stderr, flush=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
