"""The problems of `benchmarks/habitats.py`: real images, texts and tables, several networks, with and without drift.

Each problem is a classifier and its data, drawn by a seed. Some ID and OOD examples of each data set are the same for every
seed: the test part. The validation part, to develop on, leaves these out and measures on others.
"""

import csv
import gzip
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from cifar10 import SPEC, resnet20
from safetensors.torch import load_file
from torch import Tensor, nn

from wildood.data.files import write_atomically
from wildood.data.inputs import InputSpec
from wildood.data.structures import one_tensor
from wildood.data.wild import WildMixture
from wildood.experiments.split import digits_split
from wildood.models.small import MLP, SmallCNN

Part = Literal["validation", "test"]
Array = npt.NDArray[Any]
Labelled = tuple[Array, Array]


@dataclass(frozen=True)
class Habitat:
    """What a user has, and what the detector is tried on."""

    model: nn.Module
    labelled: Labelled
    wild: Array | WildMixture
    holdout: Labelled
    fresh: Labelled  # more known examples of today, for those who give them
    test_id: Labelled
    test_ood: Array
    spec: InputSpec | None = None
    wild_ood: Array | None = None  # the unknown ones among the wild examples: only for the ceiling, which has OOD labels


@dataclass(frozen=True)
class Problem:
    """A name, how to draw its data, and whether a fit takes seconds."""

    name: str
    draw: Callable[[Path, int, Part, float], Habitat]
    quick: bool = True


def problems() -> list[Problem]:
    """All of them, in the order of the table."""
    quick = [
        Problem("NSL-KDD same day, MLP", partial(nsl_same_day, norm=False)),
        Problem("NSL-KDD same day, BN-MLP", partial(nsl_same_day, norm=True)),
        Problem("NSL-KDD next day, MLP", partial(nsl_next_day, norm=False)),
        Problem("NSL-KDD next day, BN-MLP", partial(nsl_next_day, norm=True)),
        Problem("CLINC150 MiniLM, linear", partial(clinc, network="linear")),
        Problem("CLINC150 MiniLM, MLP", partial(clinc, network="mlp")),
        Problem("CLINC150 token ids", partial(clinc, network="tokens")),
        Problem("digits", digits),
        Problem("CIFAR-100 DenseNet features, SVHN", partial(cifar100, ood="svhn")),
        Problem("CIFAR-100 DenseNet features, places", partial(cifar100, ood="places")),
    ]
    sets = ("svhn", "textures", "places", "cifar100")
    whole = [Problem(f"CIFAR-10 {ood}", partial(cifar10, ood=ood, half=False), quick=False) for ood in sets]
    half = Problem("CIFAR-10 half, places", partial(cifar10, ood="places", half=True), quick=False)
    return [*quick, *whole, half]


# --- tables ---------------------------------------------------------------------------------------------------------------


@cache
def _nsl_kdd(root: Path) -> dict[str, Array]:
    """Both days: features, and the number of the type (-1: not one of the ten known types)."""
    days = {}
    for day, name in (("train", "nsl_kdd_train20"), ("test", "nsl_kdd_test")):
        with gzip.open(root / f"{name}.csv.gz", "rt", encoding="utf-8") as file:
            days[day] = list(csv.reader(file))
    counts = Counter(row[41] for row in days["train"])
    known = sorted(name for name, count in counts.items() if count >= 100)
    symbols = {column: sorted({row[column] for rows in days.values() for row in rows}) for column in (1, 2, 3)}
    found: dict[str, Array] = {}
    for day, rows in days.items():
        numbers = [[float(value) for column, value in enumerate(row[:41]) if column not in symbols] for row in rows]
        one_hot = [
            [row[column] == value for column, values in symbols.items() for value in values if value != ""] for row in rows
        ]
        found[day] = np.concatenate([np.log1p(np.abs(numbers)), np.array(one_hot, float)], axis=1)
        found[f"{day}_y"] = np.array([known.index(row[41]) if row[41] in known else -1 for row in rows])
    mean, std = found["train"].mean(0), found["train"].std(0)
    for day in days:
        found[day] = ((found[day] - mean) / np.where(std > 0, std, 1)).astype(np.float32)
    return found


def _nsl_parts(root: Path, seed: int, part: Part) -> tuple[Labelled, Array, Labelled, Array]:
    """Known and unknown rows of the test day: to draw from, and to measure on."""
    data, fixed, rng = _nsl_kdd(root), np.random.default_rng(0), np.random.default_rng(seed)
    x, y = data["test"], data["test_y"]
    known, unknown = fixed.permutation(np.flatnonzero(y >= 0)), fixed.permutation(np.flatnonzero(y < 0))
    known_test, unknown_test, known, unknown = known[:3500], unknown[:2000], known[3500:], unknown[2000:]
    known, unknown = rng.permutation(known), rng.permutation(unknown)
    if part == "validation":
        known_test, unknown_test, known, unknown = known[:2500], unknown[:1500], known[2500:], unknown[1500:]
    return (x[known], y[known]), x[unknown], (x[known_test], y[known_test]), x[unknown_test]


def nsl_same_day(root: Path, seed: int, part: Part, pi: float, *, norm: bool) -> Habitat:
    """Known and unknown rows of one day."""
    (x, y), unknown, test_id, test_ood = _nsl_parts(root, seed, part)
    size = 7000 if part == "test" else 5000
    labelled, rest = (x[:size], y[:size]), (x[size:], y[size:])
    (holdout, fresh, wild_id) = _cut(rest, 1500, 500)
    wild, wild_ood = mixture_of(wild_id[0][:4000], unknown[:1700], pi, seed)
    model = trained(mlp(x.shape[1], 10, norm=norm), labelled, seed, epochs=20)
    return Habitat(model, labelled, wild, holdout, fresh, test_id, test_ood, wild_ood=wild_ood)


def nsl_next_day(root: Path, seed: int, part: Part, pi: float, *, norm: bool) -> Habitat:
    """Labelled rows of the training day; everything else is of the test day."""
    data = _nsl_kdd(root)
    known_before = data["train_y"] >= 0
    labelled = data["train"][known_before], data["train_y"][known_before]
    rest, unknown, test_id, test_ood = _nsl_parts(root, seed, part)
    holdout, fresh, wild_id = _cut(rest, 2000, 2400)
    wild, wild_ood = mixture_of(wild_id[0][:6000], unknown[:2500], pi, seed)
    model = trained(mlp(labelled[0].shape[1], 10, norm=norm), labelled, seed, epochs=10)
    return Habitat(model, labelled, wild, holdout, fresh, test_id, test_ood, wild_ood=wild_ood)


# --- text -----------------------------------------------------------------------------------------------------------------


def clinc(root: Path, seed: int, part: Part, pi: float, *, network: Literal["linear", "mlp", "tokens"]) -> Habitat:
    """Intents and out-of-scope queries, as sentence embeddings or as numbers of words."""
    data = _clinc_tokens(root) if network == "tokens" else _clinc_embeddings(root)
    fixed, rng = np.random.default_rng(0), np.random.default_rng(seed)
    known, unknown = fixed.permutation(len(data["id_x"])), fixed.permutation(len(data["ood_x"]))
    known_test, unknown_test, known, unknown = known[:2500], unknown[:500], known[2500:], unknown[500:]
    known, unknown = rng.permutation(known), rng.permutation(unknown)
    if part == "validation":
        known_test, unknown_test, known, unknown = known[:1000], unknown[:200], known[1000:], unknown[200:]
    holdout, fresh, wild_id = _cut((data["id_x"][known], data["id_y"][known]), 1500, 200)
    wild, wild_ood = mixture_of(wild_id[0][:3000], data["ood_x"][unknown], pi, seed)
    labelled = data["train_x"], data["train_y"]
    torch.manual_seed(seed)
    if network == "tokens":
        model = trained(BagOfTokens(int(labelled[0].max()) + 1, 150), labelled, seed, epochs=15, lr=3e-3)
    elif network == "linear":
        model = trained(nn.Linear(384, 150), labelled, seed, epochs=15, lr=2e-2)
    else:
        body = nn.Sequential(nn.Linear(384, 512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, 150))
        model = trained(body, labelled, seed, epochs=15, lr=3e-3)
    test_id = data["id_x"][known_test], data["id_y"][known_test]
    return Habitat(model, labelled, wild, holdout, fresh, test_id, data["ood_x"][unknown_test], wild_ood=wild_ood)


@cache
def _clinc_embeddings(root: Path) -> dict[str, Array]:
    with np.load(root / "clinc150_minilm.npz") as file:
        parts = {name: file[name].astype(np.float32 if name.endswith("_x") else np.int64) for name in file}
    return _clinc_parts(parts)


@cache
def _clinc_tokens(root: Path, length: int = 20, least: int = 2) -> dict[str, Array]:
    """Texts as rows of word numbers: 0 pads, 1 stands for words that are rare in the training texts."""
    rows = json.loads((root / "clinc150.json").read_text(encoding="utf-8"))
    counts = Counter(word for text, _ in rows["train"] for word in text.split())
    numbers = {word: 2 + place for place, word in enumerate(sorted(w for w, c in counts.items() if c >= least))}
    classes = sorted({intent for _, intent in rows["train"]})
    parts: dict[str, Array] = {}
    for name, texts in rows.items():
        ids = np.zeros((len(texts), length), np.int64)
        for row, (text, _) in zip(ids, texts, strict=True):
            words = [numbers.get(word, 1) for word in text.split()][:length]
            row[: len(words)] = words
        parts[f"{name}_x"] = ids
        parts[f"{name}_y"] = np.array([classes.index(intent) if intent in classes else -1 for _, intent in texts])
    return _clinc_parts(parts)


def _clinc_parts(parts: dict[str, Array]) -> dict[str, Array]:
    return {
        "train_x": parts["train_x"],
        "train_y": parts["train_y"],
        "id_x": np.concatenate([parts["val_x"], parts["test_x"]]),
        "id_y": np.concatenate([parts["val_y"], parts["test_y"]]),
        "ood_x": np.concatenate([parts["oos_train_x"], parts["oos_val_x"], parts["oos_test_x"]]),
    }


class BagOfTokens(nn.Module):
    """A small network on rows of word numbers: the mean of their embeddings, LayerNorm, one hidden layer."""

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 128, padding_idx=0)
        self.body = nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 256), nn.GELU(), nn.Dropout(0.2))
        self.head = nn.Linear(256, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """One logit per class for each row."""
        here = (ids > 0).unsqueeze(-1)
        mean = (self.embedding(ids) * here).sum(1) / here.sum(1).clamp(min=1)
        logits: Tensor = self.head(self.body(mean))
        return logits


# --- images ---------------------------------------------------------------------------------------------------------------


def digits(_root: Path, seed: int, part: Part, pi: float) -> Habitat:
    """The demo's digits: 0 to 6 known, 7 to 9 unknown."""
    split = digits_split(seed, part)
    assert isinstance(split.wild, WildMixture)  # noqa: S101 - digits_split mixes some
    labelled, holdout, test_id = ((np.asarray(x), np.asarray(y)) for x, y in (split.labelled, split.holdout, split.test_id))
    known, unknown = (one_tensor(pool.gather(torch.arange(len(pool)))[0], "digits").numpy() for pool in split.wild.pools)
    wild, wild_ood = mixture_of(known, unknown, pi, seed)
    torch.manual_seed(seed)
    model = trained(SmallCNN(7), labelled, seed, epochs=30, lr=3e-3, spec=split.spec)
    (test_ood,) = split.tests.values()
    none = holdout[0][:0], holdout[1][:0]
    return Habitat(model, labelled, wild, holdout, none, test_id, np.asarray(test_ood), split.spec, wild_ood)


def cifar10(root: Path, seed: int, part: Part, pi: float, *, ood: str, half: bool) -> Habitat:
    """CIFAR-10 with a ResNet-20; with `half`, one that has not seen the wild images."""
    with np.load(root / "cifar10.npz") as file:
        train = file["train_images"], file["train_labels"].astype(np.int64)
        test = file["test_images"], file["test_labels"].astype(np.int64)
    with np.load(root / f"{ood}.npz") as file:
        unknown = np.random.default_rng(0).permutation(file["images"])
    rng, seen = np.random.default_rng(seed), int(0.7 * len(unknown))
    unknown, test_ood = rng.permutation(unknown[:seen]), unknown[seen:]
    if part == "validation":
        test_ood, unknown = np.split(unknown, [int(0.3 * seen)])
    if half:
        labelled, order = np.arange(10_000), 10_000 + rng.permutation(10_000)
        wild_id, holdout_rows, rest = np.split(order, [5_000, 6_000])
        holdout = train[0][holdout_rows], train[1][holdout_rows]
        tried = (train[0][rest], train[1][rest]) if part == "validation" else test
        fresh = (train[0][rest], train[1][rest]) if part == "test" else (train[0][:0], train[1][:0])
        weights = "resnet20-cifar10-half"
    else:
        labelled, wild_id = np.split(rng.permutation(20_000), [10_000])
        holdout = test[0][:1000], test[1][:1000]
        own = slice(1000, 2500) if part == "validation" else slice(2500, None)
        tried, fresh, weights = (test[0][own], test[1][own]), (test[0][:0], test[1][:0]), "resnet20-cifar10"
    wild = WildMixture(id=train[0][wild_id], ood=unknown, pi=pi)
    known = train[0][labelled], train[1][labelled]
    return Habitat(resnet20(root, weights), known, wild, holdout, fresh, tried, test_ood, SPEC, unknown)


def cifar100(root: Path, seed: int, part: Part, pi: float, *, ood: str) -> Habitat:
    """CIFAR-100 with a DenseNet, of which only the last layer is trained: the features are computed once."""
    data = _dense_features(root)
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(0)
    test, unknown = fixed.permutation(len(data["test_y"])), fixed.permutation(data[ood])
    seen = int(0.7 * len(unknown))
    unknown, test_ood = rng.permutation(unknown[:seen]), unknown[seen:]
    holdout, tried = test[:1000], test[1000:]
    if part == "validation":
        test_ood, unknown = np.split(unknown, [int(0.3 * seen)])
    labelled, wild_id = np.split(rng.permutation(8000), [4000])
    own = tried[:500] if part == "validation" else tried[500:]
    wild, wild_ood = mixture_of(data["train"][wild_id], unknown, pi, seed)
    model = nn.Linear(342, 100)
    state = load_file(root / "weights" / "densenet-cifar100.safetensors")
    model.load_state_dict({"weight": state["fc.weight"], "bias": state["fc.bias"]})

    def rows(of: str, chosen: Array) -> Labelled:
        return data[of][chosen], data[f"{of}_y"][chosen]

    parts = (rows("train", labelled), wild, rows("test", holdout), rows("test", test[:0]), rows("test", own))
    return Habitat(model, *parts, test_ood, wild_ood=wild_ood)


@cache
def _dense_features(root: Path) -> dict[str, Array]:
    """The features of the CIFAR-100 images and of two OOD sets."""
    with np.load(root / "cifar100_id.npz") as file:
        images = {name: file[f"{name}_images"] for name in ("train", "test")}
        labels = {f"{name}_y": file[f"{name}_labels"].astype(np.int64) for name in ("train", "test")}
    for name in ("svhn", "places"):
        with np.load(root / f"{name}.npz") as file:
            images[name] = file["images"][:3000]
    return dense_features(root, "densenet-cifar100", images) | labels


def dense_features(root: Path, weights: str, images: dict[str, Array]) -> dict[str, Array]:
    """A DenseNet's features of some images."""
    state = load_file(root / "weights" / f"{weights}.safetensors")
    network = DenseNet(len(state["fc.bias"]))
    network.load_state_dict(state)
    return kept(weights, lambda: {name: network.eval().features_of(each) for name, each in images.items()})


def kept(name: str, compute: Callable[[], dict[str, Array]]) -> dict[str, Array]:
    """Arrays that take minutes to compute, kept in a file of this directory."""
    path = Path(__file__).parent / ".cache" / f"{name}.npz"
    if not path.exists():
        found = compute()
        path.parent.mkdir(exist_ok=True)
        written = BytesIO()
        np.savez(written, **found)  # type: ignore[arg-type]
        write_atomically(path, written.getvalue())
    with np.load(path) as file:
        return dict(file)


class DenseNet(nn.Module):
    """DenseNet-BC with 100 layers and growth 12, as the DICE paper's repository has it."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 24, 3, padding=1, bias=False)
        channels = 24
        for block in (1, 2, 3):
            layers = nn.ModuleDict({str(number): DenseLayer(channels + 12 * number) for number in range(16)})
            setattr(self, f"block{block}", nn.ModuleDict({"layer": layers}))
            channels += 16 * 12
            if block < 3:
                halved = nn.Conv2d(channels, channels // 2, 1, bias=False)
                setattr(self, f"trans{block}", nn.ModuleDict({"bn1": nn.BatchNorm2d(channels), "conv1": halved}))
                channels //= 2
        self.bn1, self.fc = nn.BatchNorm2d(channels), nn.Linear(channels, classes)

    def features(self, x: Tensor) -> Tensor:
        """What the last layer takes."""
        x = self.conv1(x)
        for block in (1, 2, 3):
            for layer in getattr(self, f"block{block}")["layer"].values():
                x = torch.cat([x, layer(x)], 1)
            if block < 3:
                transition = getattr(self, f"trans{block}")
                x = F.avg_pool2d(transition["conv1"](F.relu(transition["bn1"](x))), 2)
        return F.avg_pool2d(F.relu(self.bn1(x)), 8).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """One logit per class for each image."""
        logits: Tensor = self.fc(self.features(x))
        return logits

    @torch.no_grad()
    def features_of(self, images: Array) -> Array:
        """The features of uint8 images."""
        spec = InputSpec(mean=(125.3 / 255, 123.0 / 255, 113.9 / 255), std=(63.0 / 255, 62.1 / 255, 66.7 / 255))
        found = [
            self.features(spec(torch.from_numpy(part))).numpy() for part in np.split(images, range(100, len(images), 100))
        ]
        return np.concatenate(found)


class DenseLayer(nn.Module):
    """The twelve channels that a layer adds."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, 48, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(48), nn.Conv2d(48, 12, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """These channels."""
        new: Tensor = self.conv2(F.relu(self.bn2(self.conv1(F.relu(self.bn1(x))))))
        return new


# --- shared ---------------------------------------------------------------------------------------------------------------


def mixture_of(known: Array, unknown: Array, pi: float, seed: int) -> tuple[Array, Array]:
    """Traffic with a share pi of unknowns, as large as the two pools allow; and the unknown ones of it."""
    count = int(min(len(known) / (1 - pi), len(unknown) / pi if pi else np.inf))
    strange = unknown[: round(pi * count)]
    wild = np.concatenate([known[: count - len(strange)], strange])
    return np.random.default_rng(seed).permutation(wild), strange


def mlp(inputs: int, classes: int, *, norm: bool) -> nn.Module:
    """Two hidden layers, with BatchNorm before each ReLU or without."""
    if not norm:
        return MLP(inputs, classes, hidden=(256, 128))
    layers: list[nn.Module] = []
    for before, after in ((inputs, 256), (256, 128)):
        layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(128, classes))


def trained(
    model: nn.Module, labelled: Labelled, seed: int, epochs: int, lr: float = 1e-3, spec: InputSpec | None = None
) -> nn.Module:
    """The classifier that a user would have: AdamW, cross-entropy, batches of 128."""
    torch.manual_seed(seed)
    for module in model.modules():
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
    x, y = (torch.from_numpy(np.asarray(each)) for each in labelled)
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-2)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(x)), 128):
            if len(rows) < 2:
                continue
            batch = x[rows] if spec is None else spec(x[rows])
            optimiser.zero_grad()
            F.cross_entropy(model(batch), y[rows]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return model.eval()


def _cut(known: Labelled, *sizes: int) -> list[Labelled]:
    """Parts of these sizes, one after the other, and the rest."""
    edges = np.cumsum(sizes)
    return list(zip(np.split(known[0], edges), np.split(known[1], edges), strict=True))
