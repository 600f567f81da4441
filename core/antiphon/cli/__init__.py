"""The command line: `antiphon COMMAND`, each command loaded when it is called."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from antiphon import __version__
from antiphon.errors import AntiphonError, did_you_mean

COMMANDS = {
    "ask": ("antiphon.cli.ask:ask", "Answer a question."),
    "compare": ("antiphon.cli.evaluate:compare", "Say what changed between two evaluations."),
    "evaluate": ("antiphon.cli.evaluate:evaluate", "Judge policies on data sets: tables, figures, a report."),
    "models": ("antiphon.cli.models:group", "Local models: which are there, and how to get one."),
    "new": ("antiphon.cli.plugins:new", "Start a plugin package."),
    "plugins": ("antiphon.cli.plugins:plugins", "List plugins and what they offer; check one."),
    "pool": ("antiphon.cli.pool:pool", "List, show, check, measure and lock pools."),
    "record": ("antiphon.cli.record:record", "Keep what a pool's members say to many questions."),
    "reward": ("antiphon.cli.reward:reward", "Say what saved trajectories earn, term by term."),
    "show": ("antiphon.cli.show:show", "Read a saved trajectory."),
    "train": ("antiphon.cli.train:train", "Train the policy's model."),
    "train-router": ("antiphon.cli.train_router:train_router", "Train a router from recorded scores."),
}
"""Name -> where it is, and what it is for: `antiphon --help` imports none of them."""

USAGE, INTERNAL, INTERRUPTED, PIPE_CLOSED = 2, 70, 130, 141


class _PipeClosed(Exception):
    """Whoever read our output has gone."""


class _Commands(click.Group):
    """Loads a command when it is called by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}{did_you_mean(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _PipeClosed from None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="antiphon", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, envvar="ANTIPHON_DEBUG", help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """A policy calls, a pool answers.

    Results go to standard output, everything else to standard error. Flags beat the environment (ANTIPHON_…), which
    beats antiphon.toml, which beats the defaults.

    Exit status: 0 done; 1 no answer, or a check found faults; 2 wrong usage or configuration; 70 a fault of Antiphon's
    own; 130 interrupted; 141 the reader of the output has gone.
    """


def main() -> NoReturn:
    """The console script."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C: what is under way is saved
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; its exit status. What went wrong is one line on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 shows "?" and not a traceback
    try:
        status = cli.main(list(arguments), prog_name="antiphon", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        where = f" (see `{context.command_path} --help`)" if context is not None else ""
        click.echo(f"antiphon: {_one_line(error.format_message())}{where}", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("antiphon: interrupted", err=True)
        return INTERRUPTED
    except (_PipeClosed, BrokenPipeError):
        _drop_output()
        return PIPE_CLOSED
    except AntiphonError as error:
        if _debug(arguments):
            raise
        click.echo(f"antiphon: {_one_line(str(error))}", err=True)
        return USAGE
    except OSError as error:  # a full disk, a terminal that has gone
        if _debug(arguments):
            raise
        click.echo(f"antiphon: {error.filename or 'the output'}: {error.strerror or error}", err=True)
        _drop_output()
        return USAGE
    except Exception as error:
        if _debug(arguments):
            raise
        from antiphon.redact import redact

        message = redact(_one_line(f"{type(error).__name__}: {error}"))  # anything may stand in it
        click.echo(f"antiphon: a fault of Antiphon's own: {message} (antiphon --debug … shows where)", err=True)
        return INTERNAL


def _debug(arguments: Sequence[str]) -> bool:
    return "--debug" in arguments[:1] or os.environ.get("ANTIPHON_DEBUG", "") not in ("", "0")


def _one_line(message: str) -> str:
    return "; ".join(line.strip() for line in message.splitlines() if line.strip())


def _drop_output() -> None:
    """Send what is still buffered nowhere, so that Python's own flush at exit stays quiet."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # not a real file: nothing will be flushed to a pipe
        return
