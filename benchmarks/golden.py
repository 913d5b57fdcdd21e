"""Record what wildood computes, so that a change of its code can be shown to change no number.

    python benchmarks/golden.py --out before.json --texts before
    python benchmarks/golden.py --out after.json --texts after --compare before.json

Only the public names and the command line are used. On one machine, a name whose hash differs has another result; the texts
behind the hashes can be compared by diff. Weights count bit by bit, other numbers to nine digits. Times, versions, paths and
hashes of settings are masked.
"""

import argparse
import copy
import hashlib
import html
import json
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # of numpy, which reads it now

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

import wildood
from wildood import Csi, EnergyLogistic, EnergyMargin, Godin, InputSpec, OutlierExposure, Schedule, Woods, WoodsAlt
from wildood.models.resnet import ResNet20
from wildood.models.small import MLP, SmallCNN
from wildood.models.wide_resnet import WideResNet

TIMES = {"images_per_second", "seconds_left"}
SPEC = InputSpec(mean=(0.5,), std=(0.5,))
STEPS, EPOCHS = Schedule(steps=24, batch=64), Schedule(epochs=4, batch=64)
PUBLISHED = replace(Schedule.as_published(), epochs=4, batch=64)
METHODS: dict[str, Any] = {
    "woods": Woods(),
    "woods-alt": WoodsAlt(),
    "oe": OutlierExposure(),
    "energy-margin": EnergyMargin(),
    "energy-logistic": EnergyLogistic(),
    "godin": Godin(epsilon=0.01),
    "woods-published": Woods.as_published(),
    "woods-alt-published": WoodsAlt.as_published(),
    "energy-logistic-published": EnergyLogistic.as_published(),
}
# What is picked of records and settings, beside which others may come to be.
FINGERPRINTS = ("data", "examples", "model", "chosen_by")
RECORD = ("alpha", "seed", "keep", "kept_epoch", "frozen", "classes", "input", "features", "score", "settings", "chosen")
SENTENCES = ("not_by_class", "accuracy_lost", "uniform", "ties")
SAVED = ("format", "model", "input", "tap", "head", "score", "example", "threshold", "class_thresholds", "promise")
SETTINGS = (
    *("labelled", "wild", "holdout", "model", "weights", "mean", "std", "seed", "method", "as_published", "frozen", "keep"),
    *("confidence", "by_class", "grid", "alpha", "tau", "tol", "gamma", "mu2", "weight", "epsilon", "steps", "epochs", "lr"),
    *("batch", "decay", "milestones", "factor", "clip", "warmup", "augment", "momentum", "weight_decay", "duals", "epoch"),
)
DROPPED = {*TIMES, "versions", "record", "about", "seconds", "says", "convention", "warnings"}
MASKS = {
    r"\d+ (images|examples)/s": "N images/s",
    r"\d+:\d\d left": "TIME left",
    r" *(?<![\d.,])\d+(?:\.\d+)? (?:s|min|h|days)\b(?: \d+ min\b)?": " TIME",
    r"(?<![.\w])(?=\d*[a-f])[0-9a-f]{12,64}\b": "HASH",
    r"\b(wildood|torch|numpy|python|threads) \d[\w.+]*": r"\1 VERSION",
    r"(?m)^(method +\w+): .*?(?= \(not deployed\)|$)": r"\1: SETTINGS",
    r"\S*/tmp\w{8}\b": "PLACE",
    r"How it was made .*": "",  # ends a page
    r"Every run A page for each run .*? FPR95 and AUROC": "",  # in the order of their hashes, with times
}
texts: dict[str, str] = {}


class Parts(NamedTuple):
    """Examples for a fit, and to test it on."""

    labelled: tuple[Any, Any]
    wild: Any
    holdout: tuple[Any, Any]
    test: Any
    ood: Any

    def changed(self, change: Callable[[Any], Any]) -> "Parts":
        """The same examples in another form."""
        return Parts(*((change(each[0]), each[1]) if isinstance(each, tuple) else change(each) for each in self))


class Named(NamedTuple):
    """What some libraries' models return."""

    logits: Tensor


class Own(nn.Module):
    """A model that does not ship with wildood, of one kind or another."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, tokens = kind, kind == "tokens"
        between = {"norm": nn.BatchNorm1d(24), "dropout": nn.Dropout(0.2)}.get(kind, nn.Identity())
        before = [nn.Embedding(20, 2), nn.Flatten()] if tokens else []
        self.body = nn.Sequential(*before, nn.Linear(16 if tokens else 8, 24), between, nn.ReLU())
        self.last = nn.Conv1d(24, 4, 1) if kind == "convolution" else nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor | Named:
        """One logit for each class."""
        features = self.body(x.double() if self.kind == "double" else x)
        logits: Tensor = self.last(features[..., None])[..., 0] if self.kind == "convolution" else self.last(features)
        return Named(logits) if self.kind == "named" else logits / 2.5 if self.kind == "temperature" else logits


def plain(value: Any) -> Any:
    """For JSON, what it cannot hold: arrays with every digit."""
    if isinstance(value, np.ndarray | Tensor):
        array = np.asarray(value)
        return {"dtype": str(array.dtype), "shape": array.shape, "values": array.ravel().tolist()}
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def add(name: str, value: Any) -> None:
    """Keep a text, or a value as one."""
    if name in texts:
        raise ValueError(f"{name} is there already")
    texts[name] = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False, default=plain)


def picked(content: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Some of the values."""
    return {name: content[name] for name in names if name in content}


def cleaned(value: Any) -> Any:
    """A record without times, versions, settings and sentences."""
    if isinstance(value, dict):
        return {name: cleaned(each) for name, each in value.items() if name not in DROPPED}
    return [cleaned(each) for each in value] if isinstance(value, list) else value


def masked(text: str) -> str:
    """A text without what differs from one run to the next."""
    for pattern, instead in MASKS.items():
        text = re.sub(pattern, instead, text)
    return text


def hashed(tensors: Mapping[str, Any]) -> str:
    """A line for each tensor or array: its kind, a hash of its bytes, and its first values."""
    arrays = {name: np.ascontiguousarray(tensors[name]) for name in sorted(tensors)}
    return "\n".join(
        f"{name} {each.dtype} {each.shape} {hashlib.sha256(each.tobytes()).hexdigest()[:16]} {each.ravel()[:4].tolist()}"
        for name, each in arrays.items()
    )


@contextmanager
def listening() -> Iterator[list[str]]:
    """The lines that wildood logs."""
    logger, handler, lines = logging.getLogger("wildood"), logging.Handler(), list[str]()
    handler.emit = lambda record: lines.append(masked(f"{record.levelname} {record.getMessage()}"))  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


@cache
def digits() -> Parts:
    """0 to 6 are known, 7 to 9 unknown; uint8 in NHWC."""
    scans, labels = load_digits(return_X_y=True)
    images, rng = (scans.reshape(-1, 8, 8, 1) * (255 / 16)).round().astype(np.uint8), np.random.default_rng(0)
    known, unknown = rng.permutation(np.flatnonzero(labels < 7)), rng.permutation(np.flatnonzero(labels > 6))
    first, aside, traffic, test = np.split(known, [450, 700, 1100])
    wild = images[rng.permutation(np.concatenate([traffic, unknown[:250]]))]
    tested = images[np.concatenate([test[:100], unknown[250:350]])]
    return Parts((images[first], labels[first]), wild, (images[aside], labels[aside]), tested, images[unknown[350:]])


@cache
def clouds() -> Parts:
    """Four known Gaussian classes and an unknown one, in eight dimensions."""
    rng = np.random.default_rng(0)
    centres = 2 * rng.normal(size=(5, 8))

    def drawn(count: int, classes: Sequence[int]) -> tuple[Any, Any]:
        y = rng.choice(classes, count)
        return (centres[y] + rng.normal(size=(count, 8))).astype("float32"), y

    wild, test = (np.concatenate([drawn(known, range(4))[0], drawn(300, [4])[0]]) for known in (800, 100))
    return Parts(drawn(600, range(4)), rng.permutation(wild), drawn(400, range(4)), test[:200], drawn(150, [4])[0])


def as_tokens(x: Any) -> Any:
    """Floats as whole numbers from 3 to 12."""
    return np.clip(x, -5, 4.9).astype("int64") + 8


@cache
def pretrained(kind: str) -> tuple[nn.Module, list[str]]:
    """A classifier of digits or clouds that was briefly trained, and what was logged."""
    torch.manual_seed(0)
    parts, spec, schedule = clouds(), None, Schedule(epochs=10, batch=64, lr=0.05)
    model: nn.Module = MLP(8, 4, hidden=(32, 16)) if kind == "clouds" else Own(kind)
    if kind == "digits":
        parts, spec, schedule = digits(), SPEC, Schedule(epochs=20, batch=64, lr=0.1, decay="cosine", clip=0.0)
        model = SmallCNN(7, width=8, hidden=32)
    if kind == "tokens":
        parts = parts.changed(as_tokens)
    model = model.double() if kind == "double" else model
    with listening() as lines:
        model = wildood.pretrain(model, parts.labelled, parts.holdout, schedule=schedule, input=spec)
    return model, lines


def start(kind: str) -> nn.Module:
    """A copy of it."""
    return copy.deepcopy(pretrained(kind)[0])


def add_detector(name: str, make: Callable[[], Any], test: Any, model: nn.Module | None = None) -> None:
    """All facts of a detector, each under its own name; saved and loaded, it must give the same answers."""
    with listening() as lines:
        detector = make()
    scores, classes = detector.score(test), detector.predict(test)
    with tempfile.TemporaryDirectory() as place:
        detector.save(place)
        saved = json.loads(Path(place, "detector.json").read_text())
        tensors, loaded = load_file(next(Path(place).glob("*.safetensors"))), wildood.load(place, model=model)
    same = np.array_equal(loaded.score(test), scores) and np.array_equal(loaded.predict(test), classes)
    sentences = picked(detector.record, SENTENCES)
    facts = {
        "weights": hashed(tensors),
        "thresholds": [detector.threshold, detector.class_thresholds],
        "history": [{column: row[column] for column in row if column not in TIMES} for row in detector.history],
        "record": cleaned(picked(detector.record, (*RECORD, "assessment"))),
        "fingerprints": picked(detector.record, FINGERPRINTS),
        "answers": [scores, classes, detector.p_value(test), detector.classify(test), detector.predict_proba(test)],
        "sentences": [str(detector.promise), detector.promise.assumption, repr(detector), detector.warnings, sentences],
        "saved": {**picked(saved, SAVED), "same when loaded": bool(same)},
        "log": lines,
    }
    for what, fact in facts.items():
        add(f"{name}/{what}", fact)


def add_fit(name: str, parts: Parts, model: nn.Module, **settings: Any) -> None:
    """A fit on these parts, with the settings that are given."""
    given = {"labelled": parts.labelled, "wild": parts.wild, "holdout": parts.holdout, "schedule": STEPS, **settings}
    add_detector(name, lambda: wildood.fit(model, **given), parts.test, model if isinstance(model, Own) else None)


def methods() -> None:
    """Every method on digits and on clouds, with the best and with the last epoch."""
    for kind, parts, spec in (("digits", digits(), SPEC), ("clouds", clouds(), None)):
        model, lines = pretrained(kind)
        add(f"methods/{kind}/pretrain/weights", hashed(model.state_dict()))
        add(f"methods/{kind}/pretrain/log", lines)
        for name, method in METHODS.items():
            for keep, schedule in (("best", EPOCHS), ("last", STEPS)):
                how = PUBLISHED if "published" in name else schedule
                add_fit(f"methods/{kind}/{name}/{keep}", parts, model, method=method, schedule=how, keep=keep, input=spec)
        add_fit(f"methods/{kind}/godin/by-wild", parts, model, method=Godin(), input=spec)
        add_fit(f"methods/{kind}/godin/by-id", parts, model, method=Godin(), input=spec, wild=None)
    csi = Csi(projection=16, head_epochs=2)
    how = replace(csi.schedule(), epochs=2, batch=64, warmup=0.1)
    add_fit("methods/digits/csi", digits(), start("digits"), method=csi, schedule=how, input=SPEC, wild=None)


def schedules() -> None:
    """A fit with schedules of many kinds."""
    for name, schedule in {
        "ends-itself": Schedule(batch=64),
        "no-averaging": replace(STEPS, decay="milestones", averaging=False),
        "duals-epoch": replace(EPOCHS, duals="epoch"),
        "shortest": replace(EPOCHS, epoch="shortest"),
        "cosine-warmup": replace(STEPS, decay="cosine", warmup=0.2),
        "no-clip": replace(STEPS, clip=0.0, weight_decay=0.0),
        "no-momentum": replace(STEPS, momentum=0.0),
        "own": None,
    }.items():
        keep = "best" if name == "ends-itself" else "last"
        add_fit(f"schedules/{name}", clouds(), start("clouds"), schedule=schedule, keep=keep)
    how = replace(STEPS, augment=True)
    add_fit("schedules/augment", digits(), start("digits"), schedule=how, input=SPEC, keep="last")


def variants() -> None:
    """Data, promises and models of other kinds."""
    known, wild, holdout, _, ood = clouds()
    x, y = (torch.from_numpy(each) for each in known)
    few = tuple(each[:130] for each in holdout)
    mixture = wildood.WildMixture(id=wild[:700], ood=ood, pi=0.2)
    settings: dict[str, dict[str, Any]] = {
        "as-published": {"keep": "as_published", "ood": ood, "schedule": EPOCHS},
        "ood": {"ood": ood, "schedule": EPOCHS},
        "alpha": {"alpha": 0.1, "method": Woods(alpha=0.02, tau=0.5)},
        "by-class": {"by_class": True},
        "not-by-class": {"by_class": True, "holdout": few},
        "confidence": {"confidence": 0.95},
        "confidence-by-class": {"confidence": 0.9, "by_class": True, "alpha": 0.1},
        "no-holdout": {"holdout": None},
        "no-holdout-last": {"holdout": None, "keep": "last"},
        "mixture": {"wild": mixture, "keep": "last"},
        "mixture-published": {"wild": mixture, "schedule": PUBLISHED, "method": Woods.as_published()},
        "mixture-frozen": {"wild": mixture, "frozen": True},
        "dataset": {"labelled": TensorDataset(x, y), "wild": Subset(TensorDataset(torch.from_numpy(wild)), range(900))},
        "tensors": {"labelled": (x, y), "wild": torch.from_numpy(wild), "keep": "last"},
        "duplicates": {"labelled": tuple(map(np.concatenate, zip(known, few, strict=True))), "allow_duplicates": True},
        "seed": {"seed": 1, "keep": "last"},
        "features": {"method": WoodsAlt(), "features": "body.2", "keep": "last"},
        "frozen-best": {"frozen": True},
    }
    for name, method in METHODS.items():
        settings[f"frozen-{name}"] = {"method": method, "frozen": True, "keep": "last", "schedule": EPOCHS}
    for name, each in settings.items():
        add_fit(f"variants/{name}", clouds(), start("clouds"), **each)
    for kind in ("convolution", "temperature", "norm", "dropout", "named", "double"):
        for method in (Woods(), OutlierExposure() if kind == "convolution" else WoodsAlt()):
            add_fit(f"variants/{kind}-{type(method).__name__}", clouds(), start(kind), method=method, keep="last")
    tokens = clouds().changed(as_tokens)
    add_fit("variants/tokens", tokens, start("tokens"), keep="last", allow_duplicates=True)
    half = start("clouds")
    half.get_submodule("body").requires_grad_(requires_grad=False)
    add_fit("variants/frozen-parameters", clouds(), half, keep="last")
    images()
    resumed()


def images() -> None:
    """Digits in another layout and size, from a memory map, and on networks with BatchNorm."""
    parts, few = digits(), Schedule(steps=6, batch=32)
    turned = parts.changed(lambda x: x.transpose(0, 3, 1, 2).repeat(2, 2))
    add_fit("variants/resized", turned, start("digits"), input=replace(SPEC, layout="NCHW", size=8), keep="last")
    for method in (Woods(), WoodsAlt.as_published()):
        torch.manual_seed(0)
        for model in (ResNet20(7, channels=1), WideResNet(7, depth=10, widen=1, channels=1)):
            name = f"variants/{type(model).__name__}-{type(method).__name__}"
            add_fit(name, parts, model, input=SPEC, keep="last", schedule=few, method=method)
    with tempfile.TemporaryDirectory() as place:
        np.save(f"{place}/wild.npy", parts.wild)
        mapped = np.load(f"{place}/wild.npy", mmap_mode="r")
        add_fit("variants/memory-map", parts, start("digits"), input=SPEC, keep="last", wild=mapped)


def resumed() -> None:
    """A run that ends early and is called again gives what one run gives."""

    def stop(row: Mapping[str, float]) -> None:
        if row["epoch"] == 2:
            raise ArithmeticError

    def interrupt(row: Mapping[str, float]) -> None:
        if row["epoch"] == 2:
            signal.raise_signal(signal.SIGINT)

    settings: dict[str, Any] = {"schedule": EPOCHS, "keep": "last", "method": WoodsAlt()}
    add_fit("variants/run/whole", clouds(), start("clouds"), **settings)
    for name, end in {"stopped": stop, "interrupted": interrupt}.items():
        with tempfile.TemporaryDirectory() as place:
            settings["run_dir"] = place
            try:
                wildood.fit(start("clouds"), *clouds()[:3], on_epoch=end, verbose=False, **settings)
            except (ArithmeticError, KeyboardInterrupt) as error:
                add(f"variants/run/{name}/ended", type(error).__name__)
            add_fit(f"variants/run/{name}", clouds(), start("clouds"), **settings)
    found = {texts[f"variants/run/{name}/weights"] for name in ("whole", "stopped", "interrupted")}
    add("variants/run/same-weights", str(len(found) == 1))


def posthoc() -> None:
    """Every post-hoc score, with settings that are given and that are chosen in each way."""
    w = wildood
    scores: dict[str, tuple[Any, str]] = {
        "max-softmax": (w.MaxSoftmax(), "id"),
        "max-logit": (w.MaxLogit(), "id"),
        "energy": (w.EnergyScore(), "id"),
        "energy-chosen": (w.EnergyScore(None), "wild ood"),
        "odin": (w.Odin(), "id wild ood"),
        "odin-fixed": (w.Odin(10.0, 0.002), "id"),
        "odin-chosen": (w.Odin(None), "wild"),
        "mahalanobis": (w.Mahalanobis(), "id wild ood"),
        "mahalanobis-fixed": (w.Mahalanobis(0.0), "id"),
        "knn": (w.Knn(), "id"),
        "knn-chosen": (w.Knn(None), "wild ood"),
        "react": (w.ReAct(), "id"),
        "react-80": (w.ReAct(80.0), "id"),
        "react-chosen": (w.ReAct(None), "wild"),
        "vim": (w.Vim(), "id"),
        "vim-6": (w.Vim(6), "id"),
        "temperature-scaling": (w.TemperatureScaling(), "id"),
        "gen": (w.Gen(), "id"),
        "gen-chosen": (w.Gen(None, None), "wild ood"),
        "kl-matching": (w.KlMatching(), "id"),
        "gradnorm": (w.GradNorm(), "id"),
        "nnguide": (w.NnGuide(), "id"),
        "she": (w.She(), "id"),
        "fdbd": (w.Fdbd(), "id"),
        "nci": (w.Nci(), "id"),
        "scale": (w.Scale(), "id"),
        "ash": (w.Ash(), "id"),
        "ash-chosen": (w.Ash(None, None), "wild"),
        "dice": (w.Dice(), "id"),
    }
    for kind, parts, spec in (("digits", digits(), SPEC), ("clouds", clouds(), None)):
        ways = {"id": {}, "wild": {"wild": parts.wild}, "ood": {"ood": parts.ood}}
        ways |= {"by-class": {"by_class": True, "alpha": 0.2}, "confidence": {"confidence": 0.9, "alpha": 0.1}}
        ways |= {"no-holdout": {"holdout": None}, "seed": {"seed": 3}}
        calls = [(name, score, way) for name, (score, by) in scores.items() for way in by.split()]
        calls += [("odin", w.Odin(), way) for way in list(ways)[3:]]
        for name, score, way in calls:
            given = {"labelled": parts.labelled, "holdout": parts.holdout, "input": spec, **ways[way]}
            add_detector(f"posthoc/{kind}/{name}/{way}", partial(w.posthoc, start(kind), score, **given), parts.test)


def functions() -> None:
    """All other public functions, on fixed arrays."""
    rng = np.random.default_rng(1)
    known, wild = rng.normal(size=800), np.concatenate([rng.normal(size=700), rng.normal(size=150) + 3])
    for name, pair in {"mixed": (known, wild), "none": (known, -known[::2]), "tied": (known.round(), wild.round())}.items():
        for confidence in (0.95, 0.5):
            share = wildood.unknown_share(*pair, confidence)
            band = wildood.fpr_by_share(*pair, 1.5, [0.05, 0.2, 1.0], confidence)
            add(f"functions/share/{name}-{confidence}", [share, band])
            add(f"functions/share-sentences/{name}-{confidence}", [str(share), str(band)])
    add("functions/share/rows", wildood.unknown_share(np.stack([known, known**2]), np.stack([wild, wild**2])))
    raw = torch.from_numpy(digits().test[:5])
    add("functions/input-spec", [SPEC(raw), replace(SPEC, size=(5, 7))(raw)])
    found = wildood.open_set("digits")
    add("functions/open-set", [hashed({"examples": found.examples}), found.labels, found.classes])
    with tempfile.TemporaryDirectory() as place:
        write_pictures(Path(place, "pictures"), 20)
        for size, how in ((None, "cover"), ((6, 9), "cover"), (4, "centre")):
            opened = wildood.open_images(f"{place}/pictures", size, how=how, channels=1, cache=place)  # type: ignore[arg-type]
            add(f"functions/open-images/{size}", [opened.examples, opened.labels, opened.classes, list(opened.names)])
    rankings()


def rankings() -> None:
    """Detectors that are ranked, and calibrated again."""
    parts, grid = clouds(), list[Any]([Woods(), WoodsAlt(), OutlierExposure(0.1), OutlierExposure(1.0)])
    scores = {"energy": wildood.EnergyScore(), "max-softmax": wildood.MaxSoftmax(), "max-logit": wildood.MaxLogit()}
    first, second = (tuple(each[part] for each in parts.holdout) for part in (slice(200), slice(200, None)))
    made = {name: wildood.posthoc(start("clouds"), score, holdout=first) for name, score in scores.items()}
    with listening() as lines:
        fits = wildood.fit_many(start("clouds"), *parts[:3], methods=grid, schedule=STEPS)
    add("functions/fit-many/log", lines)
    add("functions/fit-many/scores", {name: each.score(parts.test) for name, each in fits.detectors.items()})
    selected = {f"select-{alpha}": wildood.select(made, second, parts.wild, alpha=alpha) for alpha in (0.05, 0.2)}
    for name, ranking in {**selected, "fit-many": fits.ranking}.items():
        add(f"functions/ranking/{name}", [ranking, ranking.paired_excess_fpr([0.05, 0.3, 1.0])])
        add(f"functions/ranking-sentences/{name}", str(ranking))
    detector = made["energy"]
    add("functions/unknown-share", [detector.unknown_share(each) for each in (parts.wild, parts.test, parts.ood)])
    settings: dict[str, dict[str, Any]] = {
        "alpha": {"alpha": 0.1},
        "by-class": {"by_class": True},
        "newer": {"holdout": second},
        "confidence": {"confidence": 0.9, "by_class": False},
        "average": {"confidence": "average"},
        "seen": {"holdout": parts.labelled, "unseen": False},
    }
    for name, each in settings.items():
        detector.calibrate(**each)
        add(f"functions/calibrate/{name}", [detector.threshold, detector.class_thresholds, detector.promise])


def write_pictures(place: Path, count: int) -> None:
    """The first labelled digits, in a folder for each class."""
    for number, (image, label) in enumerate(zip(*(each[:count] for each in digits().labelled), strict=True)):
        (place / f"digit {label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(place / f"digit {label}" / f"{number:03d}.png")


BEGIN = (
    "fit --labelled labelled.npz --holdout holdout.npz --model smallcnn:classes=7,width=8,hidden=32 --mean 0.5 --std 0.5 "
    "--weights start/weights.safetensors"
)
WILD, TESTS = "--wild wild.npz --steps 24 --batch 64", "--id test.npz --ood ood.npz:pictures more.npy --resamples 200"
ONLY = "method=max-softmax,mahalanobis,woods,woods-alt,energy-margin pi=0,0.1"
COMMANDS = {
    "pretrain": "pretrain --labelled labelled.npz --model smallcnn:classes=7,width=8,hidden=32 --mean 0.5 --std 0.5 "
    "--set-aside 0.1 --epochs 30 --batch 64 --lr 0.1 --augment False --out start",
    "fit/last": f"{BEGIN} {WILD} --keep last --out last",
    "fit/best": f"{BEGIN} {WILD} --out best",
    "fit/grid": f"{BEGIN} {WILD} --method oe --grid weight=0.1,1 --out grid",
    "fit/godin": f"{BEGIN} --epochs 4 --method godin --out godin",
    "fit/class": f"{BEGIN} --wild wild.npz --method woods-alt --as-published --epochs 3 --frozen --by-class --alpha 0.3 "
    "--keep last --out class",
    "fit/config": "fit --config last/settings.toml --seed 1 --confidence 0.9 --out config",
    "show/last": "show last",
    "show/json": "show last --json",
    "show/class": "show class",
    "show/godin": "show godin",
    "score/csv": "score last traffic.npz",
    "score/jsonl": "score best known.npy --format jsonl",
    "score/pictures": "score last pictures",
    "score/input": "score class - --out answers.csv",
    "evaluate/last": f"evaluate last {TESTS}",
    "evaluate/class": f"evaluate class {TESTS} --quiet",
    "inspect/unknown": "inspect last --wild traffic.npz",
    "inspect/known": "inspect best --wild known.npy --top 3",
    "inspect/id": "inspect class --wild traffic.npz --id test.npz --confidence 0.99 --quiet",
    "inspect/seen": "inspect godin --wild holdout.npz",
    "other/help": "--help",
    "other/misspelt": "evalute",
    "other/option": "fit --stepz 3",
    "other/missing": "fit --labelled labelled.npz",
    "other/nowhere": "show nowhere",
    "data/help": "data",
    "data/list": "data list --data-root data",
    "data/check": "data check digits",
    "data/get": "data get cifar --data-root data",
    "reproduce/missing": "reproduce cpu --dry-run --data-root data",
}
EXPERIMENTS = {
    "reproduce/digits": f"reproduce digits --only {ONLY} --seeds 1 --workers 1 --runs digits",
    "reproduce/files": "reproduce files --data-root . --workers 1 --runs published",
    "report/digits": "report digits",
    "report/published": "report published",
    "demo": "demo --seeds 1 --out demo",
}
EXPERIMENT = """id = "mine.npz"
test = ["others.npz"]
wild = "others.npz"
pi = 0.2
protocol = "as_published"
start = "all"
model = "SmallCNN"
mean = [0.5]
std = [0.5]
method = "{}"
[pretraining]
epochs = 20
batch = 64
lr = 0.1
{}
"""


def call(place: Path, name: str, line: str) -> None:
    """A command: its exit code, and what it prints."""
    names = {"NO_COLOR": "1", "COLUMNS": "100", "WILDOOD_DATA": str(place / "data")}
    command, given = [sys.executable, "-m", "wildood", *shlex.split(line)], (place / "traffic.npz").read_bytes()
    ended = subprocess.run(command, cwd=place, env=os.environ | names, input=given, capture_output=True, check=False)  # noqa: S603
    said, more = ended.stdout.decode(), ended.stderr.decode()
    if "--json" in command:
        said = json.dumps(picked(json.loads(said), SAVED), indent=1)
    if "reproduce" in command:  # several processes speak, in no order
        more = "\n".join(sorted(more.splitlines()))
    add(name, masked(f"exit code {ended.returncode}\n{said}\nstderr:\n{more}"))


def add_file(name: str, path: Path) -> None:
    """What a file holds; of a page, the text that is seen."""
    if path.suffix == ".html":
        seen = re.sub(r"(?s)<(script|style|svg)\b.*?</\1>|<[^>]*>", " ", path.read_text())
        add(name, masked(" ".join(html.unescape(seen).split())))
    elif path.suffix == ".json":
        add(name, cleaned(json.loads(path.read_text())))
    elif path.name == "settings.toml":
        add(name, picked(tomllib.loads(path.read_text()), SETTINGS))
    elif path.suffix in {".md", ".tex", ".csv"}:
        add(name, masked(path.read_text()))
    elif path.suffix in {".safetensors", ".npz"}:
        add(name, hashed(load_file(path) if path.suffix == ".safetensors" else np.load(path)))


def add_files(name: str, place: Path) -> None:
    """All files below a directory but checkpoints and runs; those of a detector are named by what is in them."""
    for path in sorted(place.rglob("*")):
        where = re.sub("-[0-9a-f]{16}", "", str(path.relative_to(place)))
        if path.is_file() and path.name != "detector.json" and not {"run", "runs"} & set(path.relative_to(place).parts):
            add_file(f"{name}/{where}", path)


@contextmanager
def workplace() -> Iterator[Path]:
    """A directory with files of digits."""
    (known, labels), wild, (x, y), test, ood = digits()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        np.savez(place / "labelled.npz", x=known, y=labels)
        np.savez(place / "wild.npz", x=wild)
        np.savez(place / "holdout.npz", x=x[:150], y=y[:150])
        np.savez(place / "test.npz", images=x[150:], labels=y[150:])
        np.savez(place / "traffic.npz", x=test)
        np.save(place / "known.npy", test[:100])
        np.savez(place / "ood.npz", pictures=ood[:90])
        np.save(place / "more.npy", ood[90:])
        np.savez(place / "mine.npz", train_images=known, train_labels=labels, test_images=x, test_labels=y)
        np.savez(place / "others.npz", images=ood)
        write_pictures(place / "pictures", 30)
        yield place


def commands() -> None:
    """The command line on small files: what it prints and what it writes."""
    with workplace() as place:
        for name, line in COMMANDS.items():
            call(place, f"commands/{name}", line)
        for name in ("start", "last", "best", "grid", "godin", "class", "config"):
            add_files(f"commands/files/{name}", place / name)
        add_file("commands/files/answers.csv", place / "answers.csv")


def experiments() -> None:
    """Experiments by name and from files, their reports, and the demo."""
    with workplace() as place:
        (place / "files").mkdir()
        for method, schedule in {"woods": "[schedule]\nepochs = 2\nbatch = 32\nduals = 'epoch'", "odin": ""}.items():
            (place / "files" / f"{method}.toml").write_text(EXPERIMENT.format(method, schedule))
        for name, line in EXPERIMENTS.items():
            call(place, f"experiments/{name}", line)
        for toml in sorted(place.glob("*/*/experiment.toml")):
            runs, ran = toml.parent.parent, tomllib.loads(toml.read_text())
            name = f"experiments/files/{runs.name}/{ran['method']}"
            add_file(f"{name}/result.json", toml.parent / "result.json")
            add_file(f"{name}/scores.npz", toml.parent / "scores.npz")
            add_file(f"{name}/page", runs / "report" / "runs" / f"{toml.parent.name}.html")
        for name in ("digits/report", "published/report", "demo"):
            add_files(f"experiments/files/{name}", place / name)


SECTIONS = {each.__name__: each for each in (methods, schedules, variants, posthoc, functions, commands, experiments)}


def hash_of(text: str) -> str:
    """Of a text with its decimal numbers to nine digits: scores in float32 are exact, the last bits of p-values are not."""
    rounded = re.sub(r"-?\d+\.\d+(?:e[-+]?\d+)?", lambda number: f"{float(number.group()):.9g}", text)
    return hashlib.sha256(rounded.encode()).hexdigest()[:16]


def compared(before: Mapping[str, str], after: Mapping[str, str]) -> int:
    """Print which names differ, are missing or new; 1 if any differs or is missing."""
    both = before.keys() & after.keys()
    found = {"differs": {name for name in both if before[name] != after[name]}, "missing": before.keys() - after.keys()}
    for what, names in {**found, "new": after.keys() - before.keys()}.items():
        for name in sorted(names):
            print(f"{what}: {name}")
    print(f"{len(both) - len(found['differs'])} of {len(before)} names have the same hash")
    return int(any(found.values()))


def main() -> int:
    """Run the sections, write the hashes, and compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file of hashes by name")
    parser.add_argument("--texts", type=Path, help="a directory for the text behind each hash")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="some of the sections")
    parser.add_argument("--compare", type=Path, metavar="OTHER", help="another such file: exit code 1 if any hash differs")
    parser.add_argument("--no-run", action="store_true", help="compare the file of --out as it is")
    options = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job ignores
    for name in () if options.no_run else options.only:
        began = time.monotonic()
        SECTIONS[name]()
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    if not options.no_run:
        hashes = {name: hash_of(text) for name, text in sorted(texts.items())}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(hashes, indent=0) + "\n")
        print(f"{options.out}: {len(hashes)} names")
    for name, text in texts.items() if options.texts else ():
        path = options.texts / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    if not options.compare:
        return 0
    both = (json.loads(path.read_text()) for path in (options.compare, options.out))
    before, after = ({name: each[name] for name in each if name.split("/")[0] in options.only} for each in both)
    return compared(before, after)


if __name__ == "__main__":
    sys.exit(main())
