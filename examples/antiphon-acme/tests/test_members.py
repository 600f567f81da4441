"""The members hold, by Antiphon's own judgement."""

from pathlib import Path

from antiphon.testing import check_plugin


def test_the_plugin_has_no_faults() -> None:
    assert check_plugin(Path(__file__).parents[1]) == []
