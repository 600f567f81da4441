"""How tables are written: Markdown and LaTeX, in which no name is markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from antiphon.evaluate.report.tables import NOT_RUN, Cell, Column, Row, Table


def markdown(table: Table) -> str:
    """GitHub's Markdown: a heading, the caption, the table, its notes."""
    lines = [f"## {_md(table.title)}", "", _md(table.caption), ""]
    lines.append(f"| {' | '.join([_md(table.first), *(_md(column.flat) for column in table.head)])} |")
    lines.append(f"| --- |{' ---: |' * len(table.head)}")
    for row in table.rows:
        lines.append(f"| {' | '.join([_md_label(row), *(_md_cell(cell) for cell in row.cells)])} |")
    lines += ["", *(f"- {_md(note)}" for note in table.notes)] if table.notes else []
    return "\n".join(lines) + "\n"


def latex(table: Table, number: int = 1) -> str:
    """A `table` environment for `booktabs`, its label `tab:NAME-NUMBER`; `\\under` is as `files` defines it."""
    head = [_tex(table.first), *(_tex(column.text) for column in table.head)]
    spans = list(groups(table.head))
    lines = [
        r"\begin{table}[t]",
        r"\centering\small",
        rf"\caption{{{_tex(table.caption)}}}",
        rf"\label{{tab:{table.name.replace('_', '-')}-{number}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.head)}}}",
        r"\toprule",
    ]
    if any(group for group, _ in spans):
        lines.append("".join(rf" & \multicolumn{{{span}}}{{c}}{{{_tex(group)}}}" for group, span in spans) + r" \\")
        column = 2
        for group, span in spans:
            lines += [rf"\cmidrule(lr){{{column}-{column + span - 1}}}"] if group else []
            column += span
    lines += [" & ".join(head) + r" \\", r"\midrule"]
    for before, row in zip([None, *table.rows], table.rows, strict=False):
        lines += [r"\midrule"] if row.line == "oracle" and before and before.line != "oracle" else []
        label = rf"\emph{{{_tex(row.label)}}}" if row.line == "oracle" else _tex(row.label)
        label = f"{{}}{label}" if label[:1] in ("[", "*") else label  # after a line's end, these are its options
        lines.append(" & ".join([label, *(_tex_cell(cell) for cell in row.cells)]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\footnotesize {_tex(note)}" for note in table.notes]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def files(made: Iterable[Table]) -> dict[str, str]:
    """File name to text: `NAME.md` and `NAME.tex` for the tables of each name."""
    by_name: dict[str, list[Table]] = {}
    for table in made:
        by_name.setdefault(table.name, []).append(table)
    written = {}
    for name, same in by_name.items():
        written[f"{name}.md"] = "\n".join(markdown(table) for table in same)
        written[f"{name}.tex"] = _TEX_HEAD + "\n".join(
            latex(table, number) for number, table in enumerate(same, start=1)
        )
    return written


def groups(head: tuple[Column, ...]) -> Iterator[tuple[str, int]]:
    """Neighbouring columns of one group, and how many they are."""
    start = 0
    for index in range(1, len(head) + 1):
        if index == len(head) or head[index].group != head[start].group:
            yield head[start].group, index - start
            start = index


def _md_label(row: Row) -> str:
    label = _md(row.label)
    return f"*{label}*" if row.line == "oracle" else f"{label} (baseline)" if row.line == "baseline" else label


def _md_cell(cell: Cell) -> str:
    text = f"*{NOT_RUN}*" if cell.text == NOT_RUN else _md(cell.text)
    text = f"**{text}**" if cell.best else text
    text += f"<sup>{_md(cell.mark)}</sup>" if cell.mark else ""
    return f"{text} <sub>{_md(cell.small)}</sub>" if cell.small else text


def _md(text: str) -> str:
    """One line in which nothing is markup."""
    return re.sub(r"([\\`*_{}\[\]<>|~$#&])", r"\\\1", " ".join(text.split()))


def _tex_cell(cell: Cell) -> str:
    text = r"\emph{not run}" if cell.text == NOT_RUN else _tex(cell.text)
    text = rf"\textbf{{{text}}}" if cell.best else text
    text += rf"\textsuperscript{{{_tex(cell.mark)}}}" if cell.mark else ""
    return rf"\under{{{text}}}{{{_tex(cell.small)}}}" if cell.small else text


_TEX_HEAD = r"""% needs \usepackage{booktabs}
\providecommand{\under}[2]{\begin{tabular}[t]{@{}r@{}}#1\\[-0.4ex]{\tiny #2}\end{tabular}}
"""

_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "α": r"$\alpha$",
    "−": r"$-$",
    "×": r"$\times$",
    "–": "--",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def _tex(text: str) -> str:
    """One line in which nothing is a command."""
    return "".join(_TEX.get(character, character) for character in " ".join(text.split()))
