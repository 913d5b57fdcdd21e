"""Tables from the first line to the last: pretrain, fit, posthoc, save, load, predict, evaluate, inspect."""

import json

import numpy as np
import pytest

import wildood
from wildood.data.inputs import Spec
from wildood.data.schema import SchemaError, check
from wildood.models.small import MLP

SCHEDULE = wildood.Schedule(steps=100, batch=64, lr=0.05)


def table(count, seed, *, unknown=0):
    """Requests of two kinds, each with its service; unknown ones use another service, and are between them in size."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, count)
    service = np.where(y == 1, "ssh", "http").astype(object)
    size, service[:unknown] = rng.normal(3 + 4 * y, 1), "irc"
    size[:unknown] = rng.normal(5, 0.5, unknown)
    age = np.where(rng.uniform(size=count) < 0.1, np.nan, rng.normal(size=count))
    return {"size": size, "age": age, "service": service.tolist(), "kind": np.where(y == 1, "shell", "web").tolist()}


TRAIN, TRAFFIC, NEW, TEST = table(300, 0), table(200, 1, unknown=30), table(200, 2), table(200, 3)
STRANGE = table(60, 4, unknown=60)
SPEC = wildood.TableSpec.fit(TRAIN, label="kind")


def without(columns, name):
    return {key: values for key, values in columns.items() if key != name}


@pytest.fixture(scope="module")
def model():
    start = MLP(SPEC.width, 2, hidden=(16,))
    return wildood.pretrain(start, TRAIN, NEW, input=SPEC, verbose=False)


@pytest.fixture(scope="module")
def detector(model):
    return wildood.fit(model, TRAIN, TRAFFIC, NEW, input=SPEC, schedule=SCHEDULE, keep="last", verbose=False)


def test_a_table_gives_the_detector_that_its_arrays_give(detector, model):
    arrays = [(SPEC(each), SPEC.labels(each)) for each in (TRAIN, NEW)]
    plain = wildood.fit(model, arrays[0], SPEC(TRAFFIC), arrays[1], schedule=SCHEDULE, keep="last", verbose=False)
    assert np.array_equal(detector.score(TEST), plain.score(SPEC(TEST)))
    pairs = [(without(each, "kind"), SPEC.labels(each).tolist()) for each in (TRAIN, NEW)]
    traffic = without(TRAFFIC, "kind")
    of_pairs = wildood.fit(model, pairs[0], traffic, pairs[1], input=SPEC, schedule=SCHEDULE, keep="last", verbose=False)
    assert np.array_equal(detector.score(TEST), of_pairs.score(TEST))
    assert "classes" not in of_pairs.record


def test_the_detector_knows_the_classes_and_rejects_the_unknown(detector):
    assert detector.record["classes"] == ["shell", "web"]
    answers = detector.predict(TEST)
    assert (answers[answers >= 0] == SPEC.labels(TEST)[answers >= 0]).mean() > 0.95
    assert (answers == wildood.UNKNOWN).mean() < 0.15
    assert (detector.predict(STRANGE) == wildood.UNKNOWN).mean() > 0.9


def test_the_spec_is_saved_with_the_detector(detector, tmp_path):
    again = wildood.load(detector.save(tmp_path))
    assert again.classifier.spec == SPEC
    assert np.array_equal(again.score(TEST), detector.score(TEST))
    shuffled = {name: TEST[name] for name in ("service", "age", "size")}
    assert np.array_equal(again.predict(shuffled), detector.predict(TEST))


def test_a_damaged_spec_is_refused():
    content = json.loads(json.dumps(SPEC.to_dict()))
    content["numeric"][0]["std"] = -1.0
    with pytest.raises(SchemaError, match=r"input.*: column 'size': std is -1\.0: give a positive number"):
        check(content, Spec | None, "input")


def test_frames_are_read_as_dicts_of_columns(detector):
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    expected = detector.score(TEST)
    assert np.array_equal(detector.score(pandas.DataFrame(TEST)), expected)
    assert np.array_equal(detector.score(polars.DataFrame(TEST, nan_to_null=True)), expected)


def test_evaluate_and_inspect_take_tables(detector):
    evaluation = wildood.evaluate(detector, id=TEST, ood={"strange": STRANGE}, resamples=10)
    assert evaluation.id.accuracy.value > 0.95
    assert evaluation.ood[0].auroc.value > 0.95
    inspection = wildood.inspect(detector, wild=table(300, 5, unknown=90))
    assert inspection.found


def test_one_ood_table_may_be_a_dict_of_columns(detector):
    named = wildood.evaluate(detector, id=TEST, ood={"ood": STRANGE}, resamples=10)
    alone = wildood.evaluate(detector, id=TEST, ood={**STRANGE, "comment": [""] * 60}, resamples=10)
    assert alone.to_dict() == named.to_dict()
    with pytest.raises(wildood.InputError, match="strange lacks column 'size'"):
        wildood.evaluate(detector, id=TEST, ood={"strange": without(STRANGE, "size")})


def test_posthoc_calibrate_and_select_take_tables(model, detector):
    energy = wildood.posthoc(model, wildood.EnergyScore(), labelled=TRAIN, holdout=NEW, input=SPEC)
    assert energy.promise.examples == 200
    energy.calibrate(TEST, alpha=0.1)
    assert energy.promise.alpha == 0.1
    knn = wildood.posthoc(model, wildood.Knn(k=3), labelled=(TRAIN, SPEC.labels(TRAIN)), holdout=NEW, input=SPEC)
    ranking = wildood.select({"fit": detector, "knn": knn}, TEST, table(200, 6, unknown=30))
    assert {place.name for place in ranking.places} == {"fit", "knn"}
    other = wildood.TableSpec.fit(NEW, label="kind")
    stranger = wildood.posthoc(model, wildood.EnergyScore(), holdout=NEW, input=other)
    with pytest.raises(wildood.InputError, match="the detectors read tables by different input specs"):
        wildood.select([detector, stranger], TEST, TRAFFIC)


def test_fit_many_takes_tables(model):
    methods = [wildood.Woods(), wildood.OutlierExposure()]
    settings = {"input": SPEC, "schedule": SCHEDULE, "verbose": False}
    fits = wildood.fit_many(model, TRAIN, TRAFFIC, NEW, methods=methods, **settings)
    assert fits.best.predict(TEST).shape == (200,)


@pytest.mark.parametrize(
    ("labelled", "wild", "message"),
    [
        (without(TRAIN, "kind"), TRAFFIC, "labelled: the table has no labels: it has no column 'kind'"),
        (TRAIN, without(TRAFFIC, "size"), "wild lacks column 'size': give every column"),
        ((TRAIN, ["a"] * 300), TRAFFIC, "labelled: labels have dtype <U1 and shape (300,): give one integer class"),
        (TRAIN, np.zeros((100, 3), "float32"), "wild: an example has shape (3,), expected (5,)"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(model, labelled, wild, message):
    with pytest.raises(wildood.InputError) as refused:
        wildood.fit(model, labelled, wild, NEW, input=SPEC, schedule=SCHEDULE, verbose=False)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("frame_first", [True, False])
def test_a_frame_without_a_spec_is_refused_with_the_line_to_write(model, frame_first):
    pandas = pytest.importorskip("pandas")
    frame, x = pandas.DataFrame(TRAIN), SPEC(TRAFFIC)
    labelled, wild = ((frame, [0] * 300), x) if frame_first else ((SPEC(TRAIN), SPEC.labels(TRAIN)), frame)
    name = "labelled x" if frame_first else "wild"
    with pytest.raises(wildood.InputError, match=f"{name} is a DataFrame, which needs an input spec: spec = wildood.Table"):
        wildood.fit(model, labelled, wild, verbose=False)
