"""RouterDC: questions and LLMs in one space, learnt by two contrastive losses (Chen et al., arXiv 2409.19886)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ._descent import Parameters, arrays_of, descend, linear, tensor, tensors_of
from ._examples import Array, Arrays, Data, Inputs
from ._learned import Learned

RIGHT = 0.5
"""A score from which an LLM counts as having answered well."""


class RouterDC(Learned):
    """Asks the member whose learnt embedding is most like the question's, by cosine."""

    name = "routerdc"

    class Settings(Learned.Settings):
        """Attributes:
        width: of the common space.
        best, worst: LLMs a question that are pulled near and pushed away (the paper's K+ and K-).
        groups, others: of k-means over the questions; questions of other groups that are pushed away (N and H).
        weight: of the sample-sample loss (lambda).
        temperature: that similarities are divided by.
        """

        width: Annotated[int, Field(ge=1)] = 64
        best: Annotated[int, Field(ge=1)] = 3
        worst: Annotated[int, Field(ge=1)] = 3
        groups: Annotated[int, Field(ge=2)] = 5
        others: Annotated[int, Field(ge=1)] = 3
        weight: Annotated[float, Field(ge=0)] = 1.0
        temperature: Annotated[float, Field(gt=0)] = 0.2

    @classmethod
    def fit(cls, data: Data, settings: Any) -> Arrays:
        import torch
        from sklearn.cluster import KMeans

        rng = torch.Generator().manual_seed(settings.seed)
        x, y = tensor(data.train.vectors), data.train.scores
        start = {
            "in": linear(rng, x.shape[1], settings.width),
            "llms": torch.randn(y.shape[1], settings.width, generator=rng),
        }
        clusters = KMeans(
            min(settings.groups, len(x)),
            n_init=4,  # pyright: ignore[reportArgumentType] - it takes the default's type for the only one
            random_state=settings.seed,
        )
        groups = torch.as_tensor(clusters.fit_predict(data.train.vectors))
        near, far = (tensor(mask) for mask in _sides(y, settings))
        x_held = tensor(data.validation.vectors)
        near_held, far_held = (tensor(mask) for mask in _sides(data.validation.scores, settings))

        def loss(parameters: Parameters, batch: Any) -> Any:
            embedded = _embedded(parameters, x[batch])
            of_llms = sample_llm(_likeness(parameters, embedded) / settings.temperature, near[batch], far[batch])
            likeness = embedded @ embedded.T / settings.temperature
            return of_llms + settings.weight * sample_sample(likeness, groups[batch], settings.others, rng)

        def held_out(parameters: Parameters) -> Any:
            likeness = _likeness(parameters, _embedded(parameters, x_held)) / settings.temperature
            return sample_llm(likeness, near_held, far_held)

        return arrays_of(descend(start, loss, held_out, rows=len(x), settings=settings))

    @classmethod
    def predict(cls, arrays: Arrays, inputs: Inputs) -> Array:
        parameters = tensors_of(arrays)
        predicted: Array = _likeness(parameters, _embedded(parameters, tensor(inputs.vectors))).numpy()
        return predicted


def sample_llm(likeness: Any, near: Any, far: Any) -> Any:
    """The sample-LLM loss: each LLM that did well against all that did badly, by cross-entropy.

    Args:
        likeness: (questions, LLMs); `near` and `far`: 1 for those that did well and badly, else 0.
    """
    import torch

    masked = likeness.masked_fill(far == 0, float("-inf"))
    against = torch.logsumexp(torch.cat([masked, torch.full_like(masked[:, :1], -1e9)], 1), 1, keepdim=True)
    losses = torch.logaddexp(likeness, against) - likeness
    return (losses * near).sum() / near.sum().clamp(min=1)


def sample_sample(likeness: Any, groups: Any, others: int, rng: Any) -> Any:
    """The sample-sample loss: a random question of the own group against random ones of other groups, within the batch.

    Args:
        likeness: (questions, questions); `groups`: of each question.
        others: questions of other groups.
    """
    import torch

    own = groups[:, None] == groups[None, :]
    apart = ~own
    own = own & ~torch.eye(len(groups), dtype=torch.bool)
    usable = own.any(1) & (apart.sum(1) >= others)
    if not usable.any():
        return likeness.sum() * 0
    same = torch.multinomial(own[usable].float(), 1, generator=rng)
    different = torch.multinomial(apart[usable].float(), others, generator=rng)
    logits = torch.cat([likeness[usable].gather(1, same), likeness[usable].gather(1, different)], 1)
    return torch.nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))


def _sides(scores: Array, settings: Any) -> tuple[Array, Array]:
    """(questions, LLMs) each: the best that did well, the worst that did badly."""
    import numpy as np

    rank = np.argsort(np.argsort(-np.nan_to_num(scores, nan=-1.0), axis=1, kind="stable"), axis=1)
    known = np.isfinite(scores)
    from_end = known.sum(axis=1, keepdims=True) - 1 - rank
    near = known & (scores >= RIGHT) & (rank < settings.best)
    far = known & (scores < RIGHT) & (from_end < settings.worst)
    return near, far


def _embedded(parameters: Parameters, x: Any) -> Any:
    import torch

    return torch.nn.functional.normalize(x @ parameters["in"], dim=1)


def _likeness(parameters: Parameters, embedded: Any) -> Any:
    import torch

    return embedded @ torch.nn.functional.normalize(parameters["llms"], dim=1).T
