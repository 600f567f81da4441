"""What this room offers, through the same hooks as anybody's plugin."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from antiphon.hookspecs import hookimpl


@hookimpl
def antiphon_adapters() -> Mapping[str, str]:
    return {
        "litellm": "antiphon_pools.adapters.litellm:LiteLLMAdapter",
        "openai": "antiphon_pools.adapters.openai:OpenAIAdapter",
        "local": "antiphon_pools.adapters.local:LocalAdapter",
        "function": "antiphon_pools.adapters.function:FunctionAdapter",
        "bm25": "antiphon_pools.adapters.bm25:BM25Adapter",
        "recorded": "antiphon_pools.adapters.recorded:RecordedAdapter",
        "cassette": "antiphon_pools.adapters.cassette:CassetteAdapter",
    }


@hookimpl
def antiphon_descriptors() -> Iterable[Path]:
    return sorted((Path(__file__).parent / "descriptors").glob("*.toml"))


@hookimpl
def antiphon_datasets() -> Mapping[str, str]:
    return {"chamber": "antiphon_pools.chamber.questions:chamber"}
