"""`antiphon train-router`: a router of a pool, learnt from recorded scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from antiphon.cli._options import json_option
from antiphon.cli._output import print_json, safe, table


@click.command("train-router")
@click.argument("name")
@click.option(
    "--data",
    "scores",
    multiple=True,
    required=True,
    metavar="FILE",
    help="Recorded replies with scores, as `antiphon record` keeps them; a glob, or several times.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The policy's option `path`."
)
@click.option("--pool", metavar="NAME", help="Who can be asked [default: the configured one].")
@click.option("--metric", metavar="NAME", help="Judge the replies by it [default: their recorded score].")
@click.option("--questions", multiple=True, metavar="FILE", help="Learn from the questions of these data sets alone.")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="A setting of the training.")
@json_option
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Configuration [default: $ANTIPHON_CONFIG, else ./antiphon.toml].",
)
def train_router(
    name: str,
    scores: tuple[str, ...],
    out: Path,
    pool: str | None,
    metric: str | None,
    questions: tuple[str, ...],
    options: tuple[str, ...],
    as_json: bool,
    config_file: Path | None,
) -> None:
    """Train policy NAME for a pool from what its members scored, and keep it in DIR.

    Questions are split: most train it, the others stop the training and say how far predictions are to be trusted. The
    same data, pool and settings give the same router.
    """
    from antiphon import record
    from antiphon._setup import registry_for
    from antiphon.catalogue import Catalogue
    from antiphon.config import load_config

    config = load_config(config_file)
    registry = registry_for(config)
    trainable = _trainable(registry, name)
    views = record.make_pool(Catalogue.of(registry, config), registry, pool or config.defaults.pool).members
    facts = trainable.train(
        views, out, scores=scores, questions=questions or None, metric=metric, options=_settings(options)
    )
    if as_json:
        print_json({"policy": name, "out": str(out), **facts})
        return
    shown = {key: value for key, value in facts.items() if key in ("questions", "validation", "seconds")}
    table(("", ""), [(key, _said(value)) for key, value in shown.items()])
    click.echo(safe(f'{name} is in {out}; use it with [policies.{name}] path = "{out}"'))


def _trainable(registry: Any, name: str) -> Any:
    """The policy's factory.

    Raises:
        ConfigError: there is no such policy, or nothing of it is trained.
    """
    from antiphon.contracts import TrainableRouter
    from antiphon.errors import ConfigError

    factory = registry.factory("policy", name)
    if not isinstance(factory, TrainableRouter):
        able = [
            each for each in registry.names("policy") if isinstance(registry.factory("policy", each), TrainableRouter)
        ]
        raise ConfigError(f"nothing of policy {name!r} is trained from scores; these are: {', '.join(able)}")
    return factory


def _settings(given: tuple[str, ...]) -> dict[str, Any]:
    """`KEY=VALUE` with JSON values; others are texts.

    Raises:
        ConfigError: one is not KEY=VALUE.
    """
    from antiphon.errors import ConfigError

    settings: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--option {text!r} is not KEY=VALUE")
        try:
            settings[key.strip()] = json.loads(value)
        except ValueError:
            settings[key.strip()] = value
    return settings


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_said(item)}" for key, item in value.items())
    return f"{value:.3f}" if isinstance(value, float) else str(value)
