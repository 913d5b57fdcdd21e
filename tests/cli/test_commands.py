"""Every command as a user types it."""

import csv
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import wildood
from wildood.cli.main import main
from wildood.data.files import load_state
from wildood.detect.promise import Promise
from wildood.models.small import MLP

OWN = """
import torch

def build():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))    # the sum tells the classes apart
    model[0].weight.data = torch.tensor([[-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]])
    model[0].bias.data = torch.tensor([4.5, -4.5])
    return model

def nothing():
    return 3
"""
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def wildood_says(place, *words, stdin=None):
    command = [sys.executable, "-m", "wildood", *map(str, words)]
    return subprocess.run(command, cwd=place, env=ENVIRONMENT, input=stdin, capture_output=True, check=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli")
    rng = np.random.default_rng(0)

    def known(count):
        y = rng.integers(0, 2, count)
        return (rng.normal(size=(count, 3)) + 3 * y[:, None]).astype("float32"), y

    for name, count in (("labelled", 120), ("holdout", 100)):
        x, y = known(count)
        np.savez(path / f"{name}.npz", x=x, y=y)
    np.savez(path / "odd.npz", a=known(60)[0], b=known(60)[1], c=np.arange(3))
    np.savez(path / "wild.npz", x=known(60)[0])
    np.save(path / "new.npy", known(7)[0])
    torch.manual_seed(0)
    save_file(MLP(3, 2, hidden=(8,)).state_dict(), path / "w.safetensors")
    (path / "own.py").write_text(OWN)
    (path / "model.txt").write_text("not weights")
    for name, content in {
        "method": 'method = "wods"',
        "steps": 'steps = "many"',
        "name": "stepz = 3",
        "frozen": 'frozen = "yes"',
        "nul": 'labelled = "a\\u0000b"',
        "deep": f"labelled = {'[' * 3000}",
    }.items():
        (path / f"{name}.toml").write_text(content + "\n")
    (path / "bytes.toml").write_bytes(b"\xff\xfe")
    for name in ("pipe.toml", "pipe.npy"):
        os.mkfifo(path / name)
    return path


FIT = [
    "fit",
    "--labelled",
    "labelled.npz",
    "--wild",
    "wild.npz",
    "--holdout",
    "holdout.npz",
    "--batch",
    "32",
    "--alpha",
    "0.1",
]
OURS = [*FIT, "--model", "own:build", "--steps", "6"]


@pytest.fixture(scope="module")
def fitted(place):
    done = wildood_says(place, *OURS, "--out", "d")
    assert done.returncode == 0, done.stderr
    return done


def test_help_and_version_do_not_import_torch(place):
    program = "import sys; from wildood.cli.main import main; code = main(sys.argv[1:]); print('torch' in sys.modules, code)"
    for words in (["--help"], ["--version"]):
        done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
        assert done.stdout.endswith("False 0\n")
    assert wildood_says(place, "--version").stdout.decode().strip() == wildood.__version__
    assert b"usage: wildood COMMAND" in wildood_says(place, "--help").stdout


def in_a_terminal(*words, environment):
    """What a command writes to a terminal that it has for itself."""
    child, terminal = pty.fork()
    if child == 0:
        os.execve(sys.executable, [sys.executable, "-m", "wildood", *words], environment)  # noqa: S606 - our own program
    written = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:
            break
        if not part:
            break
        written += part
    os.waitpid(child, 0)
    return written.decode()


def test_no_color_is_respected_in_a_terminal():
    environment = os.environ | {"TERM": "xterm-256color"}
    colours = re.compile(r"\x1b\[[\d;]*[39]\dm")
    assert colours.search(in_a_terminal("show", "--help", environment=environment))
    plain = in_a_terminal("show", "--help", environment=environment | {"NO_COLOR": "1"})
    assert "usage: wildood show" in plain
    assert not colours.search(plain)


@pytest.mark.parametrize("command", ["demo", "fit", "pretrain", "score", "show"])
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: wildood {command}" in capsys.readouterr().out


def test_fit_puts_progress_on_standard_error_and_the_promise_on_standard_output(fitted, place):
    assert fitted.stdout.decode() == f"d: {Promise(alpha=0.1, examples=50, unseen=True)}\n"
    counts = fitted.stderr.decode().split("epoch 1/1")
    assert counts[0].splitlines() == [
        "labelled: 120 examples of 2 classes from labelled.npz",
        "wild: 60 examples from wild.npz",
        "holdout: 100 examples of 2 classes from holdout.npz",
    ]
    assert b"\x1b" not in fitted.stderr
    assert {path.name for path in (place / "d").iterdir()} >= {"detector.json", "settings.toml", "run"}


@pytest.mark.parametrize("words", [[], ["--grid", "gamma=1.1,1.5"]], ids=["one", "a grid"])
def test_fit_whose_reader_has_gone_writes_everything_all_the_same(place, tmp_path, words):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "wildood", *OURS, *words, "--alpha", "0.2", "--out", str(tmp_path / "d")]
    done = subprocess.run(command, cwd=place, env=ENVIRONMENT, stdout=writing, stderr=writing, check=False)
    os.close(writing)
    assert done.returncode == 0
    assert {"detector.json", "settings.toml", "report.html"} <= {path.name for path in (tmp_path / "d").iterdir()}


def test_quiet_shows_no_progress(fitted, place):
    lines = wildood_says(place, *OURS, "--out", "d", "--quiet").stderr.splitlines()
    assert [
        line for line in lines if not line.startswith((b"training was not shown to help", b"nothing unknown was shown"))
    ] == []


def test_the_settings_that_were_written_can_be_passed_back(fitted, place):
    done = wildood_says(place, "fit", "--config", "d/settings.toml", "--out", "again")
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((place / name / "detector.json").read_text()) for name in ("d", "again"))
    assert first["weights"] == second["weights"]
    assert first["threshold"] == second["threshold"]


def test_a_frozen_backbone_stays_as_it_was_and_is_passed_back(fitted, place):
    assert wildood_says(place, *OURS, "--frozen", "--keep", "last", "--out", "frozen").returncode == 0
    assert wildood_says(place, "fit", "--config", "frozen/settings.toml", "--out", "frozen2").returncode == 0
    first, second = (json.loads((place / name / "detector.json").read_text()) for name in ("frozen", "frozen2"))
    assert first["record"]["frozen"] is second["record"]["frozen"] is True
    assert first["weights"] == second["weights"]
    assert "trained    the last layer" in wildood_says(place, "show", "frozen").stdout.decode()
    assert wildood_says(place, "fit", "--config", "frozen/settings.toml", "--no-frozen", "--out", "whole").returncode == 0
    assert "frozen" not in json.loads((place / "whole" / "detector.json").read_text())["record"]


def test_the_settings_that_pretrain_wrote_can_be_passed_back(place):
    words = ["pretrain", "--labelled", "labelled.npz", "--model", "own:build", "--augment", "False", "--batch", "32"]
    done = wildood_says(place, *words, "--steps", "4", "--out", "p")
    assert done.returncode == 0, done.stderr
    again = wildood_says(place, "pretrain", "--config", "p/settings.toml", "--out", "p2")
    assert again.returncode == 0, again.stderr
    first, second = (load_file(place / name / "weights.safetensors") for name in ("p", "p2"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_pretrain_says_its_accuracy_when_it_is_called_again_too(place):
    words = ["pretrain", "--labelled", "labelled.npz", "--model", "own:build", "--augment", "False", "--batch", "32"]
    words += ["--epochs", "2", "--lr", "0.001", "--set-aside", "0.2", "--out", "accurate"]
    first, second = wildood_says(place, *words), wildood_says(place, *words)
    with np.load(place / "accurate" / "set_aside.npz") as aside:
        x, y = aside["x"], aside["y"]
    weights = load_file(place / "accurate" / "weights.safetensors")
    right = ((x @ weights["0.weight"].numpy().T + weights["0.bias"].numpy()).argmax(1) == y).mean()
    assert first.stdout.decode() == f"accurate/weights.safetensors: accuracy {100 * right:.1f} % on set_aside.npz\n"
    assert second.stdout == first.stdout
    assert b"epoch" not in second.stderr  # nothing was trained again


@pytest.mark.parametrize("learns", [False, True])
def test_pretrain_says_its_accuracy_without_a_set_aside_and_warns_at_chance_level(
    place, capsys, caplog, monkeypatch, learns
):
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    out, file = f"learns-{learns}", "labelled.npz" if learns else "shuffled.npz"
    with np.load("labelled.npz") as labelled:
        x, y = labelled["x"], labelled["y"] if learns else np.random.default_rng(0).permutation(labelled["y"])
    np.savez("shuffled.npz", x=x, y=y)
    words = ["pretrain", "--labelled", file, "--model", "own:build", "--augment", "False", "--batch", "32", "--steps", "20"]
    assert main([*words, "--lr", "0.01", "--quiet", "--out", out]) == 0
    weights = load_file(f"{out}/weights.safetensors")
    right = ((x @ weights["0.weight"].numpy().T + weights["0.bias"].numpy()).argmax(1) == y).mean()
    said = capsys.readouterr()
    assert said.out == f"{out}/weights.safetensors: accuracy {100 * right:.1f} % on 120 examples that it was trained on\n"
    frequent = np.bincount(y).max() / len(y)
    told = (
        f"{100 * right:.1f} % of labelled, no better than always answering the most frequent class ({100 * frequent:.1f} %)"
    )
    assert (told in caplog.text) == (not learns)
    assert (right > 0.9) == learns


def test_the_help_of_pretrain_is_about_pretraining(capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main(["pretrain", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "--steps N how many steps to train, instead of --epochs. --batch N examples in a step. (default: 128" in shown
    assert "--epochs N how many epochs to train; or give `steps`. (default: 100)" in shown
    for untrue in ("(default: None)", "200 if neither", "wild ones"):
        assert untrue not in shown


def test_a_grid_keeps_the_one_that_accepts_the_least_wild_data(place):
    words = [*OURS, "--method", "oe", "--grid", "weight=0.1,1", "--confidence", "0.9"]
    done = wildood_says(place, *words, "--out", "g")
    assert done.returncode == 0, done.stderr
    ranking = json.loads((place / "g" / "ranking.json").read_text())
    names = [each["name"] for each in ranking["places"]]
    assert sorted(names) == ["OutlierExposure-weight=0.1", "OutlierExposure-weight=1.0"]
    assert done.stdout.decode().startswith(f"{names[0]}: accepts ")
    record = json.loads((place / "g" / "detector.json").read_text())
    assert record["record"]["method"]["weight"] == float(names[0].partition("=")[2])
    assert record["promise"]["confidence"] == 0.9
    again = wildood_says(place, "fit", "--config", "g/settings.toml", "--out", "g2")
    assert again.returncode == 0, again.stderr
    assert json.loads((place / "g2" / "ranking.json").read_text())["places"] == ranking["places"]
    assert (place / "g" / "ranking.json").read_text().endswith("}\n")
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text("utf-8")
    assert {name for name in (*ranking, *ranking["places"][0]) if f"`{name}`" not in guide} == set()
    said = (done.stdout + done.stderr).decode()
    assert said.count("accepts the least of the wild data") == 1
    before = (place / "g" / "detector.json").read_bytes()
    assert wildood_says(place, *words, "--out", "g").stdout == done.stdout  # the same one: it has all been done
    assert (place / "g" / "detector.json").read_bytes() == before


def test_what_another_run_made_is_not_replaced(fitted, place):
    assert wildood_says(place, *OURS, "--method", "oe", "--grid", "weight=0.1,1", "--out", "grid").returncode == 0
    files = {name: (place / name / "detector.json").read_bytes() for name in ("d", "grid")}
    for words, told in (
        ((*OURS, "--grid", "mu2=0.1,1", "--out", "d"), "d/run belongs to another run, of a single method: give another"),
        ((*OURS, "--method", "oe", "--grid", "weight=1,2", "--out", "grid"), "grid/run belongs to another run: its methods"),
        ((*OURS, "--out", "grid"), "grid/run belongs to another run: its methods is OutlierExposure-weight=0.1, Out"),
    ):
        done = wildood_says(place, *words, "--quiet")
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert told in done.stderr.decode()
    assert files == {name: (place / name / "detector.json").read_bytes() for name in files}


def test_by_class_that_cannot_be_done_is_said_where_the_promise_is(place):
    done = wildood_says(place, *OURS, "--by-class", "--alpha", "0.03", "--out", "bc", "--quiet")
    assert done.returncode == 0, done.stderr
    assert done.stderr.decode().startswith("by class was NOT done, one threshold is for all classes: class ")
    assert done.stdout.decode().endswith(" has the same distribution (over all classes: by class was NOT done)\n")
    assert "by class   NOT done: class " in wildood_says(place, "show", "bc").stdout.decode()


def test_show_tells_thresholds_by_class_by_their_range(place):
    done = wildood_says(place, *OURS, "--by-class", "--out", "each", "--quiet")
    assert (done.returncode, b"by class" in done.stderr) == (0, False)
    described = json.loads((place / "each" / "detector.json").read_text())
    each = [float.fromhex(text) for text in described["class_thresholds"]]
    line = f"one for each of 2 predicted classes, from {min(each):.6g} to {max(each):.6g}: unknown above that of its class"
    assert f"threshold  {line}\n" in wildood_says(place, "show", "each").stdout.decode()
    assert described["promise"]["by_class"] is True


def test_show_breaks_long_lines_between_words_in_a_terminal(fitted, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    assert main(["show", "d"]) == 0
    whole = capsys.readouterr().out
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _self: True)
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["show", "d"]) == 0
    broken = capsys.readouterr().out
    assert broken.split() == whole.split()
    assert max(map(len, whole.splitlines())) > 60 >= max(map(len, broken.splitlines()))
    assert all(line.startswith((" " * 11, *whole.split())) for line in broken.splitlines())


def test_options_go_before_the_config(place):
    (place / "run.toml").write_text(
        'labelled = "labelled.npz"\nwild = "wild.npz"\nmodel = "own:build"\nsteps = 3\nbatch = 16\n'
    )
    done = wildood_says(place, "fit", "--config", "run.toml", "--steps", "4", "--alpha", "0.2", "--out", "c")
    assert done.returncode == 0, done.stderr
    record = json.loads((place / "c" / "detector.json").read_text())["record"]
    assert (record["schedule"]["steps"], record["schedule"]["batch"], record["alpha"]) == (4, 16, 0.2)


def test_auto_and_a_length_of_the_config_give_way_to_what_is_said(place):
    common = 'labelled = "labelled.npz"\nwild = "wild.npz"\nholdout = "holdout.npz"\nmodel = "own:build"\nbatch = 16\n'
    (place / "fixed.toml").write_text(common + "steps = 3\n")
    (place / "auto.toml").write_text(common + "auto = true\nsteps = 3150\nrounds = 50\n")
    words = {
        "by-itself": ["--config", "fixed.toml", "--auto"],
        "at-once": ["--config", "auto.toml", "--steps", "4"],
        "as-ever": ["--config", "auto.toml", "--no-auto"],
        "as-it-was": ["--config", "fixed.toml", "--no-auto", "--no-as-published"],
    }
    found = {}
    for name, each in words.items():
        done = wildood_says(place, "fit", *each, "--out", name)
        assert done.returncode == 0, done.stderr
        found[name] = json.loads((place / name / "detector.json").read_text())["record"]["schedule"]
    assert {name: (each["steps"], each["rounds"]) for name, each in found.items()} == {
        "by-itself": (3150, 50),
        "at-once": (4, None),
        "as-ever": (100, None),
        "as-it-was": (3, None),
    }


def test_another_method_leaves_the_settings_of_the_configs_method_alone(fitted, place):
    """settings.toml holds the settings of woods; woods-alt has its own."""
    words = [
        "fit",
        "--config",
        "d/settings.toml",
        "--method",
        "woods-alt",
        "--epochs",
        "1",
        "--batch",
        "32",
        "--alpha",
        "0.1",
    ]
    done = wildood_says(place, *words, "--out", "other")
    assert done.returncode == 0, done.stderr
    record = json.loads((place / "other" / "detector.json").read_text())["record"]
    assert (record["method"]["name"], record["method"]["mu2"]) == ("WoodsAlt", 0.3)
    assert (record["schedule"]["epochs"], record["schedule"]["steps"]) == (1, None)


def test_a_warning_survives_quiet(place):
    words = [*FIT, "--model", "mlp:inputs=3,classes=2,hidden=8", "--steps", "2"]
    done = wildood_says(place, *words, "--out", "w", "--quiet")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.decode().splitlines()
    assert len([line for line in lines if line.startswith("epoch")]) == 0
    assert "of labelled only: start from a trained one (pretrain makes one; --weights on the command line)" in lines[0]


def test_score_gives_a_line_for_each_example_as_the_library_does(fitted, place):
    done = wildood_says(place, "score", "d", "new.npy", "--model", "own:build")
    rows = list(csv.DictReader(done.stdout.decode().splitlines()))
    sys.path.insert(0, str(place))
    import own  # noqa: PLC0415 - written by the fixture

    detector = wildood.load(place / "d", model=own.build)
    x = np.load(place / "new.npy")
    assert [float(row["score"]) for row in rows] == pytest.approx(detector.score(x).tolist(), abs=1e-6)
    assert [int(row["class"]) for row in rows] == detector.classify(x).tolist()
    unknown = (detector.predict(x) == wildood.UNKNOWN).tolist()
    assert [row["decision"] == "unknown" for row in rows] == unknown


def test_score_reads_standard_input_and_writes_json_lines_to_a_file(fitted, place):
    content = (place / "new.npy").read_bytes()
    done = wildood_says(
        place, "score", "d", "-", "--model", "own:build", "--format", "jsonl", "--out", "s.jsonl", stdin=content
    )
    assert (done.returncode, done.stdout) == (0, b"")
    rows = [json.loads(line) for line in (place / "s.jsonl").read_text().splitlines()]
    assert [row["example"] for row in rows] == list(range(7))


def test_a_shipped_model_need_not_be_named_again(place):
    words = [*FIT, "--model", "mlp:inputs=3,classes=2,hidden=8", "--weights", "w.safetensors", "--steps", "2", "--out", "m"]
    done = wildood_says(place, *words)
    assert done.returncode == 0, done.stderr
    assert wildood_says(place, "score", "m", "new.npy").returncode == 0


def test_show_says_what_it_is_without_the_model(fitted, place):
    text = wildood_says(place, "show", "d").stdout.decode()
    for part in ("Sequential", "EnergyScore", "false-alarm rate <= 10 %", "Woods: alpha 0.1", "steps 6", "seed"):
        assert part in text
    assert json.loads(wildood_says(place, "show", "d", "--json").stdout)["record"]["seed"] == 0


MISTAKES = {
    "no command": (["ft"], "no command 'ft': did you mean 'fit'?"),
    "nothing required": (["fit"], "fit needs --labelled and --wild and --model and --out"),
    "no such option": (["fit", "--stepz", "3"], "unrecognized options: --stepz, 3: did you mean --steps?"),
    "no such flag": (["fit", "--froze"], "unrecognized options: --froze: did you mean --frozen?"),
    "no such flag to take back": (["fit", "--no-froze"], "unrecognized options: --no-froze: did you mean --no-frozen?"),
    "not a number": (["fit", "--steps", "x"], "--steps cannot be 'x'. See wildood fit --help"),
    "not a whole number": (["fit", "--seed", "x"], "wildood: fit: --seed cannot be 'x'. See"),
    "not one of few": (["fit", "--decay", "x"], "--decay cannot be 'x': it is one of cosine, milestones. See"),
    "not numbers": (["fit", "--mean", "0.5", "x"], "--mean cannot be '0.5', 'x'"),
    "no such choice": (["fit", "--method", "wods"], "it is one of csi, energy-logistic, energy-margin"),
    "nothing to score": (["score", "d"], "missing: EXAMPLES"),
    "one word too many": (["show", "d", "e"], "unrecognized options: e"),
    "toml: no such method": (["fit", "--config", "method.toml"], "it is one of csi, energy-logistic, energy-margin"),
    "toml: no number": (["fit", "--config", "steps.toml"], "--steps cannot be 'many'"),
    "toml: no flag": (["fit", "--config", "frozen.toml"], "--config: frozen is 'yes': give true or false"),
    "toml: no such name": (["fit", "--config", "name.toml"], "no option is named 'stepz'"),
    "toml: not text": (["fit", "--config", "bytes.toml"], "bytes.toml is not TOML"),
    "of another method": ([*OURS, "--method", "oe", "--gamma", "2", "--out", "x"], "--gamma is not a setting of oe"),
    "published oe": ([*OURS, "--method", "oe", "--as-published", "--out", "x"], "--as-published is for woods"),
    "size of vectors": ([*OURS, "--size", "8", "8", "--out", "x"], "--size is for images: give --mean and --std, too"),
    "holdout in wild": ([*OURS, "--wild", "holdout.npz", "--out", "x"], "100 of the 100 holdout examples are in wild, too"),
    "a path as a module": ([*FIT, "--model", "./own:build", "--out", "x"], "give module:function"),
    "no such file": ([*OURS, "--labelled", "no.npz", "--out", "x"], "--labelled: no.npz: No such file or directory"),
    "not arrays": ([*OURS, "--wild", "own.py", "--out", "x"], "--wild: own.py is not of a kind that can be opened"),
    "unknown names": ([*OURS, "--labelled", "odd.npz", "--out", "x"], "no array named x or images"),
    "no such module": ([*FIT, "--model", "nowhere:build", "--out", "x"], "no module named 'nowhere'"),
    "no such function": ([*FIT, "--model", "own:biuld", "--out", "x"], "own has no 'biuld'"),
    "not a model": ([*FIT, "--model", "own:nothing", "--out", "x"], "it must build a torch.nn.Module"),
    "no such model": ([*FIT, "--model", "resnet", "--out", "x"], "give one of wideresnet, resnet20"),
    "bad settings": ([*FIT, "--model", "mlp:inputs=3", "--out", "x"], "give settings as in smallcnn:classes=7"),
    "no weights": ([*OURS, "--weights", "none.safetensors", "--out", "x"], "none.safetensors: there is no such file"),
    "bad weights": ([*OURS, "--weights", "model.txt", "--out", "x"], "cannot be read as safetensors"),
    "weights of another": ([*OURS, "--weights", "w.safetensors", "--out", "x"], "do not fit the model"),
    "half a spec": ([*OURS, "--mean", "0.5", "--out", "x"], "--mean and --std belong together"),
    "two lengths": ([*OURS, "--epochs", "2", "--out", "x"], "--steps and --epochs: give one of them"),
    "bad alpha": ([*OURS, "--alpha", "2", "--out", "x"], "alpha is 2.0: give a false-alarm rate"),
    "no config": (["fit", "--config", "no.toml"], "--config no.toml: No such file"),
    "not a detector": (["show", "."], "detector.json cannot be read"),
    "model not named": (["score", "d", "new.npy"], "made with a model of your own"),
    "no such features": ([*OURS, "--features", "9", "--out", "x"], "no submodule '9': name one that gives one vector"),
    "no such grid": ([*OURS, "--grid", "wait=1,2", "--out", "x"], "--grid wait=1,2: give settings with their values"),
    "grid of words": ([*OURS, "--grid", "mu2=a", "--out", "x"], "give numbers with commas"),
    "grid of alphas": ([*OURS, "--grid", "alpha=0.05,0.1", "--out", "x"], "false-alarm rate: set it with --alpha"),
    "small holdout": ([*OURS, "--alpha", "0.01", "--out", "x"], "a larger alpha (--alpha), or keep='last' (--keep last)"),
    "small grid": ([*OURS, "--alpha", "0.02", "--grid", "mu2=1,2", "--out", "x"], "needs 49 in each: give 147 in all"),
    "grid without": ([*OURS, "--keep", "last", "--grid", "mu2=1,2", "--out", "x"], "leave out keep= (--keep)"),
    "another run": ([*OURS, "--out", "d", "--seed", "5"], "belongs to another run: its seed is 0"),
    "a seed below 0": ([*OURS, "--out", "x", "--seed", "-1"], "seed is -1: give a whole number from 0 on"),
    "endless": ([*OURS[:-2], "--epochs", "9" * 23, "--out", "x"], "epochs is 99999999999999999999999: give a positive"),
    "layer of less than none": ([*FIT, "--model", "mlp:inputs=-64,classes=3", "--out", "x"], "inputs is -64: give a whole"),
    "layer beyond memory": ([*FIT, "--model", f"mlp:inputs=4,classes={'9' * 12}", "--out", "x"], "from 1 to 1048576"),
    "endless network": ([*FIT, "--model", "wideresnet:depth=99999999994", "--out", "x"], "depth is 99999999994: give 6n"),
    "no module": ([*FIT, "--model", ":f", "--out", "x"], "--model :f: give one of wideresnet, resnet20"),
    "model of arguments": ([*FIT, "--model", "os.path:join", "--out", "x"], "missing a required argument: 'a'"),
    "toml: NUL in a path": (["fit", "--config", "nul.toml"], "'a\\x00b' holds a NUL character: leave it out"),
    "toml: brackets without end": (["fit", "--config", "deep.toml"], "deep.toml is not TOML"),
    "toml: a pipe": (["fit", "--config", "pipe.toml"], "pipe.toml is a pipe, a socket or a device: give a plain file"),
    "a pipe of arrays": ([*OURS, "--wild", "pipe.npy", "--out", "x"], "--wild: pipe.npy is a pipe, a socket or a device"),
    "a pipe to score": (["score", "d", "pipe.npy", "--model", "own:build"], "pipe.npy is a pipe, a socket or a device"),
    "a name of two lines": (["fit", "--config", "a\nb"], "--config a b: No such file or directory"),
    "a very long word": ([*OURS, "--out", "y" * 5000], "which no file can be named: give another path"),
}  # fmt: skip


@pytest.mark.parametrize("error", [MemoryError("36 TiB"), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_sizes_beyond_memory_give_one_line(error, monkeypatch, capsys):
    monkeypatch.setattr("wildood.cli.show.run", lambda _words: (_ for _ in ()).throw(error))
    assert main(["show", "d"]) == 2
    assert capsys.readouterr().err == f"wildood: there is not enough memory for these sizes: give smaller ones ({error})\n"


def test_a_bug_still_shows_where_it_is(monkeypatch):
    monkeypatch.setattr("wildood.cli.show.run", lambda _words: (_ for _ in ()).throw(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        main(["show", "d"])


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gives_one_line_and_exit_code_2(fitted, place, mistake, monkeypatch, capsys):
    words, message = MISTAKES[mistake]
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", sys.path[:])
    assert main(words) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    *before, last = printed.err.splitlines()
    assert last.startswith("wildood: ")
    assert all(
        re.fullmatch(r"(labelled|wild|holdout): \d+ examples( of \d classes)? from \w+\.npz", line) for line in before
    )
    assert printed.out == ""


def test_a_mistake_gives_exit_code_2_in_the_shell(place):
    done = wildood_says(place, "score", "nowhere", "new.npy")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith("wildood: nowhere/detector.json cannot be read")


def test_a_bug_shows_its_traceback(place):
    (place / "broken.py").write_text("def build():\n    raise ZeroDivisionError('a bug')\n")
    done = wildood_says(place, *FIT, "--model", "broken:build", "--out", "x")
    assert done.returncode == 1
    assert b"Traceback" in done.stderr


@contextmanager
def started(place, *words):
    """A command at work, which does not outlive the test."""
    process = subprocess.Popen(
        [sys.executable, "-m", "wildood", *words],
        cwd=place,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # A shell starts what runs in its background with SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads here
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def saved_step(run):
    return load_state((run / "checkpoint.safetensors").read_bytes())["state"]["step"]


@pytest.mark.parametrize("command", ["fit", "pretrain"])
def test_ctrl_c_leaves_a_run_that_goes_on_from_where_it_was(place, command):
    pretrain = ["pretrain", "--labelled", "labelled.npz", "--batch", "32", "--augment", "False"]
    words = [*(FIT if command == "fit" else pretrain), "--model", "own:build", "--steps", "200000"]
    words += ["--out", f"long-{command}"]
    run = place / f"long-{command}" / "run"
    with started(place, *words) as process:
        deadline = time.monotonic() + 300
        while not (run / "history.jsonl").exists() or len((run / "history.jsonl").read_bytes().splitlines()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert errors.decode().endswith("wildood: interrupted; called again, training goes on from where it was\n")
    assert b"Traceback" not in errors
    step = saved_step(run)
    with started(place, *words) as again:
        resuming = next(line for line in again.stderr if line.startswith((b"resuming", b"epoch")))
    assert resuming.decode() == f"resuming long-{command}/run at step {step} of 200000\n"


def test_a_reader_that_has_had_enough_is_no_error(fitted, place):
    pipeline = f"{sys.executable} -m wildood score d new.npy --model own:build | head -1"
    done = subprocess.run(
        ["/bin/bash", "-o", "pipefail", "-c", pipeline], cwd=place, env=ENVIRONMENT, capture_output=True, check=False
    )
    assert done.stderr == b"examples: 7 examples from new.npy\n"
    assert done.stdout.startswith(b"example,score")
