"""TO-Router: several experts behind one interface, chosen by a classifier of questions that is trained on soft labels
(Stripelis et al., TensorOpera Router, arXiv 2408.12320)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ._descent import arrays_of, scores_of, tensor, tensors_of
from ._examples import Array, Arrays, Data, Inputs
from ._learned import Learned
from .mlp import fit_perceptrons, perceptrons


class TORouter(Learned):
    """Asks the expert that the classifier holds most likely the best."""

    name = "to_router"

    class Settings(Learned.Settings):
        """Attributes:
        hidden: width of the classifier's hidden layer.
        dropout: of its units, in training.
        temperature: of the soft labels softmax(scores / temperature); a low one makes the best expert the only label.
        """

        hidden: Annotated[int, Field(ge=1)] = 128
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2
        temperature: Annotated[float, Field(gt=0)] = 0.25

    @classmethod
    def fit(cls, data: Data, settings: Any) -> Arrays:
        import torch

        known, held = (soft_labels(scores, settings.temperature) for scores in scores_of(data))
        start = torch.zeros(len(data.profiles))
        return arrays_of(fit_perceptrons(data, (known, held), start, _divergence, settings))

    @classmethod
    def predict(cls, arrays: Arrays, inputs: Inputs) -> Array:
        import torch

        with torch.no_grad():
            logits: Array = perceptrons(tensors_of(arrays), tensor(inputs.vectors)).numpy()
        return logits


def soft_labels(scores: Any, temperature: float) -> Any:
    """How much of a question belongs to each expert, (questions, LLMs); 0 for one without a score."""
    import torch

    return torch.softmax(torch.where(torch.isfinite(scores), scores / temperature, -torch.inf), dim=1)


def _divergence(logits: Any, labels: Any) -> Any:
    """Cross-entropy with the labels, among the experts that have one."""
    import torch

    asked = torch.where(labels > 0, logits, -torch.inf)
    return -torch.where(labels > 0, labels * torch.log_softmax(asked, dim=1), 0.0).sum(dim=1).mean()
