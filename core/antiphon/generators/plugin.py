"""The generators, offered through the same hook as anybody's."""

from collections.abc import Mapping

from antiphon.hookspecs import hookimpl


@hookimpl
def antiphon_generators() -> Mapping[str, str]:
    return {
        "scripted": "antiphon.generators.scripted:ScriptedGenerator",
        "transformers": "antiphon.generators.transformers:TransformersGenerator",
        "vllm": "antiphon.generators.vllm:VLLMGenerator",
        "openai": "antiphon.generators.openai:OpenAIGenerator",
    }
