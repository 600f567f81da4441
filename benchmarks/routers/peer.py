"""LLMRouter's MLP and KNN routers on what `run.py` hands over; needs an interpreter with `llmrouter-lib` 0.4.0.

Its routers read questions with Longformer; here they are given the same vectors as ours. Its own default settings hold.
Prints one JSON list last.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from llmrouter.models.knnrouter import KNNRouter, KNNRouterTrainer
from llmrouter.models.knnrouter import router as knn_module
from llmrouter.models.mlprouter import MLPRouter, MLPTrainer
from llmrouter.models.mlprouter import router as mlp_module

METHODS = {
    "llmrouter mlp": (MLPRouter, MLPTrainer, {"hidden_layer_sizes": [128, 64], "lr": 0.001, "epochs": 100}, "pt"),
    "llmrouter knn": (KNNRouter, KNNRouterTrainer, {"n_neighbors": 20, "metric": "cosine"}, "pkl"),
}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rows = json.loads((folder / "rows.json").read_text("utf-8"))
    vectors = {place: torch.tensor(vector) for place, vector in enumerate(np.load(folder / "vectors.npy"))}
    by_text = {row["query"]: vectors[row["embedding_id"]] for row in rows}
    for module in (knn_module, mlp_module):
        module.get_longformer_embedding = by_text.__getitem__
    torch.save(vectors, folder / "vectors.pt")
    with (folder / "train.jsonl").open("w", encoding="utf-8") as file:
        for row in rows:
            if row["train"]:
                for llm, score in row["scores"].items():
                    line = {"query": row["query"], "embedding_id": row["embedding_id"]}
                    file.write(json.dumps({**line, "model_name": llm, "performance": score}) + "\n")
    test = [row for row in rows if not row["train"]]
    print(json.dumps([measured(name, folder, test) for name in METHODS]))


def measured(name: str, folder: Path, test: list[dict[str, Any]]) -> dict[str, Any]:
    """The same as `run.py` measures."""
    router_type, trainer_type, settings, kind = METHODS[name]
    weights = str(folder / f"{name.replace(' ', '-')}.{kind}")
    config = folder / "config.yaml"
    data = {"routing_data_train": str(folder / "train.jsonl"), "query_embedding_data": str(folder / "vectors.pt")}
    paths = {"ini_model_path": str(folder / "none"), "save_model_path": weights, "load_model_path": weights}
    config.write_text(yaml.safe_dump({"data_path": data, "model_path": paths, "hparam": settings}), "utf-8")
    started = time.perf_counter()
    router = router_type(str(config))
    trainer_type(router).train()
    trained = time.perf_counter()
    asked = [router.route_single({"query": row["query"]})["model_name"] for row in test]
    took = time.perf_counter() - trained
    known = [row["scores"][llm] for llm, row in zip(asked, test, strict=True) if llm in row["scores"]]
    return {
        "method": name,
        "train_s": round(trained - started, 2),
        "decisions_per_s": round(len(test) / took, 1),
        "score": round(sum(known) / len(known), 4),
        "judged": len(known),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
