"""Every policy, metric and data set that comes built in stands in its page of the reference, with its options."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from antiphon.registry import Registry, default_registry

REFERENCE = Path(__file__).parents[2] / "docs/reference"
PAGES = {"policy": "policies.md", "metric": "metrics.md", "dataset": "datasets.md"}
BUILT_IN = Registry.load([])
OFFERS = [(kind, name) for kind in PAGES for name in BUILT_IN.names(kind)]
GIVEN_BY_THE_KERNEL = {"grammar"}


@pytest.mark.parametrize(("kind", "name"), OFFERS)
def test_it_is_documented_with_its_options(kind: str, name: str) -> None:
    page = (REFERENCE / PAGES[kind]).read_text("utf-8")
    assert f"`{name}`" in page
    for option in inspect.signature(BUILT_IN.factory(kind, name)).parameters:
        assert option in GIVEN_BY_THE_KERNEL or f"`{option}`" in page or f"`{option} =" in page, option


def test_every_policy_that_chooses_one_member_says_who_answers() -> None:
    page = (REFERENCE / "policies.md").read_text("utf-8")
    [sentence] = re.findall(r"^(`single`.*) choose one member", page, re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", sentence))
    able = {
        name
        for name in BUILT_IN.names("policy")
        if "answer_by" in inspect.signature(BUILT_IN.factory("policy", name)).parameters
    }
    assert named == able


@pytest.mark.parametrize("page", ["datasets.md", "metrics.md"])
def test_the_code_shown_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    [code] = re.findall(r"```python\n(.*?)```", (REFERENCE / page).read_text("utf-8"), re.DOTALL)
    namespace: dict[str, object] = {}
    exec(compile(code, page, "exec"), namespace)
    if page == "datasets.md":
        assert re.search(r"\?.* \('\d+',\)", capsys.readouterr().out)
    else:
        assert namespace["Prefix"]()("Paris, France", ["paris"]) == 1  # type: ignore[operator]


def test_the_retriever_shown_is_a_pool(tmp_path: Path) -> None:
    from antiphon.catalogue import Catalogue
    from antiphon.config import load_config

    [_, toml] = re.findall(r"```toml\n(.*?)```", (REFERENCE / "policies.md").read_text("utf-8"), re.DOTALL)
    file = tmp_path / "antiphon.toml"
    file.write_text(toml, "utf-8")
    [member] = Catalogue.of(default_registry(), load_config(file)).pool("search")
    assert (member.name, member.endpoints[0].adapter) == ("Wikipedia", "bm25")
