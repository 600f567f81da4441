"""The frame of a report's page: one file, in which nothing comes from elsewhere and nothing of a run is markup."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from antiphon.report.svg import Figure, inline
from antiphon.types import clean

Section = tuple[str, str, str]
"""Its anchor, its title, its HTML."""


def document(
    title: str, about: str, sections: Sequence[Section], *, style: str = "", script: str = "", after: str = ""
) -> str:
    """A whole page; sections without HTML are left out.

    Args:
        about, after: HTML below the title, and after the footer.
        style: CSS beside what all reports have.
        script: the one script that the page may run.
    """
    sections = [section for section in sections if section[2]]
    links = "".join(f'<li><a href="#{name}">{heading}</a></li>' for name, heading, _ in sections)
    css = (files("antiphon.report") / "page.css").read_text("utf-8") + style
    return "".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{_allowed(script)}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f"<title>{escaped(title)}</title>\n<style>\n{css}</style>\n</head>\n<body>\n",
            f"<header>\n<h1>{escaped(title)}</h1>\n{about}",
            f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n</header>\n<main>\n',
            "".join(
                f'<section id="{name}">\n<h2>{heading}</h2>\n{body}</section>\n' for name, heading, body in sections
            ),
            "</main>\n<footer>Made by Antiphon. This page is one file and needs no network.</footer>\n",
            after,
            f"<script>{script}</script>\n" if script else "",
            "</body>\n</html>\n",
        ]
    )


def figure(one: Figure) -> str:
    """A figure with its caption, wide ones scrolling by themselves."""
    return (
        f'<figure>\n<div class="wide" role="region" tabindex="0" aria-label="{escaped(one.title)}">\n'
        f"{inline(one.svg)}</div>\n"
        f"<figcaption>{escaped(one.title)}. {escaped(one.caption)}</figcaption>\n</figure>\n"
    )


def escaped(given: Any) -> str:
    """Anything as text of the page, never markup."""
    return escape(str(given), quote=True)


def write(path: Path, content: str) -> Path:
    """All of a file or nothing: a reader, or a kill, never meets half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.half")
    half.write_text(clean(content), "utf-8", newline="\n")
    os.replace(half, path)
    return path


def _allowed(script: str) -> str:
    """What the page may do: run the one script that is ours, and fetch nothing."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    runs = f"'sha256-{digest}'" if script else "'none'"
    allowed = f"default-src 'none'; style-src 'unsafe-inline'; script-src {runs}"
    return f"{allowed}; base-uri 'none'; form-action 'none'"
