"""The reference of adapters says what the code has: every adapter, every option, and examples that load."""

import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from antiphon.descriptor import Descriptor
from antiphon.tables import PoolConfig
from antiphon_pools.adapters._options import Options
from antiphon_pools.plugin import antiphon_adapters

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "adapters.md").read_text(encoding="utf-8")


def section(name: str) -> str:
    return PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("name", antiphon_adapters())
def test_each_option_is_documented_and_no_other(name: str) -> None:
    module = import_module(antiphon_adapters()[name].partition(":")[0])
    kinds = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, Options)]
    known = {field for kind in kinds for field in kind.model_fields}
    table = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", section(name), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(table))) == known


@pytest.mark.parametrize("block", re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
def test_each_example_loads(block: str) -> None:
    data = tomllib.loads(block)
    made = [Descriptor.of(member) for member in data.get("members", ())]
    made += [PoolConfig.model_validate(pool) for pool in data.get("pools", {}).values()]
    assert made
    for each in made:
        if isinstance(each, Descriptor):
            assert {endpoint.adapter for endpoint in each.endpoints} <= set(antiphon_adapters())
