"""GradNorm (Huang et al., 2021): the size of a gradient at the last layer, in closed form."""

from torch import Tensor

from wildood.models.classifier import Outputs
from wildood.scores.score import Needs, Score


class GradNorm(Score):
    """s(x) = -|∇_W CE(u, softmax(W φ + b))|_1, for the uniform distribution u over K classes.

    The gradient is (p_k - 1/K) φ_j for the weight W_kj of the last layer, with p = softmax(f(x)): its L1 norm is
    |φ|_1 Σ_k |p_k - 1/K|, and no backward pass is needed.

    >>> import torch
    >>> GradNorm()(Outputs(torch.tensor([[9.0, 0.0], [0.1, 0.0]]), torch.ones(2, 3))).argmax().item()
    1
    """

    paper = "Huang et al., On the Importance of Gradients for Detecting Distributional Shifts in the Wild, 2021"
    needs = Needs(features=True)

    def __init__(self) -> None:
        super().__init__()  # without settings, so that a misspelt one is refused

    def forward(self, outputs: Outputs) -> Tensor:
        """Minus the L1 norm of the gradient."""
        p = outputs.logits.softmax(1)
        return -outputs.features_or_refuse().abs().sum(1) * (p - 1 / p.shape[1]).abs().sum(1)
