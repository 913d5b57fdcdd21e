"""Teach a deployed PyTorch classifier to say "unknown", from the unlabelled traffic it serves."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "UNKNOWN": "wildood.detect.detector",
    "CheckpointError": "wildood.errors",
    "Detector": "wildood.detect.detector",
    "DetectorFileError": "wildood.errors",
    "EnergyScore": "wildood.scores.energy",
    "InputError": "wildood.errors",
    "InputSpec": "wildood.data.inputs",
    "MaxSoftmax": "wildood.scores.max_softmax",
    "Schedule": "wildood.methods.schedule",
    "TrainingError": "wildood.errors",
    "WildMixture": "wildood.data.wild",
    "WildoodError": "wildood.errors",
    "Woods": "wildood.methods.woods",
    "WoodsAlt": "wildood.methods.woods_alt",
    "fit": "wildood.detect.fitting",
    "load": "wildood.detect.storage",
    "posthoc": "wildood.detect.fitting",
}

__all__ = [
    "UNKNOWN",
    "CheckpointError",
    "Detector",
    "DetectorFileError",
    "EnergyScore",
    "InputError",
    "InputSpec",
    "MaxSoftmax",
    "Schedule",
    "TrainingError",
    "WildMixture",
    "WildoodError",
    "Woods",
    "WoodsAlt",
    "fit",
    "load",
    "posthoc",
]

if TYPE_CHECKING:
    from wildood.data.inputs import InputSpec
    from wildood.data.wild import WildMixture
    from wildood.detect.detector import UNKNOWN, Detector
    from wildood.detect.fitting import fit, posthoc
    from wildood.detect.storage import load
    from wildood.errors import CheckpointError, DetectorFileError, InputError, TrainingError, WildoodError
    from wildood.methods.schedule import Schedule
    from wildood.methods.woods import Woods
    from wildood.methods.woods_alt import WoodsAlt
    from wildood.scores.energy import EnergyScore
    from wildood.scores.max_softmax import MaxSoftmax


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'wildood' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
