"""`wildood.evaluate` as a user calls it: what it takes, what it returns, shows and writes, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import wildood
from wildood.cli.main import main
from wildood.data.images import Images
from wildood.experiments.evaluation import Evaluation, SetDecisions, check_on_known, evaluate_decisions
from wildood.models.small import SmallCNN
from wildood.report import page as report_page
from wildood.report.evaluation import measure

RNG = np.random.default_rng(0)
CLASSES = 3
OWN = "import torch\n\ndef build():\n    return torch.nn.Linear(2, 3)\n"
FILES = ["metrics.json", "report.html", "table.md", "table.tex"]


class Items(Dataset):
    """Items of a list, as a user's dataset gives them; with noise, other ones at each reading."""

    def __init__(self, items, *, noisy=False):
        self.items, self.noisy = items, noisy

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index] + np.random.default_rng().normal(size=2).astype("f") if self.noisy else self.items[index]


def points(count, shift=0.0):
    """Three corners of a triangle, and something else where they are shifted."""
    y = RNG.integers(0, CLASSES, count)
    corners = np.array([[4, 0], [0, 4], [-4, -4]])[y]
    return (RNG.normal(size=(count, 2)) * 1.5 + corners * (1 - shift)).astype("float32"), y


def posthoc(holdout, **settings):
    model = torch.nn.Linear(2, CLASSES)
    model.weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    model.bias.data.zero_()
    return wildood.posthoc(model, wildood.EnergyScore(), holdout=holdout, alpha=0.1, **settings)


X, Y = points(150)
FAR, NEAR = points(70, 1)[0], points(40, 0.6)[0]
HOLDOUT = points(300)


@pytest.fixture(scope="module")
def detector():
    return posthoc(HOLDOUT)


@pytest.fixture(scope="module")
def evaluation(detector):
    return wildood.evaluate(detector, id=(X, Y), ood={"far": FAR, "near": NEAR}, resamples=20)


def names(place):
    return sorted(path.name for path in place.iterdir())


def decisions(detector, x=X, y=Y, **settings):
    return SetDecisions.asked(detector, "test", Images(x, y, **settings))


def unknown(detector):
    return [SetDecisions.asked(detector, name, x) for name, x in (("far", FAR), ("near", NEAR))]


def test_the_numbers_are_those_of_the_decisions(detector, evaluation):
    expected = evaluate_decisions(SetDecisions.asked(detector, "id", (X, Y)), unknown(detector), resamples=20)
    assert {name: vars(evaluation)[name] for name in vars(expected)} == vars(expected)
    assert evaluation.promise == check_on_known(detector, evaluation.known, 0.95)
    assert evaluation.promise.rate == evaluation.id.false_alarms
    assert evaluation.classes == ["0", "1", "2"]
    assert evaluation.ood[0].caught.count == np.sum(detector.predict(FAR) == wildood.UNKNOWN)
    assert evaluation.id.accuracy.count == np.sum(detector.classify(X) == Y)


@pytest.fixture
def files(detector, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    detector.save("d")
    np.savez("test.npz", x=X, y=Y)
    np.save("far.npy", FAR)
    np.save("near.npy", NEAR)
    (tmp_path / "linear_of_three.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_command_writes_what_python_returns(files):
    words = ["evaluate", "d", "--id", "test.npz", "--ood", "far.npy", "near.npy", "--resamples", "20", "--quiet"]
    assert main([*words, "--model", "linear_of_three:build", "--out", "typed"]) == 0
    typed = json.loads((files / "typed" / "metrics.json").read_text())
    opened, sets = wildood.open_images("test.npz"), {name: wildood.open_images(name) for name in ("far.npy", "near.npy")}
    called = wildood.evaluate(wildood.load("d", model=torch.nn.Linear(2, 3)), id=opened, ood=sets, resamples=20)
    assert called.save("called") == Path("called")
    assert names(files / "called") == names(files / "typed") == FILES
    written = json.loads((files / "called" / "metrics.json").read_text())
    assert (written["command"], written["detector"].pop("directory")) == ("", "")
    assert typed["detector"].pop("directory") == "d"
    assert written == typed | {"command": ""}
    for name in ("table.md", "table.tex"):
        assert (files / "called" / name).read_text() == (files / "typed" / name).read_text()
    command, page = typed["command"], (files / "called" / "report.html").read_text()
    assert f"<dt>command</dt><dd>{command}</dd><dt>detector</dt><dd>d</dd>" in (files / "typed" / "report.html").read_text()
    assert "<dt>command</dt>" not in page
    assert "What this detector catches" in page


FORMS = {
    "tensors": lambda: (torch.tensor(X), torch.tensor(Y)),
    "list": lambda: [X, Y],
    "tensor dataset": lambda: TensorDataset(torch.tensor(X), torch.tensor(Y)),
    "pairs": lambda: Items(list(zip(X, Y, strict=True))),
    "images": lambda: Images(X, Y, classes=("a", "b", "c")),
    "named in another order": lambda: Images(X, 2 - Y, classes=("c", "b", "a"), where="pets/test"),
}


@pytest.mark.parametrize("form", FORMS)
def test_id_examples_come_with_labels_in_every_form_that_fit_takes(evaluation, form):
    detector = posthoc(HOLDOUT)
    detector.record["classes"] = ["a", "b", "c"]
    found = wildood.evaluate(detector, id=FORMS[form](), ood={"far": FAR, "near": NEAR}, resamples=20)
    name = "test" if form == "named in another order" else "id"  # which came from files
    assert found.id == replace(evaluation.id, name=name)
    assert found.ood == evaluation.ood
    assert list(found.classes) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "x", [X, torch.tensor(X), Items(list(X)), TensorDataset(torch.tensor(X))], ids=lambda x: type(x).__name__
)
def test_id_examples_without_labels_have_no_accuracy(detector, evaluation, x):
    found = wildood.evaluate(detector, id=x, ood=FAR, resamples=5)
    assert (found.id.accuracy, found.id.classes_are) == (None, "predicted")
    assert found.id.false_alarms == evaluation.id.false_alarms
    assert "accuracy" not in repr(found)


def test_one_ood_set_is_called_ood_or_as_its_files_are(detector, evaluation):
    for far, name in ((FAR, "ood"), (Items(list(FAR)), "ood"), (Images(FAR, where="data/far.npy"), "far.npy")):
        (found,) = wildood.evaluate(detector, id=X, ood=far, resamples=5).ood
        assert (found.name, found.caught) == (name, evaluation.ood[0].caught)


def test_the_labels_of_ood_examples_are_ignored(detector, evaluation):
    sets = {"far": Images(FAR, np.full(len(FAR), 99)), "near": Items([(x, 99) for x in NEAR])}
    found = wildood.evaluate(detector, id=(X, Y), ood=sets, resamples=20)
    assert found.ood == evaluation.ood


def test_a_shifted_set_is_measured_as_known_and_promised_nothing(detector, evaluation, parse):
    x, y = points(90, 0.3)
    shifted = {"shifted": (x, y)}
    found = wildood.evaluate(detector, id=(X, Y), ood={"far": FAR, "near": NEAR}, resamples=20, **shifted)
    assert (found.id, found.ood, found.promise) == (evaluation.id, evaluation.ood, evaluation.promise)
    assert (found.shifted.name, found.shifted.examples) == ("shifted", 90)
    assert found.shifted.accuracy.count == np.sum(detector.classify(x) == y)
    assert found.shifted.false_alarms.count == np.sum(detector.predict(x) == wildood.UNKNOWN)
    note = "shifted: known examples that have changed since the holdout; no rate is promised for them."
    assert note in repr(found)
    assert "shifted set: shifted" in repr(found)
    record = found.to_dict()
    assert (
        json.loads(json.dumps(record, allow_nan=False))["shifted"]["false_alarms"]["count"]
        == counted(found.shifted.false_alarms)[0]
    )
    assert set(record["shifted"]) == set(record["id"])
    panel = parse(found.page()).panel("What it costs where known data has changed")
    assert list(panel.rows()) == ["accuracy ↑", "accuracy of the accepted ↑", "false alarms ↓"]
    assert evaluation.shifted is None
    assert evaluation.to_dict()["shifted"] is None
    assert "where known data has changed" not in evaluation.page()


def test_repr_is_a_table_and_the_verdict(evaluation):
    tables, costs, notes = repr(evaluation).split("\n\n")
    head, _, far, near, mean = tables.splitlines()
    assert " ".join(head.split()) == "OOD set caught ↑ FPR95 ↓ AUROC ↑ AUPR-in ↑ AUPR-out ↑ examples"
    assert far.startswith("far ")
    assert f"{100 * evaluation.ood[0].caught.value:.1f} [" in far
    assert near.split()[0] == "near"
    assert mean.startswith("mean of the sets")
    assert costs.splitlines()[0].startswith("ID set: id")
    assert notes.splitlines() == [
        "In percent, with 95 % intervals in brackets.",
        f"False alarms: {evaluation.promise.says}.",
    ]


def test_html_for_notebooks_is_the_same_and_escaped(detector, parse):
    found = wildood.evaluate(detector, id=(X, Y), ood={"<b>far</b>": FAR, "near": NEAR}, resamples=5)
    html = found._repr_html_()
    tree = parse(html)
    assert "<b>" not in html
    assert len(tree.all("table")) == 2
    rows = [row.one("th").text for row in tree.all("tbody")[0].all("tr")]
    assert rows == ["<b>far</b>", "near", "mean of the sets"]
    assert tree.all("p")[-1].text == f"False alarms: {found.promise.says}."


def test_to_dict_is_json_ready(detector):
    detector = posthoc(HOLDOUT, by_class=True)
    detector.record["schedule"] = {"clip": float("inf"), "milestones": (0.5,)}
    found = wildood.evaluate(detector, id=(X, Y), ood=FAR, resamples=5).to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["id"]["data"] == found["id"]["name"] == "id"
    assert found["ood"][0]["mistakes"][0]["example"] == int(
        np.argmin(np.where(detector.predict(FAR) >= 0, detector.score(FAR), 9e9))
    )


def test_pictures_of_a_dataset_are_shown_as_those_of_an_array():
    rng = np.random.default_rng(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = SmallCNN(3, width=4, hidden=8)
    draw = [rng.integers(0, 256, (count, 8, 8, 1), dtype=np.uint8) for count in (60, 40, 30)]
    holdout, known, odd = draw
    spec = wildood.InputSpec(mean=(0.5,), std=(0.5,))
    detector = wildood.posthoc(model, wildood.MaxSoftmax(), holdout=holdout, input=spec, alpha=0.2)
    arrays = wildood.evaluate(detector, id=known, ood=odd, resamples=5)
    items = wildood.evaluate(detector, id=Items(list(known)), ood=Items(list(odd)), resamples=5)
    assert items.page() == arrays.page()
    assert items.page().count("data:image/png;base64,") == min(16, arrays.id.false_alarms.count) + 16


def test_a_set_without_mistakes_has_no_pictures(parse):
    detector = wildood.posthoc(
        SmallCNN(3, width=4, hidden=8),
        wildood.MaxSoftmax(),
        holdout=RNG.integers(0, 256, (30, 8, 8, 1), dtype=np.uint8),
        input=wildood.InputSpec(mean=(0.5,), std=(0.5,)),
        alpha=0.2,
    )
    detector.threshold = 9.0  # nothing is rejected
    known = Items(list(RNG.integers(0, 256, (9, 8, 8, 1), dtype=np.uint8)))
    page = wildood.evaluate(detector, id=known, ood=RNG.integers(0, 256, (8, 8, 8, 1), dtype=np.uint8), resamples=5).page()
    assert parse(page).panel("id, rejected").one("h3").text == "id, rejected: 0 of 9"


def test_warnings_name_sets_that_are_not_new_and_examples_in_both(detector, caplog):
    mixed = np.concatenate([X[:4], FAR])
    found = wildood.evaluate(detector, id=HOLDOUT, ood={"far": FAR}, resamples=5)
    assert caplog.messages == ["id: these examples set the detector's threshold: what is measured here is not new."]
    assert caplog.messages[0] in repr(found)
    assert found.promise.verdict == "cannot be told"
    caplog.clear()
    found = wildood.evaluate(detector, id=X, ood={"mixed": mixed}, resamples=5)
    shared = "Examples that are in id, too: 4 of 74 in mixed."
    assert caplog.messages == [f"{shared} An example cannot be both ID and OOD."]
    assert shared in repr(found)


def test_without_matplotlib_all_but_the_page_is_saved(evaluation, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(report_page, "plots_installed", lambda: False)
    evaluation.save(str(tmp_path / "a"))
    assert names(tmp_path / "a") == ["metrics.json", "table.md", "table.tex"]
    assert "pip install matplotlib" in caplog.messages[0]
    evaluation.save(tmp_path / "b", page=False)
    assert names(tmp_path / "b") == ["metrics.json", "table.md", "table.tex"]
    assert len(caplog.messages) == 1


def test_datasets_of_one_length_that_change_at_each_reading_are_two_sets(detector):
    sets = {name: Items(list(FAR), noisy=True) for name in ("one", "two")}
    assert len(wildood.evaluate(detector, id=X, ood=sets, resamples=5).ood) == 2


MISTAKES = {
    "no detector": ({"detector": "d/"}, r"detector is a str: give what fit, posthoc or load returned, such as wildood.load"),
    "a model": ({"detector": torch.nn.Linear(2, 3)}, "detector is a Linear: give what fit, posthoc or load returned"),
    "no sets": ({"ood": {}}, r"ood is an empty dict: give at least one set, as in ood=\{'svhn': x\}"),
    "a list": ({"ood": [FAR, NEAR]}, "ood is a list of 2: give one x, or a dict with a name for each set, as in ood="),
    "a number for a name": ({"ood": {1: FAR}}, "ood: a set is called 1: give it a name, as in ood="),
    "copies": ({"ood": {"a": FAR, "b": FAR.copy()}}, "ood: a and b hold the same examples: give each set once"),
    "nothing": ({"ood": None}, "ood is a NoneType: give ood=x with arrays or tensors, or a map-style Dataset"),
    "a path": ({"id": "test.npz"}, "id is a str: give id=x with arrays or tensors, or a map-style Dataset"),
    "labels": ({"id": (X, Y + 5)}, "id: a label is 7, but the model has 3 classes: labels count from 0 to 2"),
    "half of the labels": ({"id": (X, Y[:9])}, "id: 150 examples but 9 labels: give as many of one as of the other"),
    "floats for labels": ({"id": TensorDataset(torch.tensor(X), torch.rand(150))}, "id: labels have dtype float32"),
    "shape": ({"ood": {"far": FAR[:, :1]}}, r"far: an example has shape \(1,\), expected \(2,\)"),
    "empty": ({"id": X[:0]}, r"id has shape \(0, 2\): give at least one example"),
    "shifted is id": ({"shifted": (X, Y)}, "id and shifted hold the same examples: give each set once"),
    "shifted labels": ({"shifted": (X + 1, Y + 5)}, "shifted: a label is 7, but the model has 3 classes"),
    "resamples": ({"resamples": 0}, "resamples is 0: give at least 1"),
    "seed": ({"seed": -1}, "seed is -1: give a whole number from 0 on"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_one_line(detector, mistake):
    wrong, message = MISTAKES[mistake]
    with pytest.raises(wildood.InputError, match=f"^{message}") as caught:
        wildood.evaluate(**{"detector": detector, "id": X, "ood": FAR} | wrong)
    assert "\n" not in str(caught.value)


def test_a_class_that_the_detector_does_not_have_is_refused():
    detector = posthoc(HOLDOUT)
    detector.record["classes"] = ["a", "b", "c"]
    zoo = Images(X, Y, classes=("a", "b", "elk"), where="zoo")
    with pytest.raises(wildood.InputError, match=r"^id: zoo has a class 'elk' that the detector has not"):
        wildood.evaluate(detector, id=zoo, ood=FAR)


def test_a_file_is_no_directory_to_save_to(evaluation, tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(wildood.InputError, match=r"taken is a file: give a directory to save to"):
        evaluation.save(tmp_path / "taken")
    with pytest.raises(wildood.InputError, match=r"^the directory is 3: give a path"):
        evaluation.save(3)
    with pytest.raises(wildood.InputError, match=r"^page is 'no': give True or False"):
        evaluation.save(tmp_path, page="no")


def test_a_detector_without_a_threshold_is_refused():
    detector = posthoc(HOLDOUT)
    detector.threshold = float("nan")
    with pytest.raises(wildood.InputError, match=r"this detector has no threshold: call detector\.calibrate"):
        wildood.evaluate(detector, id=X, ood=FAR)


def counted(share):
    return share.count, share.examples


def test_where_a_rate_is_promised_by_predicted_class_it_is_measured_by_it():
    detector = posthoc(HOLDOUT, by_class=True)
    answers = decisions(detector)
    found = measure(detector, answers, unknown(detector), resamples=2).id
    assert found.classes_are == "predicted"
    assert counted(found.accuracy)[1] == 150  # which needs the labels
    assert not np.array_equal(answers.classes, Y)
    for number, share in found.false_alarms_by_class.items():
        of_class = answers.classes == number
        assert counted(share) == (answers.rejected[of_class].sum(), of_class.sum())


def test_names_of_classes_that_the_detector_does_not_know_are_noted(detector):
    named, other = decisions(detector, classes=("cat", "dog", "eel")), posthoc(HOLDOUT)
    other.record["classes"] = ["cat", "dog", "eel"]
    sets = unknown(detector)
    assert measure(detector, named, sets, resamples=2).id.unmatched_names is True
    assert measure(detector, decisions(detector), sets, resamples=2).id.unmatched_names is False
    assert measure(other, named, sets, resamples=2).id.unmatched_names is False


def test_a_report_is_an_evaluation(evaluation):
    assert isinstance(evaluation, Evaluation)
