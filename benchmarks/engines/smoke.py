"""The parts of `benchmarks/gpu_smoke.sh`, each in a process of its own; prints one JSON object and nothing else.

A part is `ok`, `failed` or `not run`, with why; the exit status is 0 where all that ran is ok and something did.

    python benchmarks/engines/smoke.py [--model NAME] [--minutes 9.5] [--parts contract rollouts verl]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
SPEC = """
[train]
engine = "verl"
steps = 2
tasks = 4
samples = 2

[data]
dataset = "arithmetic"
options = {{ n = 8 }}

[environment]
pool = "embedded"

[model]
base = {model}
device = "cuda"
max_context = 2048

[algorithm]
algorithm = "grpo"
lr = 1e-4

[limits]
turn_tokens = 64
"""


class Failed(Exception):
    """A part that did not pass: why."""


class NotRun(Exception):
    """A part that cannot be run here: why."""


def run(command: Sequence[object], until: float) -> tuple[int, str]:
    """Run a command within what is left of the time: its exit status and what it printed; it shares our standard error.

    What is out of time is ended with all its processes: an engine left behind would hold the GPU's memory.
    """
    left = until - time.monotonic()
    if left < 5:
        raise NotRun("no time was left")
    child = subprocess.Popen(
        [sys.executable, *map(str, command)], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        printed, _ = child.communicate(timeout=left)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        raise Failed(f"it was not done after {left:.0f} s") from None
    return child.returncode, printed


def need(*packages: str) -> None:
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise NotRun(f"not installed: {', '.join(missing)}")


def need_model(name: str) -> None:
    from antiphon import models
    from antiphon.errors import ConfigError

    try:
        models.find(name)
    except ConfigError as error:
        raise NotRun(str(error)) from None


def contract(args: argparse.Namespace, until: float) -> dict[str, Any]:
    """The generators' contract suite, on vLLM in the process and behind `vllm serve`."""
    need("vllm", "pytest", "pytest_asyncio", "hypothesis")
    need_model("smollm2-135m-instruct")
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = ["-m", "pytest", "-m", "vllm", "tests/core/test_generators.py", "-q", f"--junit-xml={report}"]
        status, printed = run(command, until)
        print(printed, file=sys.stderr)
        if not report.exists():
            raise Failed(f"pytest ended with {status} and no report")
        suite = ElementTree.parse(report).getroot().find("testsuite")
    counts = (
        {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")} if suite is not None else {}
    )
    if status or not counts or counts["failures"] or counts["errors"]:
        raise Failed(f"pytest ended with {status}: {counts}")
    return counts


def rollouts(args: argparse.Namespace, until: float) -> dict[str, Any]:
    """Tokens a second of rollouts, beside vLLM's own generate on the same prompts and lengths."""
    need("vllm", "psutil")
    need_model(args.model)
    status, printed = run(
        [ROOT / "benchmarks/engines/rollouts.py", "--json", "--model", args.model, "--repeats", 3], until
    )
    if status:
        raise Failed(f"rollouts.py ended with {status}")
    said = json.loads(printed.splitlines()[-1])
    pairs = said["pairs"]
    return {
        "ratio": said["ratio"],
        "tokens_per_s": {side: max(round(pair[side]["wall"], 1) for pair in pairs) for side in ("rollouts", "offline")},
        "batch": said["rollouts"],
    }


def verl(args: argparse.Namespace, until: float) -> dict[str, Any]:
    """Two steps of `antiphon train run` with verl's engine."""
    need("verl", "ray", "vllm")
    need_model(args.model)
    with tempfile.TemporaryDirectory() as scratch:
        spec, out = Path(scratch) / "smoke.toml", Path(scratch) / "run"
        spec.write_text(SPEC.format(model=json.dumps(args.model)), encoding="utf-8")
        status, printed = run(["-m", "antiphon", "train", "run", spec, "--out", out], until)
        print(printed, file=sys.stderr)
        metrics = out / "metrics.jsonl"
        rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    steps = sorted(row["step"] for row in rows if row.get("step", 0) > 0)
    if status or steps[-2:] != [1, 2]:
        raise Failed(f"training ended with {status} after steps {steps}")
    return {"steps": steps, "last": {key: value for key, value in rows[-1].items() if isinstance(value, int | float)}}


PARTS = {"contract": contract, "rollouts": rollouts, "verl": verl}


def device() -> dict[str, Any] | None:
    """The GPU, or None. In a process of its own: ours must not hold its memory."""
    code = (
        "import json, torch; p = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None; "
        "print(json.dumps(p and {'name': p.name, 'gib': round(p.total_memory / 2**30)}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--minutes", type=float, default=9.5, help="for all parts together")
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=tuple(PARTS))
    args = parser.parse_args()
    begun = time.monotonic()
    result: dict[str, Any] = {"benchmark": "gpu_smoke", "model": args.model, "device": device()}
    for name in args.parts:
        started = time.monotonic()
        try:
            part = {"status": "ok", **PARTS[name](args, begun + args.minutes * 60)}
        except NotRun as why:
            part = {"status": "not run", "why": str(why)}
        except Failed as why:
            part = {"status": "failed", "why": str(why)}
        result[name] = {**part, "seconds": round(time.monotonic() - started, 1)}
    result["seconds"] = round(time.monotonic() - begun, 1)
    print(json.dumps(result))
    stati = [result[name]["status"] for name in args.parts]
    sys.exit(0 if "ok" in stati and "failed" not in stati else 1)


if __name__ == "__main__":
    main()
