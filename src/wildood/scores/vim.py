"""ViM (Wang et al., 2022): the energy, plus the distance of the features from the principal space of labelled data."""

import torch
from torch import Tensor

from wildood.data.sources import Source
from wildood.errors import InputError
from wildood.models.classifier import Classifier, Outputs, evaluating, forward_all
from wildood.scores.energy import energy
from wildood.scores.labelled import layer_of
from wildood.scores.score import Needs, Score
from wildood.settings import check_count, optional


class Vim(Score):
    """s(x) = α |Rᵀ(φ(x) - u)| + E(x), where u = -W⁺b for the last layer W, b, and R spans the directions of least variance.

    The variance is that of the features φ of labelled data around u. On labelled data, the mean of the virtual logit
    α |Rᵀ(φ - u)| equals the mean of the largest logit, which defines α.

    `dimensions` is that of the principal space, which R leaves out. None for the paper's rule: 1000 of 2048 features or
    more, 512 of 768 or more, else half of them.

    >>> Vim(dimensions=32).settings
    {'dimensions': 32}
    """

    paper = "Wang et al., ViM: Out-Of-Distribution with Virtual-logit Matching, 2022"
    needs = Needs(labelled=True, features=True)
    origin: Tensor  # u
    residual: Tensor  # α R

    def __init__(self, dimensions: int | None = None) -> None:
        dimensions = optional(check_count)(dimensions, "Vim: dimensions")
        super().__init__(dimensions=dimensions)
        self.dimensions = dimensions
        self.declare("origin", "residual")

    def fit(self, classifier: Classifier, labelled: Source) -> None:
        """Compute u, the eigenvectors R with the smallest eigenvalues of the second moments around u, and α."""
        weight, bias = (value.double() for value in layer_of(classifier, labelled))
        origin = -torch.linalg.pinv(weight) @ bias
        products = torch.zeros(len(origin), len(origin), dtype=torch.float64, device=origin.device)
        count, largest, length = 0, 0.0, 0.0
        with evaluating(classifier):
            for outputs, _ in forward_all(classifier, labelled):
                shifted = outputs.features_or_refuse().double() - origin
                products += shifted.T @ shifted
                count, largest = count + len(shifted), largest + float(outputs.logits.amax(1).sum())
                length += float(shifted.norm(dim=1).sum())
            values, vectors = torch.linalg.eigh(products / count)
            residual = vectors[:, : self._residual_dimensions(len(values))]
            norms = 0.0
            for outputs, _ in forward_all(classifier, labelled):
                norms += float(((outputs.features_or_refuse().double() - origin) @ residual).norm(dim=1).sum())
        # The features have single precision: a residual that rounding alone can produce means nothing.
        if norms <= length * len(origin) * torch.finfo(torch.float32).eps:
            raise InputError("Vim: the labelled features leave no residual space: give fewer dimensions")
        if largest <= 0:
            raise InputError("Vim: the mean of the largest logit is not positive, and alpha would have no meaning")
        self.origin, self.residual = origin.float(), (residual * (largest / norms)).float().contiguous()

    def _residual_dimensions(self, features: int) -> int:
        rule = 1000 if features >= 2048 else 512 if features >= 768 else features // 2
        kept = rule if self.dimensions is None else self.dimensions
        if kept >= features:
            raise InputError(f"Vim: dimensions is {kept}, but the classifier has {features} features: give fewer")
        return features - kept

    def forward(self, outputs: Outputs) -> Tensor:
        """The virtual logit plus the energy."""
        virtual: Tensor = torch.linalg.vector_norm((outputs.features_or_refuse() - self.origin) @ self.residual, dim=1)
        return virtual + energy(outputs.logits)
