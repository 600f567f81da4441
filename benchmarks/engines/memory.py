"""Memory of a policy model on paper: its weights, and the keys and values of a batch of rollouts.

Weights are parameters times 2 bytes (bfloat16). A token's keys and values are 2 x layers x key-value heads x head size
x 2 bytes. What vLLM needs beside these (activations, CUDA graphs, its runtime) is not counted. Shapes are those of the
models' published configurations; name folders to have theirs read instead. Nothing is measured.

    python benchmarks/engines/memory.py [--json] [--rollouts 64] [--context 4096] [FOLDER ...]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

GIB = 1 << 30
_SHOWN = ("name", "weights_gib", "kv_kib_per_token", "kv_gib", "together_gib")
BYTES = 2  # bfloat16


@dataclass(frozen=True)
class Shape:
    """What memory depends on. `parameters` in billions."""

    name: str
    parameters: float
    layers: int
    kv_heads: int
    head: int

    @property
    def weights_gib(self) -> float:
        return self.parameters * 1e9 * BYTES / GIB

    @property
    def token_kib(self) -> float:
        """Keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head * BYTES / 1024

    def cache_gib(self, tokens: int) -> float:
        return self.token_kib * 1024 * tokens / GIB


SHAPES = (
    Shape("SmolLM2-135M-Instruct", 0.1345, 30, 3, 64),
    Shape("Qwen2.5-0.5B-Instruct", 0.494, 24, 2, 64),
    Shape("Qwen2.5-1.5B-Instruct", 1.54, 28, 2, 128),
    Shape("Qwen2.5-3B-Instruct", 3.09, 36, 2, 128),
    Shape("Llama-3.2-3B-Instruct", 3.21, 28, 8, 128),
    Shape("Qwen2.5-7B-Instruct", 7.62, 28, 4, 128),
    Shape("Llama-3.1-8B-Instruct", 8.03, 32, 8, 128),
    Shape("Qwen2.5-14B-Instruct", 14.8, 48, 8, 128),
    Shape("Qwen2.5-32B-Instruct", 32.8, 64, 8, 128),
    Shape("Llama-3.1-70B-Instruct", 70.6, 80, 8, 128),
    Shape("Qwen2.5-72B-Instruct", 72.7, 80, 8, 128),
)


def shape_of(folder: Path) -> Shape:
    """That of a Hugging Face folder; its parameters are counted by the size of its weights."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    stored = {"float32": 4}.get(str(config.get("dtype") or config.get("torch_dtype")), 2)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    heads = config["num_attention_heads"]
    head = config.get("head_dim") or config["hidden_size"] // heads
    return Shape(
        folder.name, size / stored / 1e9, config["num_hidden_layers"], config.get("num_key_value_heads") or heads, head
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--rollouts", type=int, default=64, help="at once")
    parser.add_argument("--context", type=int, default=4096, help="tokens of each")
    args = parser.parse_args()
    tokens = args.rollouts * args.context
    rows = [
        {
            **asdict(shape),
            "weights_gib": round(shape.weights_gib, 1),
            "kv_kib_per_token": round(shape.token_kib, 1),
            "kv_gib": round(shape.cache_gib(tokens), 1),
            "together_gib": round(shape.weights_gib + shape.cache_gib(tokens), 1),
        }
        for shape in (tuple(map(shape_of, args.folders)) or SHAPES)
    ]
    of_all = f"of {args.rollouts} x {args.context}, GiB"
    print(f"| model | weights, GiB | keys and values of a token, KiB | {of_all} | together |\n|---|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(f'{row[key]:g}' if key != 'name' else row[key] for key in _SHOWN)} |")
    if args.json:
        print(
            json.dumps(
                {"benchmark": "engines/memory", "rollouts": args.rollouts, "context": args.context, "rows": rows}
            )
        )


if __name__ == "__main__":
    main()
