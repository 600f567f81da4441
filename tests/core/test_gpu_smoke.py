"""The GPU smoke says in one JSON object what it could not run, and asks verl for what a training file may ask."""

from __future__ import annotations

import importlib.util
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "benchmarks/engines/smoke.py"


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed: it would run")
def test_what_is_not_installed_is_said_and_is_no_success() -> None:
    script = ROOT / "benchmarks/gpu_smoke.sh"
    done = subprocess.run(
        ["bash", str(script), "/no/wheels"],
        capture_output=True,
        text=True,
        timeout=300,
        env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable},
    )
    said = json.loads(done.stdout)
    assert done.returncode == 1
    assert said["benchmark"] == "gpu_smoke"
    for part in ("contract", "rollouts", "verl"):
        assert said[part]["status"] == "not run"
        assert "vllm" in said[part]["why"]


def test_its_training_file_is_one(tmp_path: Path) -> None:
    from antiphon.train.spec import load_spec

    file = tmp_path / "smoke.toml"
    file.write_text(runpy.run_path(str(SMOKE))["SPEC"].format(model='"smol"'))
    spec = load_spec(file)
    assert (spec.train.engine, spec.train.steps, spec.model.base) == ("verl", 2, "smol")
