"""`antiphon plugins` and `antiphon new`: what is installed, whether it holds, and how to start one."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from antiphon.registry import PluginInfo


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--strict", is_flag=True, help="Import every factory too; exit 1 if anything is wrong.")
@click.pass_context
def plugins(context: click.Context, as_json: bool, strict: bool) -> None:
    """List the plugins of this environment, what each offers, and what is wrong with it.

    ANTIPHON_PLUGINS=a,b (plugins or distributions) limits what is loaded; the built-ins always are.
    """
    if context.invoked_subcommand is not None:
        return
    from antiphon.registry import Registry

    # A plugin that prints while it is imported must not spoil the JSON.
    with contextlib.redirect_stdout(sys.stderr):
        registry = Registry.load()
        unimportable = registry.import_problems() if strict else ()
    problems = (*registry.problems, *unimportable)
    if as_json:
        data = {"plugins": [_jsonable(info) for info in registry.plugins], "problems": problems}
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        for info in registry.plugins:
            click.echo("\n".join(_lines(info)))
        _complain([("error", text) for text in unimportable])
    if strict and problems:
        context.exit(1)


@plugins.command()
@click.argument("target")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def check(context: click.Context, target: str, as_json: bool) -> None:
    """Judge a plugin: a source folder (nothing is installed), or the name of an installed plugin or distribution.

    Exits 1 if it finds an error; warnings alone do not fail.
    """
    from antiphon.testing.plugins import check_plugin

    problems = check_plugin(target)
    errors = [problem for problem in problems if problem.severity == "error"]
    if as_json:
        data = {"target": target, "ok": not errors, "problems": [asdict(problem) for problem in problems]}
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        _complain([(problem.severity, problem.message) for problem in problems])
        click.echo(f"{target}: {len(errors)} errors, {len(problems) - len(errors)} warnings")
    if errors:
        context.exit(1)


@click.group()
def new() -> None:
    """Start something new."""


@new.command()
@click.argument("kind")
@click.argument("name")
@click.option(
    "--dir",
    "parent",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("."),
    help="Where to put the package's folder (default: here).",
)
def plugin(kind: str, name: str, parent: Path) -> None:
    """Write a plugin package, antiphon-NAME, with its own test.

    KIND: descriptor, adapter, policy, pricing, reward_term, metric or dataset. NAME: the vendor's name, in lower case.
    """
    from antiphon.cli._scaffold import new_plugin

    folder = new_plugin(kind, name, parent)
    click.echo(f"wrote {folder}\n")
    click.echo(f"  antiphon plugins check {folder}    judge it")
    click.echo(f"  (cd {folder} && python -m pytest)    run its test (pip install pytest)")
    click.echo(f"  pip install -e {folder}    use it")


def _jsonable(info: PluginInfo) -> dict[str, Any]:
    return {**asdict(info), "offers": {kind: list(names) for kind, names in info.offers.items()}}


def _lines(info: PluginInfo) -> list[str]:
    lines = [f"{info.name}  {info.distribution} {info.version}  {info.state}"]
    for kind, names in info.offers.items():
        shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
        lines.append(f"    {kind}: {shown}")
    if info.reason:
        lines.append(f"    {info.reason}")
    lines += [f"    problem: {problem}" for problem in info.problems]
    return lines


def _complain(problems: Sequence[tuple[str, str]]) -> None:
    for severity, message in problems:
        click.echo(f"{severity}: {message}", err=True)
