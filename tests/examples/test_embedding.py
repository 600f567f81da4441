"""The embedding example runs as a program, and so does every block of the how-to."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/how-to/embed.md").read_text(encoding="utf-8"), re.M | re.S)
PRINTS = [r"Paris answer 0\.0", r"\[\('Mine', 0\.05\)\]", "Lima", ""]


def run(*arguments: str, cwd: Path) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, check=False, cwd=cwd, env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_runs_offline_and_says_what_it_did(tmp_path: Path) -> None:
    lines = run(str(ROOT / "examples" / "embedding.py"), cwd=tmp_path).splitlines()
    assert lines[0].startswith("Paris | asked ['Atlas', 'Oracle'] | $0.0000")
    assert lines[1] == "['Paris', 'Lima', 'Tokyo']"
    assert lines[2:4] == ["route_started What is the capital of Peru?", "route_finished Lima"]
    assert lines[-2:] == ["answer It is Lima, they say.", "done "]


@pytest.mark.parametrize(("block", "prints"), list(zip(BLOCKS, PRINTS, strict=True)))
def test_a_block_of_the_how_to_does_what_it_says(block: str, prints: str, tmp_path: Path) -> None:
    assert re.fullmatch(prints, run("-c", block, cwd=tmp_path).strip())
