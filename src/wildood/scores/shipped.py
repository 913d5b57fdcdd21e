"""The scores that ship with wildood, by the names in saved detectors and in experiments."""

from dataclasses import astuple

from wildood.scores.energy import EnergyScore
from wildood.scores.ensemble import Ensemble
from wildood.scores.godin import GodinScore
from wildood.scores.head import HeadScore
from wildood.scores.knn import Knn
from wildood.scores.mahalanobis import Mahalanobis
from wildood.scores.max_logit import MaxLogit
from wildood.scores.max_softmax import MaxSoftmax
from wildood.scores.odin import Odin
from wildood.scores.react import ReAct
from wildood.scores.relative_mahalanobis import RelativeMahalanobis
from wildood.scores.score import Score
from wildood.scores.vim import Vim

SCORES: dict[str, type[Score]] = {
    cls.__name__: cls
    for cls in (
        MaxSoftmax,
        MaxLogit,
        EnergyScore,
        Odin,
        Mahalanobis,
        RelativeMahalanobis,
        Knn,
        ReAct,
        Vim,
        Ensemble,
        HeadScore,
        GodinScore,
    )
}

NAMES: dict[str, type[Score]] = {  # as experiments name them
    "max-softmax": MaxSoftmax,
    "max-logit": MaxLogit,
    "energy": EnergyScore,
    "odin": Odin,
    "mahalanobis": Mahalanobis,
    "relative-mahalanobis": RelativeMahalanobis,
    "knn": Knn,
    "react": ReAct,
    "vim": Vim,
    "ensemble": Ensemble,
}
POSTHOC: tuple[type[Score], ...] = tuple(NAMES.values())


def scores_table() -> str:
    """The post-hoc scores and what they need, as the Markdown table of docs/baselines.md."""
    rows = ["| score | needs labelled data | its classes | features | input gradients | paper |", "|---" * 6 + "|"]
    for cls in POSTHOC:
        needs = ["yes" if need else "" for need in astuple(cls.needs)]
        rows.append(f"| `{cls.__name__}` | {' | '.join(needs)} | {cls.paper} |")
    return "\n".join(rows)
