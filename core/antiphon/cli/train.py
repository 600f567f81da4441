"""`antiphon train`: reinforcement learning of the policy's model, its supervised warm start, and reports of runs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from antiphon.cli._options import config_options, json_option
from antiphon.cli._output import note, plural, print_json, usd, warn
from antiphon.cli._progress import bar
from antiphon.cli.train_report import export, report

if TYPE_CHECKING:
    from antiphon._setup import Setup
    from antiphon.cli._progress import Update
    from antiphon.train.demonstrations import Demonstrated
    from antiphon.train.estimate import Estimate
    from antiphon.train.prepare import Prepared
    from antiphon.train.spec import TrainSpec
    from antiphon.types import Task

RUNS = "runs"
SHOWN_EVERY = 10  # steps of fine-tuning
F = TypeVar("F", bound=Callable[..., Any])


class _Train(click.Group):
    """A group whose command is `run` where none is named: `antiphon train SPEC.toml`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = args[0] in self.list_commands(ctx)
        return super().resolve_command(ctx, args if known else ["run", *args])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Train)
def train() -> None:
    """Train the policy's model: `antiphon train SPEC.toml`, which is short for `antiphon train run SPEC.toml`."""


train.add_command(report)
train.add_command(export)


def _spec_options(command: F) -> F:
    command = config_options(command)
    command = click.option(
        "--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="The run's folder."
    )(command)
    command = click.option(
        "--set", "settings", multiple=True, metavar="TABLE.KEY=VALUE", help="Over what SPEC says; may be repeated."
    )(command)
    return click.argument("spec", type=click.Path(path_type=Path, dir_okay=False))(command)


@train.command()
@_spec_options
@click.option("--resume", is_flag=True, help="Go on with the run in the folder.")
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Short for --set train.steps=N.")
@json_option
@click.pass_context
def run(
    context: click.Context,
    spec: Path,
    settings: tuple[str, ...],
    out: Path | None,
    resume: bool,
    steps: int | None,
    as_json: bool,
    config_file: Path | None,
    data: Path | None,
) -> None:
    """Train by reinforcement learning, as the TOML file SPEC says, or the preset of that name.

    Everything is kept in the run's folder (by default runs/ and SPEC's name): metrics, rollouts, checkpoints. The first
    Ctrl-C finishes the step under way and makes a checkpoint; a run that was stopped or killed goes on with --resume.
    `--json` prints how it ended and the last step's metrics. Exit status 1: it stopped itself (collapse, budget).
    """
    from antiphon.train.engines import engine
    from antiphon.train.prepare import prepare
    from antiphon.train.spec import load_spec

    given = [*settings, *([f"train.steps={steps}"] if steps is not None else [])]
    with redirect_stdout(sys.stderr):  # a plugin or a member that prints must not spoil the results
        asked = load_spec(spec, given)
        folder = _folder(asked, spec, out)
        trains = engine(asked.train.engine)
        prepared = prepare(asked, config_file=config_file, data=data)
        with bar(asked.train.steps, 0) as update:
            shown = _Shown(prepared, folder, update)
            try:
                ended = trains(prepared, folder, resume=resume, listener=shown)
            except KeyboardInterrupt:
                warn(f"the step under way is dropped; go on with: {_again(context, 'antiphon train')} --resume")
                raise
    note(f"{plural(ended.step, 'step')} done, {usd(ended.spent_usd)} spent; everything is in {folder}")
    if as_json:
        told = {"end": ended.end, "step": ended.step, "why": ended.why, "spent_usd": ended.spent_usd}
        print_json({**told, "folder": str(folder), "last": shown.row})
    if ended.end == "interrupted":
        warn(f"stopped after step {ended.step}; go on with: {_again(context, 'antiphon train')} --resume")
        raise KeyboardInterrupt
    if ended.end != "done":
        warn(f"stopped after step {ended.step}: {ended.why}")
        context.exit(1)


@train.command()
@_spec_options
@json_option
@click.pass_context
def sft(
    context: click.Context,
    spec: Path,
    settings: tuple[str, ...],
    out: Path | None,
    as_json: bool,
    config_file: Path | None,
    data: Path | None,
) -> None:
    """Fine-tune on a teacher's demonstrations, as the tables [demonstrations] and [sft] of SPEC say.

    The teacher plays the policy in real rollouts with the real pool. The weights come into the folder (by default
    runs/SPEC-sft), from which a run starts: --set model.start=FOLDER. `--json` prints what was learnt from, the last
    step's metrics and where the weights are.
    """
    from antiphon.train.prepare import prepare
    from antiphon.train.spec import load_spec
    from antiphon.train.warm import warm_start

    with redirect_stdout(sys.stderr):
        asked = load_spec(spec, settings)
        folder = out or Path(RUNS) / f"{_named(spec)}-sft"
        prepared = prepare(asked, config_file=config_file, data=data)
        try:
            with _Warming() as shown:
                warmed = warm_start(
                    prepared,
                    folder,
                    on_bound=shown.bound,
                    on_played=shown.played,
                    on_demonstrated=shown.demonstrated,
                    on_step=shown.step,
                )
        except KeyboardInterrupt:
            warn(f"stopped, and no weights are kept; begin again with: {_again(context, 'antiphon train sft')}")
            raise
    if as_json:
        found = warmed.demonstrated
        counts = {"examples": len(found.examples), "dropped": dict(found.dropped), "spent_usd": found.spent_usd}
        print_json({**counts, "last": dict(warmed.row), "weights": str(warmed.weights)})
    note(f"the weights are in {warmed.weights}; a run starts from them with --set model.start={folder}")


class _Warming(ExitStack):
    """Tells on standard error how a warm start goes: a line a phase and every few steps, and a bar on a terminal."""

    def __init__(self) -> None:
        super().__init__()
        self._update: Update | None = None
        self._total = 0

    def bound(self, most: Estimate) -> None:
        note(f"at most, with the longest turns and the dearest members: {most}")

    def played(self, done: int, total: int) -> None:
        self._bar(total)(done, lambda: "demonstrations played")

    def demonstrated(self, found: Demonstrated, steps: int) -> None:
        self.close()
        self._update, self._total = None, steps
        dropped = ", ".join(f"{count} {why}" for why, count in found.dropped.items()) or "none"
        examples, in_steps = plural(len(found.examples), "example"), plural(steps, "step")
        note(f"{examples} to learn from in {in_steps}, {usd(found.spent_usd)} spent; dropped: {dropped}")

    def step(self, row: Mapping[str, Any]) -> None:
        if row["step"] % SHOWN_EVERY == 0 or row["step"] == self._total:
            note(f"step {row['step']}/{self._total}  loss {row['loss']:.4f}  lr {row['lr']:.2g}")
        self._bar(self._total)(row["step"], lambda: f"loss {row['loss']:.4f}")

    def _bar(self, total: int) -> Update:
        if self._update is None:
            self._update = self.enter_context(bar(total, 0))
        return self._update


class _Shown:
    """Tells on standard error how a run goes: a line a step, and a bar on a terminal."""

    def __init__(self, prepared: Prepared, folder: Path, update: Update) -> None:
        self._prepared, self._folder, self._update = prepared, folder, update
        self._setup: Setup | None = None
        self._done = 0
        self.row: dict[str, Any] = {}

    def note(self, text: str) -> None:
        note(text)

    async def ready(self, setup: Setup, done: int | None) -> None:
        from antiphon.money import Budget
        from antiphon.train.estimate import bound, judging_usd, speed

        reward = self._prepared.reward(setup, Budget()).reward
        spec, self._setup, self._done = self._prepared.spec, setup, done or 0
        tokens_per_s = None
        if spec.train.engine == "local":  # verl's servers are not up yet
            tokens_per_s = await speed(setup.generator, setup, self._prepared.tasks.tasks[: spec.train.tasks])
        most = bound(
            spec,
            setup,
            done=done,
            validation=len(self._validation),
            tokens_per_s=tokens_per_s,
            judging=judging_usd(reward, setup, (*self._prepared.tasks.tasks, *self._validation)),
        )
        note(f"{plural(spec.train.steps - self._done, 'step')} to come, kept in {self._folder}")
        note(f"at most, with the longest answers and the dearest members: {most}")
        self._update(self._done, str)

    def rolled(self, done: int, total: int) -> None:
        self._update(self._done, lambda: f"{done}/{total} rollouts")

    def step(self, row: Mapping[str, Any]) -> None:
        from antiphon.train.estimate import expected
        from antiphon.train.progress import line

        note(line(row))
        spec = self._prepared.spec
        is_first = self.row.get("step", 0) == 0
        if is_first and self._setup is not None and 0 < row["step"] < spec.train.steps:
            note(f"at this rate, to come: {expected(spec, self._setup, row, validation=len(self._validation))}")
        self.row, self._done = dict(row), row["step"]
        self._update(self._done, str)

    def stopping(self) -> None:
        warn("finishing the step under way, then a checkpoint; Ctrl-C again drops it")

    @property
    def _validation(self) -> Sequence[Task]:
        tasks = self._prepared.validation
        return () if tasks is None else tasks.tasks


def _folder(spec: TrainSpec, path: Path, out: Path | None) -> Path:
    return out or Path(spec.train.out or Path(RUNS) / _named(path))


def _named(spec: Path) -> str:
    return spec.name.removesuffix(".toml")


def _again(context: click.Context, command: str) -> str:
    """The command line that this one began with."""
    words = [*command.split(), str(context.params["spec"])]
    for setting in context.params["settings"]:
        words += ["--set", setting]
    for name in ("out", "steps", "config_file", "data"):
        if (value := context.params.get(name)) is not None:
            words += [f"--{name.removesuffix('_file')}", str(value)]
    return shlex.join(words)
