"""Tables on the command line: pretrain, fit, score, evaluate, inspect and show, from CSV and Parquet files."""

import csv
import json
import shlex
import subprocess
import sys

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import wildood
from wildood.data.tables import TableSpec, read_table
from wildood.models.small import MLP

COLUMNS = ("id", "size", "age", "service", "kind")
PRETRAIN = shlex.split(
    "pretrain --labelled train.csv --label-column kind --ignore id --model mlp:hidden=16 --batch 32 --epochs 5"
)
FIT = shlex.split("fit --labelled train.csv --label-column kind --wild traffic.csv --holdout new.csv --model mlp:hidden=16")
FIT += shlex.split("--weights start/weights.safetensors --steps 100 --batch 64 --lr 0.05 --keep last")


def write(path, count, seed, *, unknown=0):
    """Requests of two kinds, each with its service; unknown ones use another service, and are between them in size."""
    rng = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for number in range(count):
            kind = int(rng.integers(0, 2))
            age = "" if rng.uniform() < 0.1 else f"{rng.normal():.3f}"
            known = number >= unknown
            size = rng.normal(3 + 4 * kind) if known else rng.normal(5, 0.5)
            service, name = (("http", "ssh")[kind], ("web", "shell")[kind]) if known else ("irc", "attack")
            writer.writerow([f"r{number}", f"{size:.4f}", age, service, name])


@pytest.fixture(scope="module")
def tables(arrays):
    """Tables, a classifier of them in `start`, and a detector in `guard`."""
    for seed, (name, count, unknown) in enumerate(
        (("train", 300, 0), ("traffic", 200, 30), ("new", 200, 0), ("test", 100, 0))
    ):
        write(arrays / f"{name}.csv", count, seed, unknown=unknown)
    write(arrays / "strange.csv", 50, 4, unknown=50)
    return arrays


@pytest.fixture
def start(tables, cli):
    if not (tables / "start" / "settings.toml").exists():
        result = cli(*PRETRAIN, "--out", "start")
        assert result.code == 0, result.err
    return tables / "start"


@pytest.fixture
def guard(start, cli):
    if not (start.parent / "guard" / "detector.json").exists():
        result = cli(*FIT, "--out", "guard")
        assert result.code == 0, result.err
    return start.parent / "guard"


def test_the_detector_reads_tables_as_its_classifier_was_trained(guard, cli, tables):
    table = read_table(tables / "train.csv", ["kind"])
    spec = TableSpec.fit(table, label="kind", ignore=["id"])
    detector = wildood.load(guard)
    assert detector.classifier.spec == spec
    assert detector.record["classes"] == ["shell", "web"]
    scored = cli("score", "guard", "strange.csv")
    lines = list(csv.DictReader(scored.out.splitlines()))
    expected = detector.score(read_table(tables / "strange.csv"))
    assert [float(line["score"]) for line in lines] == pytest.approx(expected.tolist())
    assert [line["example"] for line in lines] == [str(number) for number in range(50)]
    assert sum(line["decision"] == "unknown" for line in lines) > 40


def test_pretrain_writes_what_fit_needs(start, tables, cli):
    toml = (start / "settings.toml").read_text()
    assert 'label_column = "kind"' in toml
    assert 'model = "mlp:hidden=16,inputs=5,classes=2"' in toml
    assert "augment = false" in toml
    assert set(load_file(start / "weights.safetensors")) >= {"head.weight", "head.bias"}
    again = cli("pretrain", "--config", "start/settings.toml", "--out", "start-again")
    assert again.code == 0, again.err
    assert (tables / "start-again" / "weights.safetensors").read_bytes() == (start / "weights.safetensors").read_bytes()


@pytest.mark.slow
def test_fit_takes_what_pretrain_set_aside(tables, cli):
    assert cli(*PRETRAIN, "--set-aside", "0.3", "--out", "split").code == 0
    words = shlex.split(
        "fit --labelled split/trained_on.npz --holdout split/set_aside.npz --wild traffic.csv --model mlp:hidden=16"
    )
    result = cli(*words, "--weights", "split/weights.safetensors", "--steps", "5", "--batch", "32", "--out", "of-split")
    assert result.code == 0, result.err
    assert "tables are read as for the training of split/weights.safetensors" in result.err
    assert cli("score", "of-split", "test.csv").out.count("\n") == 101


@pytest.mark.slow
def test_evaluate_inspect_and_show_take_tables(guard, cli):
    result = cli("evaluate", "guard", "--id", "test.csv", "--ood", "strange.csv", "--resamples", "5", "--quiet")
    assert result.code == 0, result.err
    metrics = json.loads((guard / "evaluation" / "metrics.json").read_text())
    assert metrics["id"]["accuracy"]["value"] > 0.95
    assert metrics["ood"][0]["auroc"]["value"] > 0.95
    assert cli("inspect", "guard", "--wild", "strange.csv", "--quiet").code == 3
    assert "of 2 columns of numbers and 1 of categories" in cli("show", "guard").out


@pytest.mark.slow
@pytest.mark.parametrize("model", ["", "--model mlp:hidden=16"])
def test_a_detector_of_tables_is_retrained_with_its_columns_and_sizes(guard, tables, cli, model):
    before = wildood.load(guard)
    words = f"fit --weights guard --labelled new.csv --wild traffic.csv --holdout test.csv --out next {model}".split()
    result = cli(*words, *shlex.split("--steps 5 --batch 32 --keep last"))
    assert result.code == 0, result.err
    assert "tables are read as for the training of guard" in result.err
    after = wildood.load(tables / "next")
    assert after.classifier.spec == before.classifier.spec
    assert after.classifier.model.settings == before.classifier.model.settings
    assert after.record["classes"] == ["shell", "web"]
    assert "of 2 columns of numbers and 1 of categories" in (tables / "next" / "README.md").read_text()
    result = cli(*shlex.split("pretrain --weights next --labelled new.csv --batch 32 --epochs 1 --out next-start"))
    assert result.code == 0, result.err
    words = "fit --weights next-start/weights.safetensors --model mlp:hidden=16 --labelled new.csv --wild traffic.csv"
    result = cli(*shlex.split(words), *shlex.split("--steps 1 --batch 32 --keep last --out last"))
    assert result.code == 0, result.err
    assert wildood.load(tables / "last").classifier.spec == before.classifier.spec


def test_columns_are_refused_beside_a_detector_of_something_else(guard, cli, assert_mistake):
    words = ["fit", "--labelled", "new.csv", "--wild", "traffic.csv", "--out", "no"]
    assert_mistake([*words, "--weights", "guard", "--ignore", "size"], "--ignore is not that of the training of guard")
    spec = wildood.InputSpec(mean=(0.5,), std=(0.5,))
    x = np.zeros((30, 8, 8, 1), np.uint8)
    wildood.posthoc(MLP(64, 3), wildood.EnergyScore(), holdout=x, input=spec).save(guard.parent / "pictures")
    result = cli(*words, "--weights", "pictures/", "--label-column", "kind")
    assert result.code == 2
    assert result.err.endswith("wildood: --label-column is for tables and texts, not for images: leave it out\n")


def test_parquet_is_scored_as_csv(guard, tables, cli):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pandas.read_csv(tables / "test.csv").to_parquet(tables / "test.parquet")
    assert cli("score", guard, "test.parquet").out == cli("score", guard, "test.csv").out


def test_parquet_without_pyarrow_is_refused_in_one_line(tables):
    code = (
        "import sys; sys.modules['pyarrow'] = None; from wildood.data.tables import read_table\n"
        "try: read_table('a.parquet')\nexcept Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tables, capture_output=True, text=True, check=True)
    assert done.stdout == "a.parquet: Parquet needs pyarrow: pip install pyarrow, or give a .csv file\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--label-column type",
            "--labelled: label: there is no column 'type' among columns 'id', 'size', 'age' and 2 others",
        ),
        ("--label-column kind --ignore ids", "--labelled: ignore: there is no column 'ids' among"),
        ("--ignore id", "--ignore is for tables: give --label-column, too"),
        ("", "train.csv is a table: give the column of its classes, --label-column"),
        ("--label-column kind --ignore id --mean 0.5 --std 0.5", "--mean is for images, not for tables: leave it out"),
        ("--label-column kind --layout NCHW", "--layout is for images, not for tables: leave it out"),
        ("--label-column kind --text-column service", "--text-column is for texts: give --tokenizer, too"),
        ("--label-column kind --labelled t.jsonl", "t.jsonl is no table: give a .csv, .csv.gz or .parquet file"),
        ("--labelled t.parquet", "--labelled t.parquet is a table: give the column of its classes, --label-column"),
    ],
)
def test_tables_that_cannot_be_read_are_refused(tables, assert_mistake, words, message):
    labelled = [] if "--labelled" in words else ["--labelled", "train.csv"]
    assert_mistake(["pretrain", *labelled, "--model", "mlp:inputs=5,classes=2", "--out", "no", *words.split()], message)


def test_options_that_contradict_the_weights_are_refused(start, assert_mistake, tables):
    for words, option in ((["--ignore", "size"], "ignore"), (["--categorical", "size"], "categorical")):
        message = f"--{option} is not that of the training of start/weights.safetensors: leave it out"
        assert_mistake([*FIT, "--out", "no", *words], message)
    weights = load_file(start / "weights.safetensors")
    save_file(weights, tables / "damaged.safetensors", {"table": "{}"})
    words = [*FIT, "--weights", "damaged.safetensors", "--out", "no"]
    assert_mistake(words, "--weights damaged.safetensors: the input spec in it is damaged (numeric is missing): pretrain")
