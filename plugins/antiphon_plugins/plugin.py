"""What this room offers, through the same hooks as anybody's plugin."""

from collections.abc import Mapping

from antiphon.hookspecs import hookimpl


@hookimpl
def antiphon_grammars() -> Mapping[str, str]:
    return {
        "router_r1": "antiphon_plugins.grammars.router_r1:RouterR1Grammar",
        "tool_call": "antiphon_plugins.grammars.tool_call:ToolCallGrammar",
    }


@hookimpl
def antiphon_pricing() -> Mapping[str, str]:
    return {
        "per_token": "antiphon_plugins.pricing:PerToken",
        "output_only": "antiphon_plugins.pricing:OutputOnly",
        "by_size_tier": "antiphon_plugins.pricing:BySizeTier",
        "litellm_map": "antiphon_plugins.pricing:LiteLLMMap",
    }


@hookimpl
def antiphon_reward_terms() -> Mapping[str, str]:
    return {
        "format": "antiphon_plugins.rewards:Format",
        "outcome": "antiphon_plugins.rewards:Outcome",
        "cost": "antiphon_plugins.rewards:Cost",
        "latency": "antiphon_plugins.rewards:Latency",
        "judge": "antiphon_plugins.rewards:Judge",
    }


@hookimpl
def antiphon_metrics() -> Mapping[str, str]:
    return {
        "em": "antiphon_plugins.metrics:ExactMatch",
        "f1": "antiphon_plugins.metrics:F1",
        "strict_em": "antiphon_plugins.metrics:StrictExactMatch",
        "contains": "antiphon_plugins.matching:Contains",
        "numeric": "antiphon_plugins.matching:Numeric",
        "choice": "antiphon_plugins.matching:Choice",
    }


@hookimpl
def antiphon_datasets() -> Mapping[str, str]:
    return {
        "nq": "antiphon_plugins.datasets:nq",
        "triviaqa": "antiphon_plugins.datasets:triviaqa",
        "popqa": "antiphon_plugins.datasets:popqa",
        "hotpotqa": "antiphon_plugins.datasets:hotpotqa",
        "2wikimultihopqa": "antiphon_plugins.datasets:two_wiki_multihop_qa",
        "musique": "antiphon_plugins.datasets:musique",
        "bamboogle": "antiphon_plugins.datasets:bamboogle",
        "arithmetic": "antiphon_plugins.datasets:arithmetic",
        "jsonl": "antiphon_plugins.datasets:jsonl",
    }
