"""The page holds a whole run in one file, fetches nothing, runs nothing that a run says, and stays small."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import ConfigError
from antiphon.evaluate.report import _questions, write

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
VOID = {"meta", "input", "br", "img", "link", "hr"}
MakeRun = Callable[..., Path]


class Outline(HTMLParser):
    """Tags in order; fails on one that is closed and was not open."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag


def page_of(directory: Path, **options: Any) -> str:
    write(directory, **options)
    return (directory / "report.html").read_text("utf-8")


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_what_is_written_and_that_it_is_the_same_twice(make_run: MakeRun) -> None:
    directory = make_run()
    paths = write(directory)
    names = [str(path.relative_to(directory)) for path in paths]
    assert {"tables/em.md", "tables/em.tex", "tables/cost.md", "tables/f1.tex", "tables/paired.md"} <= set(names)
    assert {"figures/frontier.svg", "figures/members.svg"} <= set(names)
    assert names[-1] == "report.html"
    first = {path: path.read_bytes() for path in paths}
    assert write(directory) == paths
    assert {path: path.read_bytes() for path in paths} == first
    assert not list(directory.rglob(".*"))


def test_the_page_is_whole_and_fetches_nothing(make_run: MakeRun) -> None:
    outline = Outline(page_of(make_run()))
    assert outline.open == []
    ids = [attrs["id"] for _, attrs in outline.tags if attrs.get("id")]
    assert len(ids) == len(set(ids))
    for tag, attrs in outline.tags:
        assert tag not in ("link", "img", "iframe", "object", "base", "form")
        assert not attrs.get("src")
        assert not any(name.startswith("on") for name in attrs)
        for name in ("href", "xlink:href"):
            assert (attrs.get(name) or "#").startswith("#")
            assert (attrs.get(name) or "#x")[1:] in ids or not attrs.get(name)
    links = {(attrs.get("aria-labelledby") or "").split(" ")[0] for tag, attrs in outline.tags if tag == "svg"}
    assert links <= set(ids)
    assert len(links) > 2


def test_only_the_one_script_of_ours_may_run(make_run: MakeRun) -> None:
    page = page_of(make_run())
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page


def test_tables_have_heads_and_each_number_leads_to_its_questions(make_run: MakeRun) -> None:
    page = page_of(make_run())
    outline, data = Outline(page), data_of(page)
    assert any(tag == "th" and attrs.get("scope") == "row" for tag, attrs in outline.tags)
    buttons = [attrs for tag, attrs in outline.tags if tag == "button" and "data-cell" in attrs]
    assert {int(str(attrs["data-cell"])) for attrs in buttons} == set(range(len(data["cells"])))
    label = next(str(attrs["aria-label"]) for attrs in buttons if attrs["data-cell"] == "2")
    assert label.startswith("largest, nq: ")
    cell = data["cells"][2]
    assert cell["title"] == "largest on nq, pool paper"
    assert cell["left"] == "All 12. They lie in trajectories/0001.jsonl (lines 25 to 36)."
    question = cell["questions"][0]
    assert question["verdict"] == "right"
    assert [step["kind"] for step in question["did"]["steps"]] == ["policy", "member", "policy"]
    member = question["did"]["steps"][1]
    assert (member["member"], member["round"]) == ("large-70b", 1)
    assert member["reply"].startswith(f"I say {question['answer']}")
    assert member["usd"] > 0


def test_the_page_says_command_reduction_and_what_is_amiss(make_run: MakeRun) -> None:
    page = page_of(make_run(note="stopped <early>", reduction="the last span & nothing else"))
    assert "<pre>antiphon evaluate run.toml --out run</pre>" in page
    assert "stopped &lt;early&gt;" in page
    assert "the last span &amp; nothing else" in page
    assert "Money audit" in page


def test_what_was_not_run_says_so_and_leads_nowhere(make_run: MakeRun) -> None:
    directory = make_run(skip=[("largest", "hotpotqa")])
    page = page_of(directory)
    assert '<td class="none"><span>not run</span><sup>a</sup></td>' in page
    assert "*not run*<sup>a</sup>" in (directory / "tables" / "em.md").read_text("utf-8")
    assert "\\emph{not run}" in (directory / "tables" / "em.tex").read_text("utf-8")
    assert len(data_of(page)["cells"]) == 5


def test_a_sample_holds_right_and_wrong_alike_and_the_same_questions_for_all(make_run: MakeRun) -> None:
    cells = data_of(page_of(make_run(n=60), per_cell=10))["cells"]
    for cell in cells:
        assert len(cell["questions"]) == 10
        assert cell["left"].startswith("10 of 60 are in this page")
        assert sum(cell["counts"].values()) == 60
        verdicts = [question["verdict"] for question in cell["questions"]]
        assert verdicts.count("right") == 5
    shared = {q["id"] for q in cells[2]["questions"]} & {q["id"] for q in cells[4]["questions"]}
    assert len(shared) >= 3  # 10 of 60 by chance: 1.7


def test_the_page_is_bounded_however_long_texts_are(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_run()
    lines = (directory / "trajectories" / "0001.jsonl").read_text("utf-8")
    (directory / "trajectories" / "0001.jsonl").write_text(
        lines.replace("I say", "I say " + "again " * 20_000), "utf-8"
    )
    page = page_of(directory)
    assert len(page) < 1_500_000
    assert "more characters]" in page
    monkeypatch.setattr(_questions, "MOST_IN_ALL", 12)
    assert [len(cell["questions"]) for cell in data_of(page_of(directory))["cells"]] == [2] * 6


def test_trajectories_that_are_not_there_are_said_to_be_missing(make_run: MakeRun) -> None:
    directory = make_run()
    shutil.rmtree(directory / "trajectories")
    assert {q["did"] for cell in data_of(page_of(directory))["cells"] for q in cell["questions"]} == {None}


def test_without_matplotlib_the_rest_is_written_and_says_so(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    directory = make_run()
    assert not [path for path in write(directory) if path.suffix == ".svg"]
    page = (directory / "report.html").read_text("utf-8")
    assert "There are no figures" in page
    assert "antiphon[evaluate]" in page
    assert Outline(page).open == []


def swap(directory: Path, name: str, old: str, new: str) -> None:
    path = directory / name
    path.write_text(path.read_text("utf-8").replace(old, new, 1), "utf-8")


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("summary.json", "{", "", "summary.json is not JSON"),
        ("summary.json", '"cells"', '"sells"', "not a summary of an evaluation"),
        ("rows.jsonl", '"question"', '"quest"', "rows.jsonl, line 1"),
        ("rows.jsonl", "trajectories/0001.jsonl", "../../secret", "lies outside"),
        ("trajectories/0001.jsonl", '"trajectory"', '"tr"', "line 1 is not a trajectory"),
        ("trajectories/0001.jsonl", '"id":"nq-0"', '"id":"nq-1"', "about question 'nq-1', not 'nq-0'"),
    ],
)
def test_a_damaged_run_is_one_clear_error(make_run: MakeRun, name: str, old: str, new: str, said: str) -> None:
    directory = make_run()
    swap(directory, name, old, new)
    with pytest.raises(ConfigError, match=re.escape(said)):
        write(directory)
    assert not (directory / "report.html").exists()


def test_a_directory_without_a_run_says_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"summary\.json is not there; `antiphon evaluate"):
        write(tmp_path)


def browse(page: Path, address: str, home: Path) -> str:
    """The page as a browser has it once its script has run."""
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={home}", "--virtual-time-budget=4000"]
    command = [CHROMIUM, *flags, "--dump-dom", f"{page.as_uri()}{address}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_in_a_browser_a_reply_is_text_whatever_it_says(make_run: MakeRun, tmp_path: Path) -> None:
    directory = make_run()
    cells = data_of(page_of(directory))["cells"]
    place = next(i for i, question in enumerate(cells[4]["questions"]) if question["id"] == "nq-0")
    seen = browse(directory / "report.html", f"#q=4.{place}", tmp_path / "home")
    assert "<title>Evaluation: 3 policies on nq, hotpotqa</title>" in seen  # the reply would have changed it
    assert "<img" not in seen
    dialog = seen[seen.index("<dialog") : seen.index("</dialog>")]
    assert "reading" in dialog
    assert dialog.count('class="step member"') == 1
    assert "&lt;/script&gt;&lt;script&gt;document.title='owned'" in dialog
    assert dialog.count("<li>") == 12


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_in_a_browser_an_address_of_nothing_opens_nothing(make_run: MakeRun, tmp_path: Path) -> None:
    directory = make_run()
    write(directory)
    seen = browse(directory / "report.html", "#q=99.1", tmp_path / "home")
    assert 'open=""' not in seen[seen.index("<dialog") : seen.index("</dialog>")]
