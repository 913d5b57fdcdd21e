"""Models that take dicts, tuples or objects, datasets of these, and models that return their logits in other ways."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import wildood
from wildood.data.validation import labelled_source

RNG = np.random.default_rng(0)
SHORT = wildood.Schedule(steps=30, batch=32)


class Texts(nn.Module):
    """Three classes of word numbers: the mean of their embeddings, and a last layer."""

    def __init__(self):
        super().__init__()
        self.embedding, self.last = nn.Embedding(50, 16), nn.Linear(16, 3)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask.unsqueeze(-1)
        return {"logits": self.last((self.embedding(input_ids) * mask).sum(1) / mask.sum(1))}


def texts(count, words, length=8):
    """Word numbers of each example from its own ten words."""
    ids = 10 * words[:, None] + RNG.integers(0, 10, (count, length))
    return {"input_ids": ids, "attention_mask": np.ones((count, length), bool)}


def known(count, length=8):
    y = RNG.integers(0, 3, count)
    return texts(count, y, length), y


def unknown(count, length=8):
    return texts(count, np.full(count, 3), length)


def both(first, second):
    return {name: np.concatenate([first[name], second[name]]) for name in first}


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    model, (x, y) = Texts(), known(600)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(**tensors(x))["logits"], torch.from_numpy(y)).backward()
        optimiser.step()
    return model.eval()


def tensors(x):
    return {name: torch.from_numpy(part) for name, part in x.items()}


@pytest.fixture(scope="module")
def data():
    return known(600), both(known(540)[0], unknown(60)), known(200)


@pytest.fixture(scope="module")
def detector(trained, data):
    return wildood.fit(trained, *data, schedule=SHORT, keep="last", verbose=False)


def test_a_model_of_named_inputs_is_fitted_and_catches_unknowns(detector):
    assert np.mean(detector.predict(unknown(200)) == wildood.UNKNOWN) > 0.9
    assert np.mean(detector.predict(known(200)[0]) == wildood.UNKNOWN) < 0.15


def test_parts_may_have_other_sizes_as_padded_texts_have(detector):
    assert detector.predict(unknown(7, length=5)).shape == (7,)


def test_it_is_saved_and_loaded(detector, tmp_path):
    again = wildood.load(detector.save(tmp_path), model=Texts())
    x = unknown(20)
    assert np.array_equal(again.score(x), detector.score(x))
    assert again.example == detector.example


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (unknown(3)["input_ids"], "x is one array, expected a dict of 'input_ids', 'attention_mask'"),
        (
            {"input_ids": unknown(3)["input_ids"]},
            "x is a dict of 'input_ids', expected a dict of 'input_ids', 'attention_mask'",
        ),
        (tuple(unknown(3).values()), "x is a tuple of '0', '1', expected a dict of"),
        (unknown(3) | {"attention_mask": np.ones((3, 8))}, r"x\['attention_mask'\] holds float values, expected bool"),
        (
            unknown(3) | {"attention_mask": np.ones((2, 8), bool)},
            r"parts of different lengths \(3 in x\['input_ids'\], 2 in",
        ),
    ],
)
def test_other_parts_are_refused_by_name(detector, x, message):
    with pytest.raises(wildood.InputError, match=message):
        detector.predict(x)


def test_labels_may_be_a_part_of_the_dict(trained, data, detector):
    (x, y), wild, (x_holdout, y_holdout) = data
    given = x | {"labels": y}, wild, x_holdout | {"label": y_holdout}
    again = wildood.fit(trained, *given, schedule=SHORT, keep="last", verbose=False)
    assert np.array_equal(again.score(wild), detector.score(wild))


class Items(Dataset):
    """Items of a dict of arrays, as a Hugging Face dataset gives them: lists of numbers, and the class as "label"."""

    def __init__(self, x, y=None):
        self.x, self.y, self.reads = x, y, 0

    def __len__(self):
        return len(self.x["input_ids"])

    def __getitem__(self, index):
        self.reads += 1
        item = {name: part[index].tolist() for name, part in self.x.items()}
        return item if self.y is None else item | {"label": int(self.y[index])}


def test_a_dataset_of_dicts_gives_what_its_arrays_give(trained, data, detector):
    labelled, wild, holdout = data
    datasets = Items(*labelled), Items(wild), Items(*holdout)
    again = wildood.fit(trained, *datasets, schedule=SHORT, keep="last", verbose=False)
    assert np.array_equal(again.score(wild), detector.score(wild))
    assert datasets[1].reads < 2 * len(datasets[1])  # items that do not change are read once, and a few to see that


class Cut(Items):
    """Items of different lengths."""

    def __getitem__(self, index):
        item, length = super().__getitem__(index), 3 + index % 5
        return {name: value[:length] if isinstance(value, list) else value for name, value in item.items()}


def pad(items):
    longest = max(len(item["input_ids"]) for item in items)
    padded = {
        name: torch.tensor([item[name] + [0] * (longest - len(item[name])) for item in items])
        for name in ("input_ids", "attention_mask")
    }
    return padded | ({"labels": torch.tensor([item["label"] for item in items])} if "label" in items[0] else {})


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_its_dataset_its_collate_fn_and_its_workers(trained, data, workers, caplog):
    labelled, wild, holdout = data
    loaders = [DataLoader(Cut(*each), collate_fn=pad, num_workers=workers) for each in (labelled, (wild,), holdout)]
    with caplog.at_level("INFO", logger="wildood"):
        detector = wildood.fit(trained, *loaders, schedule=SHORT, keep="last", allow_duplicates=True)
    assert "wild: of the DataLoader, the dataset, collate_fn and workers are used; its batch size and its order are not" in (
        caplog.text
    )
    assert np.mean(detector.predict(unknown(200)) == wildood.UNKNOWN) > 0.9


def test_items_of_different_lengths_without_a_collate_fn_are_refused(trained, data):
    with pytest.raises(wildood.InputError, match=r"wild: examples have different shapes.* a collate_fn that pads them"):
        wildood.fit(trained, data[0], Cut(data[1]), data[2], schedule=SHORT, verbose=False)


class Pair(nn.Module):
    """Two inputs; the logit of the second class is the first output."""

    def __init__(self, output):
        super().__init__()
        self.layer, self.output = nn.Bilinear(4, 4, 1), output

    def forward(self, left, right):
        return self.output(self.layer(left, right))


def pairs(count, scale=1.0):
    left, right = (scale * RNG.normal(size=(count, 4)).astype(np.float32) for _ in range(2))
    return (left, right), (np.sum(left * right, 1) > 0).astype(np.int64)


@pytest.mark.parametrize("output", [lambda z: z, lambda z: (z, "more"), lambda z: {"logits": z[:, 0]}])
def test_a_model_of_two_inputs_with_one_logit(output):
    model = Pair(output)
    with torch.no_grad():
        model.layer.weight.copy_(3 * torch.eye(4)[None]), model.layer.bias.zero_()
    wild = tuple(np.concatenate([a, b]) for a, b in zip(pairs(270)[0], pairs(30, 20.0)[0], strict=True))
    detector = wildood.fit(model, pairs(300), wild, pairs(200), schedule=SHORT, verbose=False)
    x, y = pairs(100)
    assert detector.predict_proba(x).shape == (100, 2)
    assert np.mean(detector.classify(x) == y) > 0.95
    assert detector.calibrate(pairs(100)).promise.examples == 100
    assert detector.calibrate(pairs(100)[0]).promise.examples == 100


class Odd(nn.Module):
    """A model that neither a tensor nor names suit."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, request):
        assert isinstance(request, str)
        return self.layer.weight


def test_a_function_may_call_the_model_and_is_needed_again_to_load_it(tmp_path):
    def forward(model, x):
        return model.layer(x["a"] - x["b"])

    def examples(count):
        a, b = (RNG.normal(size=(count, 4)).astype(np.float32) for _ in range(2))
        return {"a": a, "b": b}, RNG.integers(0, 2, count)

    detector = wildood.fit(
        Odd(), examples(200), examples(200)[0], examples(100), forward=forward, schedule=SHORT, verbose=False, device="cpu"
    )
    x = examples(5)[0]
    place = detector.save(tmp_path)
    assert np.array_equal(wildood.load(place, model=Odd(), forward=forward).score(x), detector.score(x))
    with pytest.raises(wildood.DetectorFileError, match="needs the function that fit was given: pass forward="):
        wildood.load(place, model=Odd())


def test_a_wrapped_model_is_unwrapped(trained, data, detector):
    again = wildood.fit(nn.DataParallel(trained), *data, schedule=SHORT, keep="last", verbose=False)
    assert isinstance(again.classifier.model, Texts)
    assert np.array_equal(again.score(data[1]), detector.score(data[1]))


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_line_says_once_that_the_first_item_of_a_tuple_is_taken(precision, caplog):
    x = RNG.normal(size=(400, 4)).astype(np.float32)
    data = (x[:200], RNG.integers(0, 2, 200)), x[200:300], (x[300:], RNG.integers(0, 2, 100))

    class Tuple(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            return self.layer(x), "attention"

    with caplog.at_level("INFO", logger="wildood"):
        wildood.fit(Tuple(), *data, schedule=wildood.Schedule(steps=2, batch=32), precision=precision)
    assert caplog.text.count("its first item is taken as logits") == 1


@pytest.mark.parametrize("device", ["meta", 77, "nonsense"])
def test_what_is_no_device_is_refused(device, trained, data):
    for call in (wildood.fit, wildood.pretrain):
        arguments = data if call is wildood.fit else (data[0],)
        with pytest.raises(wildood.InputError, match=f"device is '?{device}'?, which torch cannot use here: give 'cpu'"):
            call(trained, *arguments, device=device, schedule=SHORT, verbose=False)


def test_a_device_that_is_not_there_is_refused(trained, data):
    with pytest.raises(wildood.InputError, match="device is 'cuda:77', which torch cannot use here: give 'cpu'"):
        wildood.fit(trained, *data, device="cuda:77", schedule=SHORT, verbose=False)


@pytest.mark.parametrize("score", [wildood.MaxSoftmax(), wildood.Knn(k=5), wildood.Mahalanobis(epsilon=0.0), wildood.Vim()])
def test_post_hoc_scores_take_structures(trained, data, score):
    found = wildood.posthoc(trained, score, labelled=data[0], holdout=data[2])
    assert np.isfinite(found.score(unknown(10))).all()


def test_a_step_on_the_input_is_refused(trained, data):
    with pytest.raises(wildood.InputError, match=r"a step on the input .* is for models that take one array"):
        wildood.posthoc(trained, wildood.Odin(epsilon=0.01), labelled=data[0], holdout=data[2])


@pytest.mark.parametrize(
    "settings", [{"method": wildood.WoodsAlt()}, {"frozen": True}, {"method": wildood.OutlierExposure()}]
)
def test_other_methods_and_frozen_features_take_structures(trained, data, settings):
    found = wildood.fit(trained, *data, schedule=SHORT, keep="last", verbose=False, **settings)
    assert np.mean(found.predict(unknown(100)) == wildood.UNKNOWN) > 0.5


@pytest.mark.parametrize(
    "sampler",
    [
        torch.utils.data.SubsetRandomSampler(range(10)),
        torch.utils.data.WeightedRandomSampler([1.0] * 30, 30),
        torch.utils.data.RandomSampler(range(30), replacement=True, num_samples=7),
    ],
)
def test_a_loader_whose_sampler_selects_examples_is_refused(sampler):
    data = torch.utils.data.TensorDataset(torch.zeros(30, 2), torch.zeros(30, dtype=torch.int64))
    batches = torch.utils.data.BatchSampler(sampler, 5, drop_last=False)
    for loader in (DataLoader(data, sampler=sampler), DataLoader(data, batch_sampler=batches)):
        with pytest.raises(
            wildood.InputError, match="Sampler of the DataLoader selects examples, but only its dataset is read"
        ):
            labelled_source(loader, "labelled")
    assert len(labelled_source(DataLoader(data, shuffle=True, batch_size=7, drop_last=True), "labelled")) == 30
