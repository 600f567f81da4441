"""What commands that record share: options, how they are set up, progress, Ctrl-C, and what is said at the end."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from antiphon.cli._output import note, plural, usd, warn
from antiphon.cli._progress import bar
from antiphon.errors import ConfigError

if TYPE_CHECKING:
    from antiphon.pool import Pool
    from antiphon.record import Recorder

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class What:
    """What to record, as the options say it."""

    pool: str | None
    dataset: str
    options: dict[str, Any]
    limit: int | None
    members: tuple[str, ...] | None
    metrics: tuple[str, ...]
    out: Path
    max_cost_usd: float | None
    concurrency: int
    config_file: Path | None
    data: Path | None
    samples: int = 1
    temperature: float | None = None


def question_options(limit: int | None = None) -> Callable[[F], F]:
    """The options of `What` that every recording command has, `limit` being the default number of questions."""
    options = (
        click.option("--dataset", metavar="NAME[:PATH]", help="The questions (see `antiphon plugins`)."),
        click.option(
            "--data-file",
            type=click.Path(path_type=Path, dir_okay=False, exists=True),
            metavar="FILE",
            help="A JSONL file of questions of your own: id, question, golden_answers.",
        ),
        click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="An option of the dataset."),
        click.option(
            "--limit",
            type=click.IntRange(min=1),
            default=limit,
            show_default=limit is not None,
            metavar="N",
            help="The first N questions alone.",
        ),
        click.option("--members", metavar="A,B,…", help="These members of the pool alone."),
        click.option(
            "--metric",
            "metrics",
            multiple=True,
            default=("em",),
            show_default=True,
            metavar="NAME",
            help="Scores replies; the first given is `score`.",
        ),
        click.option(
            "--max-cost",
            type=click.FloatRange(min=0),
            metavar="USD",
            help="Spend no more, what FILE says was spent included.",
        ),
        click.option(
            "--concurrency",
            type=click.IntRange(min=1),
            default=16,
            show_default=True,
            metavar="N",
            help="Calls at once.",
        ),
    )

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def what_of(
    *,
    dataset: str | None,
    data_file: Path | None,
    options: tuple[str, ...],
    members: str | None,
    max_cost: float | None,
    **as_given: Any,
) -> What:
    """What `question_options` and `config_options` say, with what a command adds (`pool`, `out`, …)."""
    name, chosen = dataset_of(dataset, data_file, options)
    return What(dataset=name, options=chosen, members=members_of(members), max_cost_usd=max_cost, **as_given)


def dataset_of(name: str | None, file: Path | None, given: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """The dataset's name and options.

    Raises:
        ConfigError: neither a name nor a file is given, or both with a path, or an option is not KEY=VALUE.
    """
    set_, _, path = (name or "jsonl").partition(":")
    if name is None and file is None:
        raise ConfigError("there are no questions; name a --dataset, or a --data-file of them")
    if file is not None and path:
        raise ConfigError(f"--dataset {name} names a file, and --data-file {file} another; leave one of them out")
    path = path or ("" if file is None else str(file))
    options: dict[str, Any] = {"path": path} if path else {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--option {text!r} is not KEY=VALUE")
        try:
            options[key.strip()] = json.loads(value)
        except ValueError:
            options[key.strip()] = value
    return set_, options


def members_of(given: str | None) -> tuple[str, ...] | None:
    """The names of a comma-separated list; None where none is given."""
    return None if given is None else tuple(name.strip() for name in given.split(",") if name.strip())


@contextmanager
def recorder_of(what: What) -> Iterator[tuple[Recorder, Pool]]:
    """Everything ready to ask, the file open and locked; nothing has been asked yet.

    Raises:
        ConfigError, PluginError, MissingExtra: something does not hold.
    """
    from antiphon import record
    from antiphon._setup import registry_for
    from antiphon.catalogue import Catalogue
    from antiphon.config import load_config

    config = load_config(
        what.config_file, overrides={"defaults": {"data": None if what.data is None else str(what.data)}}
    )
    with redirect_stdout(sys.stderr):  # a plugin or a member that prints must not spoil the results
        registry = registry_for(config)
        options = config.expand(what.options, f"dataset {what.dataset!r}")
        tasks = record.questions(registry, what.dataset, options, what.limit)
        metrics = [registry.metric(name) for name in dict.fromkeys(what.metrics)]
        pool = record.make_pool(
            Catalogue.of(registry, config),
            registry,
            what.pool or config.defaults.pool,
            members=what.members,
            temperature=what.temperature,
        )
        with record.Journal(what.out, record.FIRST_KEY) as journal:
            recorder = record.Recorder(
                pool,
                journal,
                tasks,
                metrics=metrics,
                samples=what.samples,
                temperature=what.temperature,
                max_cost_usd=what.max_cost_usd,
                concurrency=what.concurrency,
            )
            yield recorder, pool


def run(recorder: Recorder, pool: Pool, what: What) -> None:
    """Say what it costs, ask, and say what it has come to. Ctrl-C lets calls in flight end; a second one drops them."""
    note(_ahead(recorder, what))
    if recorder.left:
        with redirect_stdout(sys.stderr):
            try:
                asyncio.run(_run(recorder, pool))
            except (KeyboardInterrupt, asyncio.CancelledError):
                recorder.stop()
    for line in outcome(recorder, what):
        warn(line)


def outcome(recorder: Recorder, what: What) -> Iterator[str]:
    """What was spent, what is missing and why, and what to do about it."""
    now = recorder.spent_usd - recorder.spent_before_usd
    spent = f"spent {usd(now)} in {recorder.asked:,} calls ({usd(recorder.spent_usd)} by the file)"
    yield f"{spent}; {len(recorder.done):,} of {recorder.total:,} replies are in {what.out}"
    for member, reason in recorder.gave_up.items():
        yield f"{member} failed too often in a row and was left alone: {reason}"
    for member, outcomes in failures(recorder).items():
        said = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
        yield f"{member}: no reply yet to {plural(outcomes.total(), 'question')} ({said})"
    if recorder.too_dear and what.max_cost_usd is not None:
        who = ", ".join(sorted(recorder.too_dear))
        yield f"--max-cost {usd(what.max_cost_usd)} allows no more calls of {who}; with more, the same command goes on"
    elif recorder.left:
        yield "the same command goes on from here"


def failures(recorder: Recorder) -> dict[str, Counter[str]]:
    """Member -> outcome -> how many questions it was tried on and has no reply to."""
    found: dict[str, Counter[str]] = {}
    for (_, _, member, _), outcome in recorder.failed.items():
        found.setdefault(member, Counter())[outcome] += 1
    return found


def _ahead(recorder: Recorder, what: What) -> str:
    """What it may cost, before anything is spent."""
    times = "" if recorder.samples == 1 else f", {recorder.samples} times each"
    calls = f"{plural(len(recorder.members), 'member')}, {plural(len(recorder.tasks), 'question')}{times}"
    there = f", {len(recorder.done):,} of {recorder.total:,} replies recorded already" if recorder.done else ""
    if not recorder.left:
        return f"{calls}{there}: nothing to ask"
    cap = "" if what.max_cost_usd is None else f"; at most {usd(what.max_cost_usd)} is spent in all"
    free = [member for member, view in recorder.views.items() if view.quote is None]
    unpriced = f" (without a price, counted as free: {', '.join(free)})" if free else ""
    spent = f", {usd(recorder.spent_usd)} spent before" if recorder.spent_usd else ""
    return (
        f"{calls}{there}: {recorder.left:,} calls to make, up to about {usd(recorder.most_to_come_usd)}"
        f"{unpriced}{spent}{cap}"
    )


async def _run(recorder: Recorder, pool: Pool) -> None:
    task = asyncio.current_task()
    assert task is not None

    def interrupted() -> None:
        if recorder.interrupted:
            task.cancel()
            return
        recorder.stop()
        warn(f"stopping: waiting for {plural(recorder.in_flight, 'call')} in flight (Ctrl-C drops them)")

    try:
        with _signals(interrupted), bar(recorder.total, len(recorder.done)) as update:

            def money() -> str:
                return f"{usd(recorder.spent_usd)} spent, about {usd(recorder.to_come_usd)} to come"

            await recorder.run(lambda: update(len(recorder.done), money))
    finally:
        await pool.aclose()


@contextmanager
def _signals(handler: Callable[[], None]) -> Iterator[None]:
    """`handler` for Ctrl-C and for a termination, where the platform and the thread allow it."""
    loop, asked = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in asked}
    try:
        for number in asked:
            loop.add_signal_handler(number, handler)
    except (NotImplementedError, ValueError, RuntimeError):  # Windows; a thread other than the main one
        yield
        return
    try:
        yield
    finally:
        for number in asked:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])
