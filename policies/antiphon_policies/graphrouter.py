"""GraphRouter: a graph of tasks, questions and LLMs, whose missing question-LLM edges are predicted (Feng et al., arXiv
2410.03834)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ._descent import Parameters, arrays_of, descend, linear, tensor, tensors_of
from ._examples import Array, Arrays, Data, Inputs, Profile
from ._learned import Learned
from .mlp import cross_entropy

ROUNDS = ("1", "2")

UNSEEN_SHARE = 0.2
"""How often an LLM loses its edges in training, so that one that joins by its descriptor alone is no surprise."""


class GraphRouter(Learned):
    """Asks the member of the highest predicted edge to the question, after two rounds of messages along the graph."""

    name = "graphrouter"
    joins = "descriptor"

    class Settings(Learned.Settings):
        """Attributes: width: of node states; tasks: groups of questions, each with a task node."""

        width: Annotated[int, Field(ge=1)] = 32
        tasks: Annotated[int, Field(ge=1)] = 5
        lr: Annotated[float, Field(gt=0)] = 3e-3

    @classmethod
    def fit(cls, data: Data, settings: Any) -> Arrays:
        import numpy as np
        import torch
        from sklearn.cluster import KMeans

        rng = torch.Generator().manual_seed(settings.seed)
        clusters = KMeans(
            min(settings.tasks, len(data.train.texts)),
            n_init=4,  # pyright: ignore[reportArgumentType] - it takes the default's type for the only one
            random_state=settings.seed,
        )
        groups = clusters.fit_predict(data.train.vectors)
        centres = clusters.cluster_centers_.astype(np.float32)
        x, y = tensor(data.train.vectors), tensor(data.train.scores)
        llms, edges = tensor(_nodes(data.profiles, data.llm_vectors)), _edges(data)
        tasks, task_of = tensor(centres), torch.as_tensor(groups).long()
        x_held, y_held = tensor(data.validation.vectors), tensor(data.validation.scores)
        task_held = torch.as_tensor(clusters.predict(data.validation.vectors)).long()
        start = _start(rng, x.shape[1], llms.shape[1], settings.width)

        def loss(parameters: Parameters, batch: Any) -> Any:
            seen = torch.isfinite(y).float()
            seen[batch] = 0.0  # a question to predict has no edge to any LLM
            seen = seen * (torch.rand(len(llms), generator=rng) >= UNSEEN_SHARE).float()
            messages = _messages(parameters, x, tasks[task_of], edges, seen)
            return cross_entropy(_predicted(parameters, x[batch], tasks[task_of[batch]], llms, messages), y[batch])

        def held_out(parameters: Parameters) -> Any:
            messages = _messages(parameters, x, tasks[task_of], edges, torch.isfinite(y).float())
            return cross_entropy(_predicted(parameters, x_held, tasks[task_held], llms, messages), y_held)

        trained = descend(start, loss, held_out, rows=len(x), settings=settings)
        with torch.no_grad():
            messages = _messages(trained, x, tasks[task_of], edges, torch.isfinite(y).float())
        return {**arrays_of(trained), "tasks": centres, **arrays_of({"first": messages[0], "second": messages[1]})}

    @classmethod
    def predict(cls, arrays: Arrays, inputs: Inputs) -> Array:
        import numpy as np
        import torch

        task_of = ((inputs.vectors[:, None] - arrays["tasks"][None]) ** 2).sum(-1).argmin(1)
        llms = _nodes(inputs.profiles, inputs.llm_vectors)
        joined = np.zeros((len(llms) - len(arrays["first"]), arrays["first"].shape[1]), dtype=np.float32)
        messages = tuple(tensor(np.concatenate([arrays[name], joined])) for name in ("first", "second"))
        tasks = tensor(arrays["tasks"])[torch.as_tensor(task_of)]
        with torch.no_grad():
            logits = _predicted(tensors_of(arrays), tensor(inputs.vectors), tasks, tensor(llms), messages)
        predicted: Array = torch.sigmoid(logits).numpy()
        return predicted


def _start(rng: Any, question: int, llm: int, width: int) -> Parameters:
    import torch

    made = {kind: linear(rng, question, width) for kind in ("question", "task")}
    made["llm"] = linear(rng, llm, width)
    for layer in ROUNDS:
        made |= {f"self{layer}": linear(rng, width, width), f"task{layer}": linear(rng, width, width)}
        made |= {f"message{layer}": linear(rng, width, width), f"gate{layer}": linear(rng, 3, width) * 2}
        made |= {f"llm{layer}": linear(rng, width, width), f"heard{layer}": linear(rng, width, width) * 3}
    return {**made, "prior": torch.zeros(width), "bias": torch.zeros(())}


def _messages(parameters: Parameters, x: Any, tasks: Any, edges: Any, seen: Any) -> tuple[Any, Any]:
    """What each LLM hears from the questions that it has answered, in both rounds, (LLMs, width).

    Args:
        edges: (questions, LLMs, 3): score, cost, and 1.
        seen: (questions, LLMs): 1 where there is an edge.
    """
    import torch

    found = []
    for layer, state in zip(ROUNDS, _question_states(parameters, x, tasks)[:-1], strict=True):
        gates = torch.tanh(edges @ parameters[f"gate{layer}"])  # an edge's score and cost say what of a message counts
        sent = state @ parameters[f"message{layer}"]
        total = torch.einsum("qlw,qw,ql->lw", gates, sent, seen)
        found.append(total / seen.sum(0).clamp(min=1)[:, None])
    return found[0], found[1]


def _question_states(parameters: Parameters, x: Any, tasks: Any) -> list[Any]:
    """Before, between and after the rounds: questions hear from their tasks."""
    import torch

    states, task = [x @ parameters["question"]], tasks @ parameters["task"]
    for layer in ROUNDS:
        update = states[-1] @ parameters[f"self{layer}"] + task @ parameters[f"task{layer}"]
        states.append(states[-1] + torch.nn.functional.leaky_relu(update))
    return states


def _predicted(parameters: Parameters, x: Any, tasks: Any, llms: Any, messages: tuple[Any, Any]) -> Any:
    """Logits of edges, (questions, LLMs)."""
    import torch

    question = _question_states(parameters, x, tasks)[-1]
    state = llms @ parameters["llm"]
    for layer, heard in zip(ROUNDS, messages, strict=True):
        update = state @ parameters[f"llm{layer}"] + heard @ parameters[f"heard{layer}"]
        state = state + torch.nn.functional.leaky_relu(update)
    return question @ state.T / state.shape[1] ** 0.5 + state @ parameters["prior"] + parameters["bias"]


def _nodes(profiles: tuple[Profile, ...], vectors: Array) -> Array:
    """LLM nodes: the vector of the descriptor, the logarithms of price and size, and whether these are known."""
    import numpy as np

    facts = [
        (np.log(profile.price or 1.0), np.log(profile.size or 1.0), profile.price is not None, profile.size is not None)
        for profile in profiles
    ]
    return np.concatenate([vectors, np.array(facts, dtype=np.float32)], axis=1)


def _edges(data: Data) -> Any:
    """(questions, LLMs, 3): score, cost relative to the mean, 1."""
    import numpy as np

    prices = np.array([profile.price or 0.0 for profile in data.profiles])
    cost = np.nan_to_num(data.train.tokens, nan=0.0) * prices
    scale = cost.mean() or 1.0
    scores = np.nan_to_num(data.train.scores, nan=0.0)
    return tensor(np.stack([scores, cost / scale, np.ones_like(scores)], axis=-1))
