"""What this room offers, through the same hooks as anybody's plugin."""

from collections.abc import Mapping

from antiphon.hookspecs import hookimpl


@hookimpl
def antiphon_policies() -> Mapping[str, str]:
    return {
        "router_r1": "antiphon_policies.router_r1:RouterR1",
        "direct": "antiphon_policies.unrouted:Direct",
        "cot": "antiphon_policies.unrouted:ChainOfThought",
        "prompt_llm": "antiphon_policies.prompted:PromptLLM",
        "largest": "antiphon_policies.fixed:Largest",
        "cheapest": "antiphon_policies.fixed:Cheapest",
        "random": "antiphon_policies.fixed:Random",
    }
