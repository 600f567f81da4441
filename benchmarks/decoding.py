"""Tokens a second of local decoding: transformers' `generate`, the engine, and the engine of an earlier revision.

Prompts share their beginning (a pool) and differ at the end (a question); every row decodes the same number of tokens.
Adapters are random LoRA of rank 16 on all linear layers. Each case runs `--repeats` times, all systems in turn, and the
best run counts: other work on the machine can only slow one down. `--before REVISION` checks that revision of this
repository out into a temporary folder and runs its engine, in a process of its own, in the same turns. Tokens are
counted by the second of wall clock and by the second of CPU time; on a busy machine the latter says more.

    python benchmarks/decoding.py [--json] [--model NAME] [--rows 1 16 32] [--before REVISION] [--threads 1]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _turns import Clock, Turns, serve

HERE = Path(__file__).resolve()
CASES = ("base", "one adapter", "three adapters")
Speed = Callable[[str, int], tuple[float, float]]
"""Case and rows to tokens a second: by the wall clock, by CPU time."""


def prompts(rows: int, tokens: int) -> list[list[int]]:
    """Token ids: nine tenths the same for all rows."""
    shared = [1000 + (7 * i) % 30000 for i in range(tokens * 9 // 10)]
    return [shared + [2000 + (row * 97 + i) % 30000 for i in range(tokens - len(shared))] for row in range(rows)]


def make_adapters(model: str, folder: Path) -> list[Path]:
    """Three random LoRA adapters, saved."""
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    from antiphon import models

    made = []
    for seed in range(3):
        torch.manual_seed(seed)
        base = AutoModelForCausalLM.from_pretrained(models.find(model), dtype=torch.bfloat16)
        config = peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
        network = peft.get_peft_model(base, config)
        for name, weight in network.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.01)
        made.append(folder / f"adapter-{seed}")
        network.save_pretrained(made[-1])
    return made


def engine_speed(model: str, adapters: Sequence[Path], args: argparse.Namespace) -> Speed:
    """Our engine, over the public face of a local model."""
    from antiphon import models

    local = models.load(model, max_batch=max(args.rows), cache_tokens=1 << 16, threads=args.threads)
    local.chat.end_ids = frozenset()  # every row goes its whole length
    names = [local.adapter(adapter) for adapter in adapters]

    async def one(ids: list[int], adapter: str | None, seed: int) -> None:
        sampling = {"temperature": 1.0, "seed": seed}
        async for _ in local.generate(ids, max_tokens=args.tokens, sampling=sampling, adapter=adapter):
            pass

    async def all_of(case: str, rows: int) -> tuple[float, float]:
        chosen = {"base": [None], "one adapter": names[:1], "three adapters": names}[case]
        given = prompts(rows, args.prompt)
        await asyncio.gather(*(one(given[0][:-1], name, 0) for name in chosen))  # the shared beginning is known
        clock = Clock()
        await asyncio.gather(*(one(ids, chosen[row % len(chosen)], row) for row, ids in enumerate(given)))
        return clock.speed(rows * args.tokens)

    return lambda case, rows: asyncio.run(all_of(case, rows))


def generate_speed(model: str, adapters: Sequence[Path], args: argparse.Namespace) -> Speed:
    """transformers' own `generate`; peft names the adapter of each row."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from antiphon import models

    torch.set_num_threads(args.threads)
    dtype = models.torch_dtype("auto", "cpu")  # as ours
    network: Any = AutoModelForCausalLM.from_pretrained(models.find(model), dtype=dtype).eval()
    for index, adapter in enumerate(adapters):
        if index == 0:
            network = PeftModel.from_pretrained(network, adapter, adapter_name="a0").eval()
        else:
            network.load_adapter(adapter, adapter_name=f"a{index}")

    def speed(case: str, rows: int) -> tuple[float, float]:
        chosen = {"base": ["__base__"], "one adapter": ["a0"], "three adapters": ["a0", "a1", "a2"]}[case]
        ids = torch.tensor(prompts(rows, args.prompt))
        extra = {"adapter_names": [chosen[row % len(chosen)] for row in range(rows)]}
        clock = Clock()
        with torch.inference_mode():
            network.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                min_new_tokens=args.tokens,
                max_new_tokens=args.tokens,
                do_sample=True,
                **extra,
            )
        return clock.speed(rows * args.tokens)

    return speed


def in_turns(args: argparse.Namespace, system: str, core: Path, adapters: Sequence[Path]) -> Turns:
    """One system in a child process that imports `antiphon` from `core`."""
    given = ["--child", system, "--model", args.model, "--threads", args.threads, "--tokens", args.tokens]
    given += ["--prompt", args.prompt, "--rows", *args.rows, "--adapters", *adapters]
    return Turns(str(HERE), given, threads=args.threads, path=str(core))


def compare(args: argparse.Namespace, stack: ExitStack) -> list[dict[str, Any]]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    adapters = make_adapters(args.model, folder)
    root = HERE.parents[1]
    systems = {
        "transformers generate": in_turns(args, "generate", root / "core", adapters),
        "engine": in_turns(args, "engine", root / "core", adapters),
    }
    if args.before:
        earlier, git = folder / "before", ["git", "-C", str(root), "worktree"]
        subprocess.run([*git, "add", "--detach", str(earlier), args.before], check=True, capture_output=True)
        stack.callback(subprocess.run, [*git, "remove", "--force", str(earlier)], check=True)
        systems[f"engine at {args.before}"] = in_turns(args, "engine", earlier / "core", adapters)
    for turns in systems.values():
        stack.callback(turns.close)
    results = []
    for rows in args.rows:
        for case in args.cases:
            runs: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
            for _ in range(args.repeats):
                for name, turns in systems.items():
                    runs[name].append(turns.take(case, rows))
            best = {name: [round(max(each), 1) for each in zip(*tried, strict=True)] for name, tried in runs.items()}
            results.append(
                {
                    "rows": rows,
                    "case": case,
                    "tokens_per_s": {name: wall for name, (wall, _) in best.items()},
                    "tokens_per_cpu_s": {name: cpu for name, (_, cpu) in best.items()},
                }
            )
            shown = ", ".join(f"{name} {wall:.0f} ({cpu:.0f})" for name, (wall, cpu) in best.items())
            print(f"{rows:3d} rows, {case}: tokens/s (by CPU time) {shown}", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 32])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--prompt", type=int, default=200, help="tokens")
    parser.add_argument("--tokens", type=int, default=64, help="decoded by each row")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--before", metavar="REVISION", help="also run the engine of this revision")
    parser.add_argument("--child", choices=("engine", "generate"), help=argparse.SUPPRESS)
    parser.add_argument("--adapters", type=Path, nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        serve((engine_speed if args.child == "engine" else generate_speed)(args.model, args.adapters, args))
        return
    with ExitStack() as stack:
        results = compare(args, stack)
    if args.json:
        settings = {key: getattr(args, key) for key in ("model", "prompt", "tokens", "threads", "repeats")}
        print(json.dumps({"benchmark": "decoding", **settings, "runs": results}))


if __name__ == "__main__":
    main()
