"""The weights in a verl checkpoint, put together from its shards: a Hugging Face folder, or a LoRA adapter."""

from __future__ import annotations

import json
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

_ADAPTER, _CONFIG = "lora_adapter", "adapter_config.json"


def merge(shards: Path, out: Path, *, base: str) -> None:
    """Write the weights of an actor's shards (FSDP), in bfloat16, into a folder that is there.

    Args:
        shards: verl's folder of the actor.
        base: what an adapter says that its base is called.
    """
    from verl.model_merger.base_model_merger import ModelMergerConfig
    from verl.model_merger.fsdp_model_merger import FSDPModelMerger

    whole = out / ".whole"
    config = ModelMergerConfig(
        operation="merge",
        backend="fsdp",
        local_dir=str(shards),
        hf_model_config_path=str(shards / "huggingface"),
        target_dir=str(whole),
    )
    whole.mkdir()
    with redirect_stdout(StringIO()):
        FSDPModelMerger(config).merge_and_save()
    adapter = whole / _ADAPTER
    trained = adapter if adapter.is_dir() else whole  # beside an adapter verl writes its base once more
    if trained is adapter:
        told = json.loads((adapter / _CONFIG).read_bytes())
        told |= {"base_model_name_or_path": base, "inference_mode": True}
        (adapter / _CONFIG).write_text(json.dumps(told, indent=1), "utf-8")
    for file in trained.iterdir():
        file.rename(out / file.name)
    shutil.rmtree(whole)
