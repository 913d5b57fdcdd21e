"""NNGuide (Park et al., 2023): the energy, guided by how sure the classifier is of the nearest labelled examples."""

from torch import Tensor

from wildood.data.sources import Source
from wildood.errors import InputError
from wildood.models.classifier import Classifier, Outputs, each_output
from wildood.scores.bank import BankScore, directions, largest_products
from wildood.scores.energy import energy


class NnGuide(BankScore):
    """s(x) = -S(x) G(x), G(x) the mean of the k largest z(x)·S_i z_i over labelled examples i.

    z = φ/|φ| are normalised features, and S = log Σ_j exp f_j = -E. k = None has it chosen by wild acceptance.

    >>> NnGuide().k
    100
    """

    paper = "Park et al., Nearest Neighbor Guidance for Out-of-Distribution Detection, 2023"

    def __init__(self, k: int | None = 100) -> None:
        super().__init__(k)

    def fit(self, classifier: Classifier, labelled: Source) -> None:
        """Store the normalised features of every labelled example, times its S."""
        super().fit(classifier, labelled)
        sure = each_output(classifier, labelled, lambda outputs: -energy(outputs.logits))
        if not float(sure.double().mean()) > 0:
            raise InputError("NnGuide: the mean of logsumexp of the logits is not positive, and the product has no meaning")
        self.bank = self.bank * sure.to(self.bank.device)[:, None]

    def forward(self, outputs: Outputs) -> Tensor:
        """Minus the product of the energy and its guide."""
        products, _ = largest_products(directions(outputs), self.bank, self.setting("k"))
        return energy(outputs.logits) * products.mean(1)
