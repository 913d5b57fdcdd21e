"""`wildood report` as a user types it: what it prints, what it writes, what it refuses."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from wildood.cli.main import main
from wildood.experiments.experiment import Experiment
from wildood.experiments.store import Failure, OodMetrics, Result, RunStore
from wildood.methods.shipped import METHODS

WITHOUT = """
import sys
sys.modules["matplotlib"] = None    # as if it were not installed
from wildood.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
FOUND = OodMetrics(0.25, 0.01, 0.9, 0.91, 0.92, 0.1, 30)
FILES = ["beside.csv", "beside.md", "report.html", "runs", "tables.csv", "tables.md", "tables.tex"]


def add(store, experiment, fpr95=0.25):
    found = OodMetrics(**{**vars(FOUND), "fpr95": fpr95})
    scores = {name: np.linspace(0, 1, 30, dtype="float32") for name in ("id", *experiment.test)}
    store.add(Result(experiment, dict.fromkeys(experiment.test, found), 0.95, 0.05, 30), scores)


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = RunStore(tmp_path / "runs")
    for seed, fpr95 in enumerate((0.2, 0.3)):
        add(made, Experiment("cifar10", ("svhn",), method="energy", seed=seed), fpr95)
    broken = Experiment("cifar10", ("svhn",), "svhn", 0.1, "woods")
    with made.claimed(broken):
        made.add_failure(Failure(broken, "ValueError: no", "Traceback"))
    with made.claimed(Experiment("cifar10", ("svhn",), "svhn", 0.1, "woods", seed=1)):
        pass
    return made


def test_the_tables_are_printed_and_everything_is_written(store, capsys):
    assert main(["report", "runs"]) == 0
    printed = capsys.readouterr()
    out = store.root / "report"
    assert sorted(path.name for path in out.iterdir()) == FILES
    energy, accuracy = re.search(r"^ *energy +(\S+ ± \S+) +(\S+ ± \S+)", printed.out, re.MULTILINE).groups()
    assert (energy, accuracy) == ("25.0 ± 5.0", "95.0 ± 0.0")
    failed = store.contents().failures[0].experiment.name
    assert printed.out.splitlines()[-3:] == [
        f"failed: {failed}: ValueError: no",
        "4 runs: 2 are done, 1 failed, 1 has not ended.",
        "runs/report: tables.md, tables.tex, tables.csv, beside.md, beside.csv",
    ]
    assert printed.err == "runs/report/report.html shows them as a page\n"
    assert "| energy | 25.00 ± 5.00 |" in (out / "tables.md").read_text()
    assert r"25.00$^{\pm 5.0}$" in (out / "tables.tex").read_text()
    assert "energy,svhn,fpr95,25.0000,5.0000,2," in (out / "tables.csv").read_text()
    assert "| 25.00 ± 5.00 | 35.59 | -10.59 |" in (out / "beside.md").read_text()
    assert "energy,svhn,fpr95,25.0000,5.0000,35.59,,-10.5900," in (out / "beside.csv").read_text()


def test_a_published_stationary_table_is_printed_with_what_is_accepted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    add(RunStore(tmp_path / "r"), Experiment("cifar10", ("svhn",), method="energy", protocol="as_published"))
    assert main(["report", "r", "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^ *accepted ↓ +SVHN", printed, re.MULTILINE)
    assert re.search(r"^ *energy +10\.0 +95\.0", printed, re.MULTILINE)
    assert "FPR95 ↓" not in printed
    assert "Accepted (FPR in the paper) is the share of OOD" in printed
    table = (tmp_path / "r" / "report" / "tables.csv").read_text()
    assert "energy,svhn,fpr95,25.0000," in table
    assert "energy,svhn,accepted,10.0000," in table


def test_folders_that_cannot_be_read_do_not_end_the_report(store, capsys):
    (store.root / "broken").mkdir()
    (store.root / "broken" / "experiment.toml").write_text("id =")
    (store.place(store.contents().results[0].experiment) / "scores.npz").write_bytes(b"PK")
    assert main(["report", "runs", "--quiet"]) == 0
    assert capsys.readouterr().out.splitlines()[-3].startswith("1 folder left out: broken: experiment.toml: the exp")


def test_a_damaged_result_and_one_without_its_experiment_are_named_with_what_to_do(store, capsys):
    first, second = (store.place(found.experiment) for found in store.contents().results)
    content = re.sub('"fpr95": [0-9.]+', '"fpr95": "x"', (first / "result.json").read_text())
    (first / "result.json").write_text(content)
    (second / "experiment.toml").unlink()
    assert main(["report", "runs", "--quiet"]) == 0
    *_, told, counted, _ = capsys.readouterr().out.splitlines()
    assert told.startswith("2 folders left out: ")
    again = "run its wildood reproduce again, or remove the folder"
    assert f"{first.name}: result.json cannot be read (tests.svhn.fpr95 is 'x', expected a number): {again}" in told
    assert f"{second.name}: experiment.toml is not there: {again}" in told
    assert counted == "2 runs: none is done, 1 failed, 1 has not ended; 2 folders left out."


def test_runs_of_a_method_of_ones_own_are_reported_where_it_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_of_a_report.py").write_text("from wildood import Woods as Mine")
    with pytest.MonkeyPatch.context() as named:
        named.setitem(METHODS, "mine_of_a_report:Mine", METHODS["woods"])
        add(RunStore(tmp_path / "r"), Experiment("cifar10", ("svhn",), "svhn", 0.1, "mine_of_a_report:Mine"))
    assert main(["report", "r", "--quiet"]) == 2
    assert "mine_of_a_report:Mine" in capsys.readouterr().err
    try:
        assert main(["report", "r", "--quiet", "--method", "mine_of_a_report:Mine"]) == 0
    finally:
        METHODS.pop("mine_of_a_report:Mine", None)
    assert re.search(r"^ *mine_of_a_report:Mine +25\.0", capsys.readouterr().out, re.MULTILINE)


def test_every_link_leads_to_a_page(store):
    assert main(["report", "runs", "--quiet"]) == 0
    out = store.root / "report"
    linked = set(re.findall(r'href="(runs/\w+\.html)"', (out / "report.html").read_text()))
    assert linked == {f"runs/{path.name}" for path in (out / "runs").iterdir()}
    assert len(linked) == 3
    assert 'href="../report.html"' in next((out / "runs").iterdir()).read_text()


def test_only_pages_of_new_results_are_drawn_again(store):
    assert main(["report", "runs", "--quiet"]) == 0
    first, second = (
        store.root / "report" / "runs" / f"{result.experiment.name}.html" for result in store.contents().results
    )
    first.write_text(first.read_text() + "<!-- drawn before -->")
    second.write_text("<!-- drawn by another version -->")
    assert main(["report", "runs", "--quiet"]) == 0
    assert first.read_text().endswith("<!-- drawn before -->")
    assert "<h1>" in second.read_text()
    again = store.contents().results[0].experiment
    add(store, again, fpr95=0.77)
    assert main(["report", "runs", "--quiet"]) == 0
    assert "77.0 %" in first.read_text()


def test_the_page_has_the_title_and_the_place_that_are_asked_for(store, tmp_path):
    assert main(["report", "runs", "--out", "elsewhere", "--title", "A & B", "--quiet"]) == 0
    assert "<h1>A &amp; B</h1>" in (tmp_path / "elsewhere" / "report.html").read_text()
    assert not (store.root / "report").exists()


def test_nothing_is_set_beside_the_paper_where_it_has_no_numbers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    add(RunStore(tmp_path / "r"), Experiment("digits", ("digits",), method="energy"))
    assert main(["report", "r", "--quiet"]) == 0
    assert capsys.readouterr().out.endswith("r/report: tables.md, tables.tex, tables.csv\n")
    assert sorted(path.name for path in (tmp_path / "r" / "report").iterdir()) == FILES[2:]


def test_without_matplotlib_the_tables_are_written_and_one_line_says_how_to_get_pages(store, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, "report", "runs"],
        check=True, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    assert done.stderr == "for pages with figures: pip install matplotlib, then the same command again\n"
    assert "25.0 ± 5.0" in done.stdout
    assert sorted(path.name for path in (store.root / "report").iterdir()) == [
        "beside.csv", "beside.md", "runs", "tables.csv", "tables.md", "tables.tex",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "nowhere is no directory: give the one that wildood reproduce wrote its runs to"),
        (["empty"], "empty holds no runs: give the directory that wildood reproduce wrote them to"),
        (["going"], "going holds 2 runs that have not ended yet: call report again when one has"),
        (["runs", "--out", "file"], "--out file cannot be written to (Not a directory): give a directory"),
    ],
)
def test_a_mistake_is_one_line(words, says, store, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for seed in (0, 1):
        with RunStore(tmp_path / "going").claimed(Experiment("digits", ("digits",), method="energy", seed=seed)):
            pass
    assert main(["report", *words]) == 2
    assert capsys.readouterr().err == f"wildood: {says}\n"
