"""`antiphon evaluate` runs policies over data sets; `antiphon compare` says what changed between two runs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from antiphon.cli._options import config_options, json_option
from antiphon.cli._output import note, plural, print_json, shorten, table, usd, warn
from antiphon.cli._progress import bar
from antiphon.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from antiphon.evaluate.run import Evaluation, Progress
    from antiphon.evaluate.spec import Spec

SHOWN_CHANGES = 50
RUNS = "runs"


@click.command()
@click.argument("spec", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--policy", "policies", multiple=True, metavar="NAME[:LABEL]", help="Instead of SPEC: who decides.")
@click.option("--dataset", "datasets", multiple=True, metavar="NAME[:PATH]", help="Instead of SPEC: the questions.")
@click.option("--answer-by", type=click.Choice(["member", "base"]), help="Instead of SPEC: who words the answer.")
@click.option("--pool", metavar="NAME", help="Who can be asked (see `antiphon pool list`).")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The first N questions of each data set.")
@click.option("--seeds", metavar="N,N,…", help="Samples of each question, by their seeds [default: 0].")
@click.option("--metrics", metavar="NAME,…", help="What judges answers [default: em,f1,strict_em].")
@click.option("--baseline", metavar="LABEL", help="The policy that the others are compared with.")
@click.option("--concurrency", type=click.IntRange(min=1), metavar="N", help="Questions at once [default: 64].")
@click.option("--max-cost", type=click.FloatRange(min=0), metavar="USD", help="Spend no more, earlier runs included.")
@click.option("--allow-unpriced", is_flag=True, help="Take members without a price; they count as free.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Where the run is kept.")
@json_option
@config_options
@click.pass_context
def evaluate(
    context: click.Context,
    spec: Path | None,
    policies: tuple[str, ...],
    datasets: tuple[str, ...],
    answer_by: str | None,
    pool: str | None,
    limit: int | None,
    seeds: str | None,
    metrics: str | None,
    baseline: str | None,
    concurrency: int | None,
    max_cost: float | None,
    allow_unpriced: bool,
    out: Path | None,
    as_json: bool,
    config_file: Path | None,
    data: Path | None,
) -> None:
    """Put the questions of data sets to policies, judge the answers, and write tables, figures and a report.

    SPEC is a TOML file with the tables [evaluate], [[policies]] and [[datasets]]; --policy and --dataset do without
    one. Everything is kept in DIR (by default runs/ and SPEC's name): trajectories and a row for each as they finish,
    then summary.json, tables/, figures/ and report.html. The same command goes on where it was stopped or killed, and
    asks nothing again that is committed. `--json` prints the summary. Exit status 1: the budget did not last.
    """
    from antiphon.evaluate.run import Evaluation

    given = {
        "pool": pool,
        "limit": limit,
        "seeds": None if seeds is None else _numbers(seeds),
        "metrics": None if metrics is None else _names(metrics),
        "baseline": baseline,
        "concurrency": concurrency,
        "allow_unpriced": True if allow_unpriced else None,
    }
    with redirect_stdout(sys.stderr):  # a plugin or a member that prints must not spoil the results
        asked = _spec(spec, policies, datasets, answer_by, given)
        directory = _directory(asked, spec, out)
        with Evaluation(asked, directory, config_file=config_file, data=data, max_cost_usd=max_cost) as evaluation:
            note(_ahead(evaluation, max_cost))
            with _progress(evaluation) as on_progress:
                end = evaluation.run(on_progress, lambda: warn("finishing what is under way; Ctrl-C again drops it"))
            left = f"{evaluation.done} of {plural(evaluation.total, 'rollout')} done"
            if end == "interrupted":
                warn(f"stopped: {left} and kept in {directory}; the same command goes on from there")
                raise KeyboardInterrupt
            unfinished = f"{left}: the next one could cost more than is left" if end == "budget" else None
            summary = evaluation.summarise(command=_command(context), note=unfinished)
            _report(directory)
            spent = evaluation.spent_usd
    if as_json:
        print_json(summary)
    else:
        _show(summary)
    note(f"{left}, {usd(spent)} spent; see {directory / 'report.html'}")
    if unfinished:
        warn(f"{unfinished}; the same command with a higher --max-cost goes on from there")
        context.exit(1)


@click.command()
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option("--metric", metavar="NAME", help="What to go by [default: the first that both have].")
@click.option("--all", "show_all", is_flag=True, help=f"Show every change, not the first {SHOWN_CHANGES}.")
@json_option
def compare(before: str, after: str, metric: str | None, show_all: bool, as_json: bool) -> None:
    """Say what changed from A to B, question by question.

    A and B are directories of `antiphon evaluate`, or DIR:LABEL for one policy of it. Compared is what both have: by
    policy, pool, data set, question and seed, and by the last three where policies are named. Totals come with the
    paired difference, its 95 % interval and the p of a sign-flip test; changes with those that got worse first.
    """
    from antiphon.evaluate.compare import Side
    from antiphon.evaluate.compare import compare as compared

    found = compared(Side.of(before), Side.of(after), metric)
    if as_json:
        print_json(found)
        return
    _show_totals(found)
    changes = found["changed"]
    shown = changes if show_all else changes[:SHOWN_CHANGES]
    if shown:
        click.echo()
        table(("data set", "question", found["metric"], "raw cost", "answer before", "answer after"), [
            _change(change, found["metric"]) for change in shown
        ])  # fmt: skip
    if len(shown) < len(changes):
        note(f"{len(changes) - len(shown)} more changes; --all shows them")
    for side in ("before", "after"):
        if found[f"only_{side}"]:
            note(f"{plural(found[f'only_{side}'], 'rollout')} of {found[side]} without a counterpart")


# ---- what to run --------------------------------------------------------------------------------------------------


def _spec(
    path: Path | None,
    policies: tuple[str, ...],
    datasets: tuple[str, ...],
    answer_by: str | None,
    given: dict[str, Any],
) -> Spec:
    from antiphon.evaluate.spec import dataset_flag, load_spec, make_spec, policy_flag

    if path is not None:
        if policies or datasets or answer_by:
            raise ConfigError(
                f"{path} says who decides and what is asked; leave --policy, --dataset and --answer-by out"
            )
        return load_spec(path, overrides=given)
    if not policies or not datasets:
        raise ConfigError("name what to evaluate: a SPEC.toml, or at least one --policy and one --dataset")
    entries: list[dict[str, Any]] = [dict(policy_flag(text)) for text in policies]
    for entry in entries:
        if answer_by is not None and _has_answer_by(entry["name"]):
            entry["answer_by"] = answer_by
    data = {"policies": entries, "datasets": [dataset_flag(text) for text in datasets]}
    return make_spec(data, "flags", overrides=given)


def _has_answer_by(name: str) -> bool:
    from antiphon.registry import default_registry

    return "answer_by" in inspect.signature(default_registry().factory("policy", name)).parameters


def _directory(spec: Spec, path: Path | None, out: Path | None) -> Path:
    if out is not None:
        return out
    if spec.evaluate.out is not None:
        return Path(spec.evaluate.out)
    if path is None:
        raise ConfigError("say where the run is to be kept: --out DIR")
    return Path(RUNS) / path.stem


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in _names(text)]
    except ValueError:
        raise ConfigError(f"--seeds {text}: give whole numbers, like 0,1,2") from None


def _command(context: click.Context) -> str:
    """The command line, without this machine's folders."""
    skipped = {"out", "data", "config_file", "as_json"}
    words = ["antiphon evaluate"]
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name in skipped or value in (None, (), False):
            continue
        flag = max(parameter.opts, key=len)
        if isinstance(parameter, click.Argument):
            words.append(Path(value).name)
        elif value is True:
            words.append(flag)
        else:
            words += [f"{flag} {each}" for each in (value if isinstance(value, tuple) else (value,))]
    return " ".join(words)


# ---- while it runs ------------------------------------------------------------------------------------------------


def _ahead(evaluation: Evaluation, max_cost: float | None) -> str:
    """What is to be done and what it may cost, before anything is spent."""
    left = evaluation.total - evaluation.done
    done = f" ({evaluation.done} of {evaluation.total} are done)" if evaluation.done else ""
    cap = "" if max_cost is None else f"; at most {usd(max_cost)} is spent"
    most = f"up to about {usd(evaluation.most_usd)} for members" if evaluation.most_usd else "members are free"
    unknown = evaluation.unpriced
    if unknown:
        most += f", without what nobody has a price of ({', '.join(unknown)})"
    return f"{plural(left, 'rollout')} to run{done}, in {evaluation.directory}: {most}{cap}"


@contextmanager
def _progress(evaluation: Evaluation) -> Iterator[Callable[[Progress], None]]:
    with bar(evaluation.total, evaluation.done) as update:

        def show(progress: Progress) -> None:
            update(progress.done, lambda: _money(progress))

        yield show


def _money(progress: Progress) -> str:
    to_come = "" if progress.to_come_usd is None else f", about {usd(progress.to_come_usd)} to come"
    return f"{usd(progress.spent_usd)} spent{to_come}"


def _report(directory: Path) -> None:
    """Tables, figures and the page; without what draws figures, the rest."""
    from antiphon.evaluate import report

    try:
        report.write(directory)
    except MissingExtra as error:
        warn(str(error))


# ---- what is shown ------------------------------------------------------------------------------------------------


def _show(summary: dict[str, Any]) -> None:
    metrics = summary["spec"]["evaluate"]["metrics"]
    rows = []
    for cell in summary["cells"]:
        start = (cell["policy"], cell["pool"], cell["dataset"], str(cell["rows"]))
        if cell["status"] != "run":
            rows.append((*start, *("not run" for _ in metrics), "", "", ""))
            continue
        scores = [_mean(cell["metrics"][name]) for name in metrics]
        money = cell["members_usd"]["mean"] + cell["policy_usd"]["mean"]
        rows.append((*start, *scores, f"{cell['raw_cost']['mean']:.1f}", usd(money), f"{cell['calls']['mean']:.2f}"))
    table(("policy", "pool", "data set", "n", *metrics, "raw cost", "USD", "calls"), rows)
    for cell in summary["cells"]:
        if cell["note"]:
            note(f"{cell['policy']} on {cell['dataset']}: {shorten(cell['note'], 300)}")


def _show_totals(found: dict[str, Any]) -> None:
    rows = []
    for total in found["totals"]:
        for what in (found["metric"], "raw_cost", "cost_usd"):
            one = total[what]
            write = usd if what == "cost_usd" else _number
            change = (
                f"{_signed(one['difference'], write)} ({_signed(one['low'], write)} to {_signed(one['high'], write)})"
            )
            who = " ".join(word for word in (total["policy"], total["dataset"]) if word)
            rows.append((who, str(total["n"]), what, write(one["before"]), write(one["after"]), change, _p(one["p"])))
    table(("", "n", "", "before", "after", "difference (95 %)", "p"), rows)


def _change(change: dict[str, Any], metric: str) -> tuple[str, ...]:
    before, after = change["before"], change["after"]
    who = f"{change['policy']} {change['dataset']}".strip()
    return (
        who,
        f"{change['task_id']} {shorten(change['question'], 60)}",
        f"{_number(before['metrics'][metric])} -> {_number(after['metrics'][metric])}",
        f"{_number(before['raw_cost'])} -> {_number(after['raw_cost'])}",
        shorten(before["answer"] or "(none)", 60),
        shorten(after["answer"] or "(none)", 60),
    )


def _mean(value: dict[str, Any]) -> str:
    return f"{value['mean']:.3f} ({value['low']:.3f} to {value['high']:.3f})"


def _number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _signed(value: float, write: Callable[[float], str]) -> str:
    return f"-{write(-value)}" if value < 0 else f"+{write(value)}"
