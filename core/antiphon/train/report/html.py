"""The page about training runs: in short, curves, rollouts by step, card and spec."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from itertools import islice
from typing import Any

from antiphon.report.page import document, escaped, figure
from antiphon.report.svg import Figure
from antiphon.train.card import described
from antiphon.train.progress import duration
from antiphon.train.report._runs import MOST_AVERAGED, Run
from antiphon.types import Call, Trajectory

MOST_STEPS = 24
"""Steps of a run whose rollouts are in the page: evenly spread, the first and the last among them."""

MOST_ROLLOUTS = 8
"""Rollouts of a step in the page."""

LONGEST = 2000
"""Characters of one span or reply in the page."""

STYLE = """
.stream { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .86rem; background: var(--raised);
  padding: .6rem .8rem; border-radius: 6px; margin: .4rem 0; }
.stream .policy { background: var(--mark); border-bottom: 2px solid var(--link); }
.stream .information { color: var(--right); border-bottom: 2px solid var(--right); }
.stream .prompt { color: var(--muted); }
.key span { padding: 0 .3rem; margin-right: .8rem; }
details.step { border-bottom: 1px solid var(--line); padding-bottom: .4rem; border-left: 0; border-radius: 0; }
details details { margin: .4rem 0 .4rem 1.1rem; }
.step, .step > summary { border: 0; }
"""

_COLUMNS = (
    ("reward", "reward"),
    ("em", "EM"),
    ("val_em", "validation EM"),
    ("format_ok", "well-formed"),
    ("cost", "raw cost"),
    ("calls", "calls"),
    ("entropy", "entropy"),
    ("kl", "KL"),
)


def html(runs: Sequence[Run], figures: Sequence[Figure] | str) -> str:
    """The page; nothing that a run says is markup.

    Args:
        figures: or why there are none.
    """
    title = f"Training: {', '.join(run.name for run in runs)}"
    if isinstance(figures, str):
        curves = f'<p class="warning">There are no curves: {escaped(figures)}</p>\n'
    else:
        curves = "".join(map(figure, figures))
    sections = [
        ("short", "In short", _short(runs)),
        ("curves", "Curves", curves),
        ("rollouts", "Rollouts", "".join(_rollouts(run, named=len(runs) > 1) for run in runs)),
        ("card", "Card", "".join(_card(run) for run in runs)),
        ("spec", "What was run", "".join(_spec(run) for run in runs)),
    ]
    return document(title, _about(runs), sections, style=STYLE)


def _about(runs: Sequence[Run]) -> str:
    facts = []
    for run in runs:
        of = f" of {run.planned}" if run.planned is not None else ""
        facts.append(f"{run.name}: {run.steps}{of} steps, {duration(run.hours * 3600)}")
    collapsed = "".join(
        f'<p class="warning">{escaped(run.name)} stopped itself: {escaped(run.collapsed)}</p>\n'
        for run in runs
        if run.collapsed
    )
    return f'<p class="about">{escaped(" · ".join(facts))}</p>\n{collapsed}'


def _short(runs: Sequence[Run]) -> str:
    """Where each run began and where it is: a row each, and their mean."""
    columns = [(key, label) for key, label in _COLUMNS if any(run.series(key) for run in runs)]
    summaries = [run.summary()["metrics"] for run in runs]
    head = "".join(f'<th scope="col">{escaped(label)}</th>' for _, label in columns)
    rows = [
        _row(run.name, [_change(one.get(key)) for key, _ in columns]) for run, one in zip(runs, summaries, strict=True)
    ]
    if len(runs) > 1:
        rows.append(_row("mean of the runs", [_mean_change(summaries, key) for key, _ in columns]))
    return (
        f'<p class="caption">From the start to the end of each run: means over the first and the last fifth of its '
        f"values, {MOST_AVERAGED} at most. Validation is greedy.</p>\n"
        '<div class="wide" role="region" tabindex="0" aria-label="In short">\n<table>\n'
        f'<thead>\n<tr><th scope="col">run</th>{head}</tr>\n</thead>\n<tbody>\n{"".join(rows)}</tbody>\n'
        "</table>\n</div>\n"
    )


def _row(name: str, cells: Sequence[str]) -> str:
    return f'<tr><th scope="row">{escaped(name)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>\n'


def _change(metric: dict[str, float] | None) -> str:
    return "–" if metric is None else f"{metric['start']:.3g} → {metric['end']:.3g}"


def _mean_change(summaries: Sequence[dict[str, Any]], key: str) -> str:
    found = [one[key] for one in summaries if key in one]
    if not found:
        return "–"
    return _change({end: sum(one[end] for one in found) / len(found) for end in ("start", "end")})


# ---- rollouts -------------------------------------------------------------------------------------------------------


def _rollouts(run: Run, *, named: bool) -> str:
    steps = _spread(list(run.files), MOST_STEPS)
    if not steps:
        return ""
    title = f"<h3>{escaped(run.name)}</h3>\n" if named else ""
    left_out = f" {len(steps)} of {len(run.files)} steps are in this page." if len(steps) < len(run.files) else ""
    key = (
        f'<p class="about key stream"><span class="policy">what the policy wrote</span>'
        f'<span class="information">what it was told</span> At most {MOST_ROLLOUTS} rollouts a step; all kept ones lie '
        f"in rollouts/ of the run.{left_out}</p>\n"
    )
    return title + key + "".join(_step(run, step) for step in steps)


def _step(run: Run, step: int) -> str:
    row = run.rows.get(step, {})
    facts = [f"{label} {row[name]:.3g}" for name, label in _COLUMNS if name in row]
    shown = "".join(map(_rollout, islice(run.trajectories(step), MOST_ROLLOUTS)))
    return f'<details class="step"><summary>Step {step}: {escaped(", ".join(facts))}</summary>\n{shown}</details>\n'


def _rollout(t: Trajectory) -> str:
    answer = "no answer" if t.answer is None else f"→ {_cut(t.answer)}"
    asked = ", ".join(call.member for call in t.calls) or "nobody"
    head = f"{_cut(t.task.question)} {answer} ({t.stop}; asked {asked})"
    facts = [f"right answers: {' | '.join(t.task.golden_answers)}"] if t.task.golden_answers else []
    facts += [f"format: {', '.join(t.format_problems)}"] if t.format_problems else []
    facts += [f"error: {t.error}"] if t.error else []
    about = f'<p class="about">{escaped(_cut("; ".join(facts)))}</p>\n' if facts else ""
    calls = "".join(f"<li>{escaped(_call(call))}</li>" for call in t.calls)
    listed = f'<ul class="notes">{calls}</ul>\n' if calls else ""
    return f"<details><summary>{escaped(head)}</summary>\n{about}{''.join(_streams(t))}{listed}</details>\n"


def _streams(t: Trajectory) -> Iterator[str]:
    """Each context: its prompt folded away, then the spans in order, each coloured by its kind."""
    for context in t.contexts:
        prompt = "".join(segment.text for segment in context if segment.kind == "prompt")
        spans = "".join(
            f'<span class="{segment.kind}">{escaped(_cut(segment.text))}</span>'
            for segment in context
            if segment.kind != "prompt"
        )
        yield f'<details><summary>prompt</summary><div class="stream prompt">{escaped(_cut(prompt))}</div></details>\n'
        yield f'<div class="stream">{spans}</div>\n'


def _call(call: Call) -> str:
    usage = f", {call.usage.output_tokens} tokens" if call.usage is not None else ""
    said = "" if call.ok else f": {call.error or 'no reason given'}"
    return _cut(f"{call.member} ({call.outcome}{said}{usage}, ${call.cost_usd:.3g}, {call.latency_s:.2f} s)")


# ---- what it was ----------------------------------------------------------------------------------------------------


def _card(run: Run) -> str:
    return "" if run.card is None else f"<pre>{escaped(described(run.card))}</pre>\n"


def _spec(run: Run) -> str:
    if not run.spec:
        return ""
    written = json.dumps(run.spec, ensure_ascii=False, indent=2)
    return f"<details><summary>{escaped(run.name)}</summary><pre>{escape(written)}</pre></details>\n"


def _spread(steps: Sequence[int], most: int) -> list[int]:
    if len(steps) <= most:
        return list(steps)
    return [steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)]


def _cut(text: str) -> str:
    left_out = len(text) - LONGEST
    return text if left_out <= 0 else f"{text[:LONGEST]}… [{left_out} more characters]"
