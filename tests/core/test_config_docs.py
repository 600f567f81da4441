"""Every TOML block of the pages on configuration loads, and the reference names every field there is."""

import re
from ast import literal_eval
from pathlib import Path
from typing import Any

import pytest

from antiphon.catalogue import Catalogue
from antiphon.config import _VARIABLES, Config, load_config
from antiphon.descriptor import Descriptor, Endpoint, Latency, Price
from antiphon.registry import Registry
from antiphon.tables import Fetch, LimitsConfig, ModelConfig, PoolConfig, RetryConfig

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "docs/reference/configuration.md",
    *(ROOT / f"docs/how-to/{page}.md" for page in ("nim", "together", "vllm", "ollama")),
]
TEMPLATE = ROOT / "pools/antiphon_pools/templates/antiphon.toml"
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{index}")
    for page in PAGES
    for index, block in enumerate(re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
]


def catalogue_of(text: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Catalogue:
    for name in ("ANTIPHON_CONFIG", "ANTIPHON_POOL", "ANTIPHON_DATA", "ANTIPHON_MAX_COST"):
        monkeypatch.delenv(name, raising=False)
    file = directory / "antiphon.toml"
    file.write_text(text, encoding="utf-8")
    return Catalogue.of(Registry.load(only=()), load_config(file))


@pytest.mark.parametrize("block", [*BLOCKS, pytest.param(TEMPLATE.read_text(encoding="utf-8"), id="template")])
def test_a_file_shown_loads_and_its_pools_can_be_made(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue = catalogue_of(block, tmp_path, monkeypatch)
    own = set(catalogue.config.pools) - set(load_config(overrides={}).pools)
    for name in own:
        for member in catalogue.pool(name):
            assert member.price is not None
    assert own or catalogue.config.members


def test_each_page_shows_a_file() -> None:
    assert len(BLOCKS) >= len(PAGES)


def test_the_template_is_nobody_until_it_is_copied() -> None:
    named = set(re.findall(r'^\[members\."([^"]+)"\]', TEMPLATE.read_text(encoding="utf-8"), re.MULTILINE))
    assert len(named) == 3
    brought = {found.descriptor.name for found in Registry.load(only=()).descriptors}
    assert not named & brought


@pytest.mark.parametrize("model", [Config, LimitsConfig, RetryConfig, ModelConfig, PoolConfig, Fetch])
def test_the_reference_shows_every_key_of_the_configuration(model: Any) -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8")
    for key in model.model_fields:
        assert re.search(rf"^(\[+{key}[.\]]|\[models\.small\.{key}\]|{key} = )", page, re.MULTILINE), key


def test_the_reference_names_every_variable() -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8")
    for variable in (*_VARIABLES, "ANTIPHON_CONFIG", "ANTIPHON_HOME"):
        assert f"`{variable}`" in page


@pytest.mark.parametrize("model", [Descriptor, Endpoint, Price, Latency])
def test_the_reference_names_every_field_of_a_descriptor(model: Any) -> None:
    page = (ROOT / "docs/reference/descriptor.md").read_text(encoding="utf-8")
    for key in model.model_fields:
        assert f"`{key}`" in page, key


def test_the_shortest_descriptor_of_the_reference_is_valid() -> None:
    page = (ROOT / "docs/reference/descriptor.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert block is not None
    assert Descriptor.of(literal_eval(block[1])).name == "Ada-7B"
