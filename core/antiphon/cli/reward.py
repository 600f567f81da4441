"""`antiphon reward`: what saved trajectories earn, term by term."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from antiphon.cli._options import config_options, json_option
from antiphon.cli._output import note, plural, print_json, safe, shorten, table, usd
from antiphon.cli._trajectories import documents, parsed
from antiphon.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from antiphon.config import Config
    from antiphon.pool import Pool
    from antiphon.registry import Registry
    from antiphon.reward import Composition, Reward, RewardResult
    from antiphon.types import Trajectory


@dataclass(frozen=True, slots=True)
class _Scored:
    line: int
    trajectory: Trajectory
    result: RewardResult


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--reward", "name", default="paper", show_default=True, metavar="NAME", help="A composition of terms.")
@click.option("--alpha", type=click.FloatRange(0, 1), metavar="A", help="Cost against outcome [default: its own].")
@click.option("--pool", metavar="NAME", help="Whose prices and latencies count, and who judges.")
@json_option
@config_options
def reward(
    file: BinaryIO,
    name: str,
    alpha: float | None,
    pool: str | None,
    as_json: bool,
    config_file: Path | None,
    data: Path | None,
) -> None:
    """Say what the trajectories in FILE earn, term by term (JSON lines of `ask --save`, `evaluate` or `train`; "-":
    standard input).

    The order of the file matters: a term with a window (cost, latency) measures each trajectory by those before it, so
    the first ones get its neutral value. A term that does not count for a trajectory shows "-".

    Without --pool the prices are those that a trajectory was shown or charged.
    """
    from antiphon._setup import registry_for
    from antiphon.config import load_config

    config = load_config(config_file, overrides={"defaults": {"data": None if data is None else str(data)}})
    composition = config.reward(name)
    alpha = composition.alpha if alpha is None else alpha
    with redirect_stdout(sys.stderr):  # what a plugin or a member prints must not spoil the results
        registry = registry_for(config)
        names, scored, faults = asyncio.run(_scored(file, composition, alpha, registry, config, pool))
    if not scored and not faults:
        raise ConfigError(f"{file.name} is empty; `antiphon ask --save FILE` writes a trajectory")
    weights = {use.term: use.weight_at(alpha) for use in composition.terms if use.term in names}
    if as_json:
        print_json(_data(name, alpha, weights, scored))
    elif scored:
        _show(weights, names, scored)
    asked = [call for each in scored for call in each.result.calls]
    if asked:
        note(f"judging took {plural(len(asked), 'call')}, {usd(sum(call.cost_usd for call in asked))}")
    if faults:  # after what can be read: a line torn by a crash does not hide the others
        raise ConfigError(faults[0])


async def _scored(
    file: BinaryIO, composition: Composition, alpha: float, registry: Registry, config: Config, pool_name: str | None
) -> tuple[Sequence[str], list[_Scored], list[str]]:
    """The terms in their order, every trajectory that can be read with what it earns, and the lines that are none."""
    from antiphon.reward import compose

    scored, faults = [], []
    async with AsyncExitStack() as resources:
        pool = None
        if pool_name is not None:
            pool = await resources.enter_async_context(_pool(pool_name, config, registry))
        made = compose(composition, registry, pool=pool, alpha=alpha)
        for number, line in documents(file):
            try:
                trajectory = parsed(line, file, number)
            except ConfigError as error:
                faults.append(str(error))
                continue
            scored.append(_Scored(number, trajectory, await _score(made, trajectory, f"{file.name}, line {number}")))
    return made.names, scored, faults


async def _score(made: Reward, trajectory: Trajectory, where: str) -> RewardResult:
    try:
        result = await made.score(trajectory)
    except (ConfigError, PluginError) as error:
        raise type(error)(f"{where}: {error}") from None
    made.commit([(trajectory, result)])
    return result


def _pool(name: str, config: Config, registry: Registry) -> Pool:
    from antiphon._setup import make_pool
    from antiphon.catalogue import Catalogue

    catalogue = Catalogue.of(registry, config)
    return make_pool(catalogue.pool(name), config, registry, allow_unpriced=config.pool(name).allow_unpriced)


def _means(names: Sequence[str], scored: Sequence[_Scored]) -> dict[str, float]:
    """The mean total and the mean of each weighted term; a term counts as 0 where it did not count."""
    sums = {"total": sum(each.result.total for each in scored)}
    sums |= {name: sum(each.result.parts[name] for each in scored) for name in names}
    return {name: value / len(scored) for name, value in sums.items()}


def _data(name: str, alpha: float, weights: dict[str, float], scored: Sequence[_Scored]) -> dict[str, Any]:
    return {
        "reward": name,
        "alpha": alpha,
        "weights": weights,
        "trajectories": [
            {
                "line": each.line,
                "id": each.trajectory.id,
                "task": each.trajectory.task.id,
                "answer": each.trajectory.answer,
                "total": each.result.total,
                "parts": each.result.parts,
                "values": each.result.values,
                "explanation": each.result.explanation,
                "cost_usd": sum(call.cost_usd for call in each.result.calls),
            }
            for each in scored
        ],
        "means": _means(list(weights), scored) if scored else {},
    }


def _show(weights: dict[str, float], names: Sequence[str], scored: Sequence[_Scored]) -> None:
    def cells(each: _Scored) -> list[str]:
        result = each.result
        return [f"{result.parts[name]:.3f}" if name in result.values else "-" for name in names]

    rows = [
        [
            str(each.line),
            shorten(each.trajectory.task.id, 24),
            f"({each.trajectory.stop})" if each.trajectory.answer is None else shorten(each.trajectory.answer, 32),
            str(len(each.trajectory.calls)),
            f"{each.result.total:.3f}",
            *cells(each),
        ]
        for each in scored
    ]
    means = _means(names, scored)
    calls = sum(len(each.trajectory.calls) for each in scored) / len(scored)
    rows.append(["mean", "", f"n = {len(scored)}", f"{calls:.2f}"] + [f"{means[key]:.3f}" for key in ("total", *names)])
    table(["line", "task", "answer", "calls", "total", *(f"{name} x {weights[name]:g}" for name in names)], rows)
    if len(scored) == 1:
        click.echo(safe(scored[0].result.explanation))
