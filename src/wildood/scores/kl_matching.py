"""KL matching (Hendrycks et al., 2022): how far the probabilities are from those that are typical of a class."""

from torch import Tensor

from wildood.data.sources import Source
from wildood.models.classifier import Classifier, Outputs, each_output
from wildood.scores.labelled import class_means
from wildood.scores.score import Needs, Score

_LEAST_LOG = -80.0  # of a probability, so that 0 log 0 is 0


class KlMatching(Score):
    """s(x) = min_c KL(p || d_c), p = softmax(f(x)), where d_c is the mean of p over unseen ID examples predicted as class c.

    A class that is never predicted on them is left out.

    >>> KlMatching().needs.unseen
    True
    """

    paper = "Hendrycks et al., Scaling OOD Detection for Real-World Settings, 2022"
    needs = Needs(unseen=True)
    templates: Tensor  # log d, one row per class that is predicted

    def __init__(self) -> None:
        super().__init__()
        self.declare("templates")

    def fit(self, classifier: Classifier, labelled: Source) -> None:
        """Compute the mean probabilities."""
        p = each_output(classifier, labelled, lambda outputs: outputs.logits.softmax(1))
        means, counts = class_means(p, p.argmax(1), p.shape[1])
        self.templates = means[counts > 0].log().clamp(min=_LEAST_LOG).float().to(classifier.device)

    def forward(self, outputs: Outputs) -> Tensor:
        """The divergence from the nearest template."""
        log_p = outputs.logits.log_softmax(1).clamp(min=_LEAST_LOG)
        p = log_p.exp()
        return (p * log_p).sum(1) - (p @ self.templates.T).amax(1)
