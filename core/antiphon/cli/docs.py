"""Writes the reference of the command line from its own help: `python -m antiphon.cli.docs > docs/reference/cli.md`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from antiphon.cli import cli

WIDTH = 100


def page() -> str:
    """The whole page, as Markdown."""
    head = (
        "# The command line\n\nMade by `python -m antiphon.cli.docs` from what `--help` says; do not edit it by hand."
    )
    return "\n\n".join([head, *_sections(cli, None, "antiphon")]) + "\n"


def _sections(command: click.Command, parent: click.Context | None, name: str) -> Iterator[str]:
    settings = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    yield f"## `{context.command_path}`\n\n```text\n{command.get_help(context)}\n```"
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None and not found.hidden:
                yield from _sections(found, context, child)


if __name__ == "__main__":
    click.echo(page(), nl=False)
