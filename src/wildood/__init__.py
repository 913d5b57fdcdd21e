"""Teach a deployed PyTorch classifier to say "unknown", from the unlabelled traffic it serves."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "UNKNOWN": "wildood.detect.detector",
    "Ash": "wildood.scores.scale",
    "Callback": "wildood.train.callbacks",
    "CheckpointError": "wildood.errors",
    "Csi": "wildood.methods.csi",
    "CsvLogger": "wildood.train.loggers",
    "Detector": "wildood.detect.detector",
    "DetectorFileError": "wildood.errors",
    "Dice": "wildood.scores.dice",
    "EnergyLogistic": "wildood.methods.energy_logistic",
    "EnergyMargin": "wildood.methods.energy_margin",
    "EnergyScore": "wildood.scores.energy",
    "Ensemble": "wildood.scores.ensemble",
    "Fdbd": "wildood.scores.fdbd",
    "Gen": "wildood.scores.gen",
    "Godin": "wildood.methods.godin",
    "GradNorm": "wildood.scores.gradnorm",
    "Habitat": "wildood.habitat.habitat",
    "InputError": "wildood.errors",
    "InputSpec": "wildood.data.inputs",
    "KlMatching": "wildood.scores.kl_matching",
    "Knn": "wildood.scores.knn",
    "MLflowLogger": "wildood.train.loggers",
    "Mahalanobis": "wildood.scores.mahalanobis",
    "MaxLogit": "wildood.scores.max_logit",
    "MaxSoftmax": "wildood.scores.max_softmax",
    "Nci": "wildood.scores.nci",
    "NnGuide": "wildood.scores.nnguide",
    "Odin": "wildood.scores.odin",
    "OutlierExposure": "wildood.methods.outlier_exposure",
    "ReAct": "wildood.scores.react",
    "RelativeMahalanobis": "wildood.scores.relative_mahalanobis",
    "Scale": "wildood.scores.scale",
    "Schedule": "wildood.methods.schedule",
    "Separate": "wildood.methods.separate",
    "She": "wildood.scores.she",
    "TableSpec": "wildood.data.tables",
    "TemperatureScaling": "wildood.scores.temperature_scaling",
    "TensorBoardLogger": "wildood.train.loggers",
    "TrainingError": "wildood.errors",
    "Vim": "wildood.scores.vim",
    "WandbLogger": "wildood.train.loggers",
    "WildClassifier": "wildood.detect.estimator",
    "WildMixture": "wildood.data.wild",
    "WildoodError": "wildood.errors",
    "Woods": "wildood.methods.woods",
    "WoodsAlt": "wildood.methods.woods_alt",
    "evaluate": "wildood.report.evaluation",
    "fit": "wildood.detect.fit",
    "fit_many": "wildood.detect.fit_many",
    "fpr_by_share": "wildood.evaluate.mixture",
    "inspect": "wildood.report.inspection",
    "label_plan": "wildood.detect.label_plan",
    "load": "wildood.detect.storage",
    "open_images": "wildood.data.folders",
    "open_set": "wildood.data.catalog",
    "posthoc": "wildood.detect.posthoc",
    "pretrain": "wildood.detect.pretrain",
    "select": "wildood.detect.fit_many",
    "unknown_share": "wildood.evaluate.mixture",
}

__all__ = [
    "UNKNOWN",
    "Ash",
    "Callback",
    "CheckpointError",
    "Csi",
    "CsvLogger",
    "Detector",
    "DetectorFileError",
    "Dice",
    "EnergyLogistic",
    "EnergyMargin",
    "EnergyScore",
    "Ensemble",
    "Fdbd",
    "Gen",
    "Godin",
    "GradNorm",
    "Habitat",
    "InputError",
    "InputSpec",
    "KlMatching",
    "Knn",
    "MLflowLogger",
    "Mahalanobis",
    "MaxLogit",
    "MaxSoftmax",
    "Nci",
    "NnGuide",
    "Odin",
    "OutlierExposure",
    "ReAct",
    "RelativeMahalanobis",
    "Scale",
    "Schedule",
    "Separate",
    "She",
    "TableSpec",
    "TemperatureScaling",
    "TensorBoardLogger",
    "TrainingError",
    "Vim",
    "WandbLogger",
    "WildClassifier",
    "WildMixture",
    "WildoodError",
    "Woods",
    "WoodsAlt",
    "evaluate",
    "fit",
    "fit_many",
    "fpr_by_share",
    "inspect",
    "label_plan",
    "load",
    "open_images",
    "open_set",
    "posthoc",
    "pretrain",
    "select",
    "unknown_share",
]

if TYPE_CHECKING:
    from wildood.data.catalog import open_set
    from wildood.data.folders import open_images
    from wildood.data.inputs import InputSpec
    from wildood.data.tables import TableSpec
    from wildood.data.wild import WildMixture
    from wildood.detect.detector import UNKNOWN, Detector
    from wildood.detect.estimator import WildClassifier
    from wildood.detect.fit import fit
    from wildood.detect.fit_many import fit_many, select
    from wildood.detect.label_plan import label_plan
    from wildood.detect.posthoc import posthoc
    from wildood.detect.pretrain import pretrain
    from wildood.detect.storage import load
    from wildood.errors import CheckpointError, DetectorFileError, InputError, TrainingError, WildoodError
    from wildood.evaluate.mixture import fpr_by_share, unknown_share
    from wildood.habitat.habitat import Habitat
    from wildood.methods.csi import Csi
    from wildood.methods.energy_logistic import EnergyLogistic
    from wildood.methods.energy_margin import EnergyMargin
    from wildood.methods.godin import Godin
    from wildood.methods.outlier_exposure import OutlierExposure
    from wildood.methods.schedule import Schedule
    from wildood.methods.separate import Separate
    from wildood.methods.woods import Woods
    from wildood.methods.woods_alt import WoodsAlt
    from wildood.report.evaluation import evaluate
    from wildood.report.inspection import inspect
    from wildood.scores.dice import Dice
    from wildood.scores.energy import EnergyScore
    from wildood.scores.ensemble import Ensemble
    from wildood.scores.fdbd import Fdbd
    from wildood.scores.gen import Gen
    from wildood.scores.gradnorm import GradNorm
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
    from wildood.scores.she import She
    from wildood.scores.temperature_scaling import TemperatureScaling
    from wildood.scores.vim import Vim
    from wildood.train.callbacks import Callback
    from wildood.train.loggers import CsvLogger, MLflowLogger, TensorBoardLogger, WandbLogger


def __getattr__(name: str) -> Any:
    if name == "evaluate":  # also the name of a room, which can be called: the same whether or not it is imported already
        return import_module("wildood.evaluate")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'wildood' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
