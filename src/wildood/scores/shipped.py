"""The scores that ship with wildood, by the names in saved detectors and in experiments."""

from dataclasses import astuple

from wildood.scores.dice import Dice
from wildood.scores.energy import EnergyScore
from wildood.scores.ensemble import Ensemble
from wildood.scores.fdbd import Fdbd
from wildood.scores.gen import Gen
from wildood.scores.godin import GodinScore
from wildood.scores.gradnorm import GradNorm
from wildood.scores.head import HeadScore
from wildood.scores.kl_matching import KlMatching
from wildood.scores.knn import Knn
from wildood.scores.mahalanobis import Mahalanobis
from wildood.scores.max_logit import MaxLogit
from wildood.scores.max_softmax import MaxSoftmax
from wildood.scores.nci import Nci
from wildood.scores.nnguide import NnGuide
from wildood.scores.odin import Odin
from wildood.scores.react import ReAct
from wildood.scores.relative_mahalanobis import RelativeMahalanobis
from wildood.scores.scale import Ash, Scale
from wildood.scores.score import Score
from wildood.scores.she import She
from wildood.scores.temperature_scaling import TemperatureScaling
from wildood.scores.vim import Vim

SCORES: dict[str, type[Score]] = {
    cls.__name__: cls
    for cls in (
        MaxSoftmax,
        TemperatureScaling,
        MaxLogit,
        EnergyScore,
        Gen,
        KlMatching,
        GradNorm,
        Odin,
        Mahalanobis,
        RelativeMahalanobis,
        Knn,
        NnGuide,
        She,
        Fdbd,
        Nci,
        ReAct,
        Scale,
        Ash,
        Dice,
        Vim,
        Ensemble,
        HeadScore,
        GodinScore,
    )
}

NAMES: dict[str, type[Score]] = {  # as experiments name them
    "max-softmax": MaxSoftmax,
    "temperature-scaling": TemperatureScaling,
    "max-logit": MaxLogit,
    "energy": EnergyScore,
    "gen": Gen,
    "kl-matching": KlMatching,
    "gradnorm": GradNorm,
    "odin": Odin,
    "mahalanobis": Mahalanobis,
    "relative-mahalanobis": RelativeMahalanobis,
    "knn": Knn,
    "nnguide": NnGuide,
    "she": She,
    "fdbd": Fdbd,
    "nci": Nci,
    "react": ReAct,
    "scale": Scale,
    "ash": Ash,
    "dice": Dice,
    "vim": Vim,
    "ensemble": Ensemble,
}
POSTHOC: tuple[type[Score], ...] = tuple(NAMES.values())


def scores_table() -> str:
    """The post-hoc scores and what they need, as the Markdown table of docs/baselines.md."""
    rows = [
        "| score | needs labelled data | unseen ID data | the classes of either | features | input gradients | paper |",
        "|---" * 7 + "|",
    ]
    for cls in POSTHOC:
        needs = ["yes" if need else "" for need in astuple(cls.needs)]
        rows.append(f"| `{cls.__name__}` | {' | '.join(needs)} | {cls.paper} |")
    return "\n".join(rows)
