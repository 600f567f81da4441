"""What this room offers, through the same hooks as anybody's plugin."""

from collections.abc import Mapping

from antiphon.hookspecs import hookimpl


@hookimpl
def antiphon_policies() -> Mapping[str, str]:
    return {
        "router_r1": "antiphon_policies.router_r1:RouterR1",
        "direct": "antiphon_policies.unrouted:Direct",
        "cot": "antiphon_policies.unrouted:ChainOfThought",
        "sft": "antiphon_policies.unrouted:SFT",
        "rag": "antiphon_policies.retrieval:RAG",
        "search_r1": "antiphon_policies.retrieval:SearchR1",
        "prompt_llm": "antiphon_policies.prompted:PromptLLM",
        "prompt_llm_star": "antiphon_policies.decomposed:PromptLLMStar",
        "knn": "antiphon_policies.knn:KNN",
        "knn_star": "antiphon_policies.decomposed:KNNStar",
        "single": "antiphon_policies.fixed:Single",
        "largest": "antiphon_policies.fixed:Largest",
        "cheapest": "antiphon_policies.fixed:Cheapest",
        "random": "antiphon_policies.fixed:Random",
        "best_single": "antiphon_policies.hindsight:BestSingle",
        "oracle": "antiphon_policies.hindsight:Oracle",
        "mlp": "antiphon_policies.mlp:MLP",
        "forc": "antiphon_policies.forc:FORC",
        "causal_lm": "antiphon_policies.causal_lm:CausalLM",
        "svm": "antiphon_policies.svm:SVM",
        "elo": "antiphon_policies.elo:Elo",
        "to_router": "antiphon_policies.to_router:TORouter",
        "c2mabv": "antiphon_policies.c2mabv:C2MABV",
        "automix": "antiphon_policies.automix:AutoMix",
        "smallest": "antiphon_policies.fixed:Smallest",
        "routerdc": "antiphon_policies.routerdc:RouterDC",
        "graphrouter": "antiphon_policies.graphrouter:GraphRouter",
        "routellm": "antiphon_policies.routellm:RouteLLM",
        "bert": "antiphon_policies.bert:BERT",
        "frugalgpt": "antiphon_policies.frugalgpt:FrugalGPT",
        "hybridllm": "antiphon_policies.hybridllm:HybridLLM",
    }
