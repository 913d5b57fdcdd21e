"""`wildood.inspect` as a user calls it: what it takes, what it returns, shows and writes, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import wildood
from wildood.cli.main import FOUND, main
from wildood.data.images import Images
from wildood.models.small import SmallCNN
from wildood.report import page as report_page

OWN = "import torch\n\ndef build():\n    return torch.nn.Linear(2, 2)\n"
RNG = np.random.default_rng(0)


def known(count):
    return (RNG.normal(size=(count, 2)) + 5).astype("float32")


HOLDOUT, FRESH = known(300), known(250)
MIXED = np.concatenate([known(160), 0.1 * RNG.normal(size=(40, 2)).astype("float32")])


def names(place):
    return sorted(path.name for path in place.iterdir())


def posthoc(**settings):
    """Its energy is high near the origin, where nothing is known."""
    model = torch.nn.Linear(2, 2)
    model.weight.data, model.bias.data = torch.eye(2), torch.zeros(2)
    return wildood.posthoc(model, wildood.EnergyScore(), **{"holdout": HOLDOUT} | settings)


@pytest.fixture(scope="module")
def detector():
    return posthoc()


@pytest.fixture(scope="module")
def inspection(detector):
    return wildood.inspect(detector, wild=MIXED, top=6)


def test_what_is_found_is_what_the_detector_says_of_the_share(detector, inspection):
    assert inspection.found is True
    assert inspection.unknown == detector.unknown_share(MIXED)
    assert inspection.rejected.count == np.sum(detector.predict(MIXED) == wildood.UNKNOWN)
    assert [row["number"] for row in inspection.to_dict()["most_ood"]] == np.argsort(-detector.score(MIXED))[:6].tolist()


@pytest.fixture
def files(detector, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    detector.save("d")
    np.save("mixed.npy", MIXED)
    np.save("fresh.npy", FRESH)
    (tmp_path / "linear_of_two.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("with_id", [False, True])
def test_the_command_writes_what_python_returns(files, with_id):
    words = ["inspect", "d", "--wild", "mixed.npy", "--top", "6", *(["--id", "fresh.npy"] if with_id else [])]
    assert main([*words, "--quiet", "--model", "linear_of_two:build", "--out", "typed"]) == FOUND
    typed = json.loads((files / "typed" / "inspection.json").read_text())
    loaded = wildood.load("d", model=torch.nn.Linear(2, 2))
    fresh = wildood.open_images("fresh.npy") if with_id else None
    called = wildood.inspect(loaded, wildood.open_images("mixed.npy"), id=fresh, top=6)
    assert called.save("called") == Path("called")
    assert names(files / "called") == names(files / "typed") == ["inspection.json", "report.html"]
    written = (files / "called" / "inspection.json").read_text()
    assert json.loads(written) == called.to_dict()
    # A command names its option, Python its argument.
    of_python = json.dumps(typed).replace("examples with --id", "examples with id=x").replace("--id", "id")
    assert json.loads(of_python) == json.loads(written)
    page = (files / "called" / "report.html").read_text()
    assert "--id" not in page
    assert "Made in Python, by wildood.inspect." in page
    assert "The same command on the same files gives the same page." in (files / "typed" / "report.html").read_text()


@pytest.mark.parametrize("form", [torch.tensor, list, lambda x: TensorDataset(torch.tensor(x)), Images])
def test_traffic_comes_in_every_form_that_fit_takes(detector, inspection, form):
    wild = form(MIXED) if form is not list else TensorDataset(torch.tensor(MIXED), torch.zeros(200))  # labels are ignored
    found = wildood.inspect(detector, wild, top=6)
    assert found.to_dict() == inspection.to_dict()


def test_a_simulated_mixture_is_traffic(detector):
    mixture = wildood.WildMixture(id=FRESH, ood=np.zeros((200, 2), "f"), pi=0.3)
    found = wildood.inspect(detector, mixture)
    assert 0.15 < found.unknown.bound < 0.3
    assert "of wild are rejected" in repr(found)


@pytest.mark.parametrize("form", [lambda x: x, lambda x: (x, np.zeros(len(x), int)), torch.tensor])
def test_id_examples_take_the_holdouts_place(detector, form):
    found = wildood.inspect(detector, MIXED, id=form(FRESH))
    assert found.known_name == "id"
    assert "250 ID and 200 wild scores), compared with id;" in found.says
    assert found.promise.rate.examples == 250
    assert found.to_dict()["unknown"]["compared_with"] == "id"


def test_repr_is_four_lines_that_name_arguments(detector, inspection):
    lines = repr(inspection).splitlines()
    assert [line[:13].strip() for line in lines] == ["traffic", "unknown", "promise", "label first"]
    assert lines[0].endswith(" of wild are rejected")
    assert lines[1] == f"unknown      {inspection.says}"
    assert lines[2].endswith("cannot be told from unlabelled traffic: give recent ID examples with id=x")
    assert lines[3].endswith(", ...")
    assert lines[3].count(", ") == 5
    untrusted = wildood.inspect(posthoc(holdout=None, labelled=known(400)), MIXED)
    assert untrusted.says.endswith("calibrate it on unseen examples, or give some with id=x")


def test_html_for_notebooks_is_the_same_and_escaped(detector, parse):
    found = wildood.inspect(detector, Images(MIXED, where="<b>inbox</b>"), top=2)
    html = found._repr_html_()
    assert "<b>" not in html
    assert parse(html).rows() == {name: [text] for name, text in found.summary.items()}
    assert "of <b>inbox</b> are rejected" in found.summary["traffic"]


def test_to_dict_is_json_ready_and_a_copy(inspection):
    found = inspection.to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    found["unknown"]["bound"] = 7
    assert inspection.to_dict()["unknown"]["bound"] == inspection.unknown.bound


def test_traffic_that_set_the_threshold_is_not_tested(detector):
    found = wildood.inspect(detector, HOLDOUT)
    assert (found.unknown, found.found) == (None, False)
    assert found.untested.startswith("these examples set the detector's threshold")


def test_without_matplotlib_all_but_the_page_is_saved(inspection, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(report_page, "plots_installed", lambda: False)
    assert inspection.save(tmp_path / "a") == tmp_path / "a"
    assert names(tmp_path / "a") == ["inspection.json"]
    assert "pip install matplotlib" in caplog.messages[0]


def test_pictures_are_shown():
    rng = np.random.default_rng(1)
    spec, holdout = wildood.InputSpec(mean=(0.5,), std=(0.5,)), rng.integers(0, 256, (99, 8, 8, 1), dtype=np.uint8)
    detector = wildood.posthoc(SmallCNN(2, width=4, hidden=8), wildood.EnergyScore(), holdout=holdout, input=spec)
    wild = torch.tensor(rng.integers(0, 256, (50, 8, 8, 1), dtype=np.uint8))
    pages = [wildood.inspect(detector, x, top=5).page() for x in (wild, TensorDataset(wild), wild.numpy())]
    assert pages[0] == pages[1] == pages[2]
    assert pages[0].count("data:image/png;base64,") == 10


MISTAKES = {
    "no detector": ({"detector": None}, "detector is a NoneType: give what fit, posthoc or load returned"),
    "labels": ({"wild": (MIXED, MIXED)}, "wild: x is a tuple of 2: give x alone, as one array, without labels"),
    "shape": ({"wild": MIXED[:, :1]}, r"wild: an example has shape \(1,\), expected \(2,\)"),
    "shape of id": ({"id": MIXED[:, :1]}, r"id: an example has shape \(1,\), expected \(2,\)"),
    "itself": ({"id": MIXED.copy()}, "id is the traffic itself: give other examples, known to be ID"),
    "used": ({"id": HOLDOUT}, "id: these examples set the detector's threshold: give ID examples that nothing has seen"),
    "a path": ({"wild": "new.npz"}, "wild is a str: give wild=x with arrays or tensors, or a map-style Dataset"),
    "confidence": ({"confidence": 1.0}, "confidence is 1.0: give a probability strictly between"),
    "top": ({"top": 0}, "top is 0: give a number of examples to show, at least 1"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_one_line(detector, mistake):
    wrong, message = MISTAKES[mistake]
    with pytest.raises(wildood.InputError, match=f"^{message}") as caught:
        wildood.inspect(**{"detector": detector, "wild": MIXED} | wrong)
    assert "\n" not in str(caught.value)
