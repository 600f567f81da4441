"""One page that holds a whole evaluation: headline, tables, figures, audit, and the questions behind each number."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from antiphon.evaluate.report._headline import headline
from antiphon.evaluate.report._markup import groups
from antiphon.evaluate.report._questions import Question, Sample, verdict
from antiphon.evaluate.report._results import Key, Results
from antiphon.evaluate.report.tables import NOT_RUN, Cell, Row, Table
from antiphon.report.page import document, escaped, figure
from antiphon.report.svg import Figure

LONGEST = 600  # characters of a question or an answer in the page

REDUCTION = (
    "A policy's answer is judged as it is. Where a member's reply is the answer, it is reduced in the same way for all."
)


def page(
    results: Results, tables: Sequence[Table], figures: Sequence[Figure] | str, samples: Mapping[Key, Sample]
) -> str:
    """The page: nothing in it comes from elsewhere, and nothing that a run says is markup or is run.

    Args:
        figures: or why there are none.
        samples: the questions behind the cells; a cell without is not clickable.
    """
    places = {key: place for place, key in enumerate(samples)}
    drawn = [] if isinstance(figures, str) else list(figures)
    first = [figure for figure in drawn if figure.name.startswith("frontier")]
    others = [figure for figure in drawn if figure not in first]
    parts = [
        ("answer", "In short", _headline(results, tables, places) + _figures(first, figures)),
        ("tables", "Tables", "".join(_table(one, places) for one in tables if one.name not in ("headline", "audit"))),
        ("figures", "More figures", "".join(figure(one) for one in others)),
        ("audit", "Money audit", "".join(_table(one, places) for one in tables if one.name == "audit")),
        ("reply", "How a reply becomes an answer", f"<p>{escaped(results.summary.get('reduction') or REDUCTION)}</p>"),
        ("command", "The command", _command(results)),
    ]
    data = f'<script type="application/json" id="data">{_data(samples, results)}</script>\n'
    script = (files("antiphon.evaluate.report") / "page.js").read_text("utf-8")
    return document(_title(results), _about(results), parts, script=script, after=_DIALOG + data)


_DIALOG = """\
<dialog id="behind" aria-labelledby="behind-title">
<div class="top"><h2 id="behind-title"></h2><button type="button" class="close" aria-label="Close">×</button>
<p class="left"></p>
<div class="filters"><div class="filters kinds" role="group" aria-label="Which questions"></div>
<input type="search" placeholder="Search questions, answers, members" aria-label="Search questions, answers, members">
</div></div>
<div class="panes"><ul class="list" aria-label="Questions"></ul><div class="one"></div></div>
</dialog>
"""


# ---- the head of the page -------------------------------------------------------------------------------------------


def _title(results: Results) -> str:
    return f"Evaluation: {len(results.policies)} policies on {', '.join(results.datasets)}"


def _about(results: Results) -> str:
    version = (results.spec.get("versions") or {}).get("antiphon") or results.spec.get("antiphon")
    facts = [f"pool {pool}" for pool in results.pools]
    facts += [f"baseline {results.baseline}"] if results.baseline else []
    facts += [f"Antiphon {version}"] if isinstance(version, str) else []
    note = results.summary.get("note")
    warning = f'<p class="warning">{escaped(note)}</p>\n' if note else ""
    return f'<p class="about">{escaped(" · ".join(facts))}</p>\n{warning}'


def _headline(results: Results, tables: Sequence[Table], places: Mapping[Key, int]) -> str:
    shown = []
    for section, table in zip(results.sections, (t for t in tables if t.name == "headline"), strict=True):
        sentences, _ = headline(results, section)
        title = f"<h3>{escaped(section.title)}</h3>\n" if len(results.sections) > 1 else ""
        shown.append(title + "".join(f'<p class="lead">{escaped(sentence)}</p>\n' for sentence in sentences))
        shown.append(_table(table, places))
    hint = '<p class="about">Every number that is underlined opens the questions behind it.</p>\n' if places else ""
    return "".join(shown) + hint + "<noscript><p>Opening them needs JavaScript.</p></noscript>\n"


def _command(results: Results) -> str:
    command = results.summary.get("command")
    shown = f"<pre>{escaped(command)}</pre>\n" if command else ""
    spec = json.dumps(results.spec, ensure_ascii=False, indent=2, sort_keys=True)
    return f"{shown}<details><summary>What was run, in full</summary><pre>{escaped(spec)}</pre></details>\n"


# ---- tables and figures ---------------------------------------------------------------------------------------------


def _table(table: Table, places: Mapping[Key, int]) -> str:
    body = "".join(_row(table, row, places) for row in table.rows)
    notes = "".join(f"<li>{escaped(note)}</li>" for note in table.notes)
    shown = (
        f'<p class="caption">{escaped(table.caption)}</p>\n'
        f'<div class="wide" role="region" tabindex="0" aria-label="{escaped(table.title)}">\n<table>\n'
        f"<thead>\n{_head(table)}</thead>\n<tbody>\n{body}</tbody>\n</table>\n</div>\n"
        + (f'<ul class="notes">{notes}</ul>\n' if notes else "")
    )
    if table.name == "paired":
        return f"<details><summary><strong>{escaped(table.title)}</strong></summary>\n{shown}</details>\n"
    return f'<div class="block">\n<h3>{escaped(table.title)}</h3>\n{shown}</div>\n'


def _head(table: Table) -> str:
    spans = list(groups(table.head))
    if not any(group for group, _ in spans):
        columns = "".join(f'<th scope="col">{escaped(column.text)}</th>' for column in table.head)
        return f'<tr><th scope="col">{escaped(table.first)}</th>{columns}</tr>\n'
    over, start = "", 0
    for group, span in spans:
        alone = "".join(f'<th scope="col" rowspan="2">{escaped(c.text)}</th>' for c in table.head[start : start + span])
        over += f'<th scope="colgroup" colspan="{span}">{escaped(group)}</th>' if group else alone
        start += span
    under = "".join(f'<th scope="col">{escaped(column.text)}</th>' for column in table.head if column.group)
    return f'<tr><th scope="col" rowspan="2">{escaped(table.first)}</th>{over}</tr>\n<tr>{under}</tr>\n'


def _row(table: Table, row: Row, places: Mapping[Key, int]) -> str:
    tag = f' <span class="tag">{row.line}</span>' if row.line == "baseline" else ""
    cells = "".join(
        _cell(cell, row.label, column.flat, places) for cell, column in zip(row.cells, table.head, strict=True)
    )
    kind = f' class="{row.line}"' if row.line else ""
    return f'<tr{kind}><th scope="row">{escaped(row.label)}{tag}</th>{cells}</tr>\n'


def _cell(cell: Cell, row: str, column: str, places: Mapping[Key, int]) -> str:
    kinds = [kind for kind, holds in (("best", cell.best), ("none", cell.text in (NOT_RUN, "–"))) if holds]
    place = None if cell.key is None else places.get(cell.key)
    if place is None:
        text = f"<span>{escaped(cell.text)}</span>"
    else:
        label = f"{row}, {column}: {cell.text}{', the best' if cell.best else ''}. Show its questions"
        text = f'<button type="button" data-cell="{place}" aria-label="{escaped(label)}">{escaped(cell.text)}</button>'
    mark = f"<sup>{escaped(cell.mark)}</sup>" if cell.mark else ""
    small = f"<small>{escaped(cell.small)}</small>" if cell.small else ""
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    return f"<td{kind}>{text}{mark}{small}</td>"


def _figures(drawn: Sequence[Figure], given: Sequence[Figure] | str) -> str:
    if isinstance(given, str):
        return f'<p class="warning">There are no figures: {escaped(given)}</p>\n'
    if not drawn:
        return ""
    rest = "".join(figure(one) for one in drawn[1:])
    more = f"<details><summary>The same, by data set</summary>\n{rest}</details>\n" if rest else ""
    return figure(drawn[0]) + more


# ---- the questions --------------------------------------------------------------------------------------------------


def _data(samples: Mapping[Key, Sample], results: Results) -> str:
    """JSON in which nothing can end the script that it stands in."""
    cells = [_behind(key, cell, results.metric) for key, cell in samples.items()]
    text = json.dumps({"cells": cells}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _behind(key: Key, cell: Sample, metric: str) -> dict[str, Any]:
    policy, pool, dataset = key
    return {
        "title": f"{policy} on {dataset}, pool {pool}",
        "left": _left_out(cell),
        "counts": cell.counts,
        "questions": [_question(one, metric) for one in cell.questions],
    }


def _question(one: Question, metric: str) -> dict[str, Any]:
    row = one.row
    return {
        "id": row.task_id,
        "question": _cut(row.question),
        "golden": [_cut(answer) for answer in row.golden[:20]],
        "answer": None if row.answer is None else _cut(row.answer),
        "verdict": verdict(row.metrics.get(metric, 0.0)),
        "stop": row.stop,
        "metrics": row.metrics,
        "raw": row.raw_cost,
        "members": row.members_usd,
        "policy": row.policy_usd,
        "wall": row.wall_s,
        "asked": list(row.asked),
        "where": f"{row.file}, line {row.line} (question {row.task_id}, seed {row.seed})",
        "did": one.did,
    }


def _left_out(cell: Sample) -> str:
    total = sum(cell.counts.values())
    shown = len(cell.questions)
    ranges = [f"{file} (lines {first} to {last})" for file, (first, last, _) in sorted(cell.files.items())]
    where = ", ".join(ranges[:4]) + (f" and {len(ranges) - 4} more files" if len(ranges) > 4 else "")
    if shown == total:
        return f"All {total}. They lie in {where}."
    return f"{shown} of {total} are in this page, right and wrong ones alike; all {total} lie in {where}."


# ---- small things ---------------------------------------------------------------------------------------------------


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
