"""What the README and the guide tell a user to type, typed."""

import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import wildood
from wildood.cli.main import main
from wildood.cli.options import parse
from wildood.cli.reproduce import ReproduceOptions
from wildood.experiments.experiment import Experiment
from wildood.experiments.grids import add_own_methods, grid, register
from wildood.experiments.run import run
from wildood.experiments.store import Result, RunStore
from wildood.methods.schedule import Schedule
from wildood.methods.shipped import METHODS
from wildood.models.resnet import ResNet20
from wildood.models.small import SmallCNN
from wildood.models.wide_resnet import WideResNet
from wildood.scores.shipped import NAMES as SCORES

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ("README.md", "docs/guide.md", "docs/baselines.md")
SHORT = {"fit": ["--steps", "2", "--batch", "16"], "demo": ["--seeds", "1"], "pretrain": ["--batch", "16"]}


def blocks(document, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


class HuggingFaceStyle(torch.nn.Module):
    """Takes pixel_values, returns an output with .logits."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(num_labels=3)
        self.classifier = SmallCNN(channels=3, classes=3, width=4, hidden=8)

    def forward(self, pixel_values=None, labels=None):
        return SimpleNamespace(loss=None, logits=self.classifier(pixel_values))


def learn(model, x, y):
    """A little: the documents speak of a trained classifier."""
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(40):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()


def names():
    """What the documents take for granted: a user's models and data, small."""
    rng = np.random.default_rng(0)

    def vectors(count):
        y = rng.integers(0, 2, count)
        return (rng.normal(size=(count, 3)) + 3 * y[:, None]).astype("float32"), y

    def images(count):
        return rng.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8), rng.integers(0, 3, count)

    def frame(count):
        sizes, kinds = vectors(count)
        return {"size": sizes[:, 0], "service": np.where(kinds, "ssh", "http"), "type": np.where(kinds, "shell", "web")}

    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    (x, y), (x_new, y_new), (x_later, y_later) = vectors(300), vectors(120), vectors(60)
    learn(model, torch.tensor(x), torch.tensor(y))
    pictures, labels = images(300)
    new_images, new_labels = images(60)
    return {
        "model": model,
        "hf_model": HuggingFaceStyle(),
        "photo_model": SmallCNN(channels=3, classes=2, size=32, width=4, hidden=8),
        "image_model": SmallCNN(channels=3, classes=3, width=4, hidden=8),
        "processor": lambda given, return_tensors: {"pixel_values": given.transpose(0, 3, 1, 2).astype("float32") / 255},
        "x": x,
        "y": y,
        "x_new": x_new,
        "y_new": y_new,
        "x_later": x_later,
        "y_later": y_later,
        "x_wild": vectors(300)[0],
        "x_traffic": vectors(300)[0],
        "ask": lambda example: example[0] > 3,
        "batch": vectors(4)[0],
        "pictures": pictures,
        "images": pictures,
        "labels": labels,
        "traffic": images(300)[0],
        "wild_images": images(300)[0],
        "new_images": new_images,
        "new_labels": new_labels,
        "x_svhn": vectors(60)[0] - 6,
        "frame": frame(300),
        "frame_wild": frame(300),
        "frame_new": frame(120),
        "frame_later": frame(60),
    }


def draw_pictures(place):
    rng = np.random.default_rng(0)
    for folder, count in (("photos/cat", 40), ("photos/dog", 40), ("inbox", 30)):
        (place / folder).mkdir(parents=True)
        for number in range(count):
            shape = (*rng.integers(32, 48, 2), 3)
            Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(place / folder / f"{number}.png")


@pytest.mark.slow
@pytest.mark.parametrize("document", [*DOCUMENTS, "docs/data.md"])
def test_the_python_blocks_run_one_after_the_other(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WILDOOD_DATA", str(tmp_path / "data"))
    draw_pictures(tmp_path)
    monkeypatch.setattr("wildood.methods.woods.Schedule", lambda **_: Schedule(steps=3, batch=32))
    torch.manual_seed(0)
    space = names()
    before = {name: value.clone() for name, value in space["model"].state_dict().items()}
    found = blocks(document, "python")
    assert len(found) >= 2
    for block in found:
        exec(compile("import wildood\n" + block, document, "exec"), space)  # noqa: S102 - our own documents
    assert isinstance(space["detector"], wildood.Detector)
    assert all(torch.equal(before[name], value) for name, value in space["model"].state_dict().items())


@pytest.mark.slow
def test_the_experiment_of_the_document_runs_and_starts_as_the_digits_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("docs/experiments.md", "python")
    space = {}
    exec(compile(block, "docs/experiments.md", "exec"), space)  # noqa: S102 - our own document
    assert space["experiment"] in grid("digits", seeds=1)
    assert 0.9 <= space["result"].accuracy <= 1


def test_the_experiment_file_of_the_document_is_one_of_digits():
    (block,) = blocks("docs/experiments.md", "toml")
    assert Experiment.from_toml(block) in grid("digits", seeds=1)


def test_every_key_of_an_experiment_and_all_its_names_are_in_the_document():
    text = (ROOT / "docs/experiments.md").read_text(encoding="utf-8")
    table = [line for line in text.splitlines() if re.match(r"\| `\[?\w+\]?`", line)]
    keys = [key for line in table for key in re.findall(r"`\[?(\w+)\]?`", line.split("|")[1])]
    assert set(keys) >= {field.name for field in fields(Experiment)}
    (method,) = (line for line in table if line.startswith("| `method`"))
    assert {*METHODS, *SCORES} <= set(re.findall(r"`([\w-]+)`", method))
    (schedule,) = (line for line in table if line.startswith("| `[schedule]`"))
    assert {field.name for field in fields(Schedule)} <= set(re.findall(r"`(\w+)`", schedule))


def test_the_method_and_the_score_of_the_document_run_beside_the_others(small, small_root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, block in zip(("method_of_document", "score_of_document"), blocks("docs/method.md", "python"), strict=True):
        (tmp_path / f"{name}.py").write_text(block.replace("steps=100", "steps=4"))
    names = ["method_of_document:Mine", "score_of_document:Gap"]
    try:
        register(names)
        _, *own = add_own_methods([small], names)
        found = [run(experiment, RunStore(tmp_path / "runs"), small_root) for experiment in own]
    finally:
        METHODS.pop(names[0], None)
        SCORES.pop(names[1], None)
    assert [type(each) for each in found] == [Result, Result]
    assert found[0].history[-1]["step"] == 6  # as many as woods, not its own 4
    assert found[0].experiment.settings == {"weight": 0.1, "alpha": 0.05}
    assert found[1].experiment.settings == {"power": 1.0}


@pytest.mark.slow
def test_the_commands_of_the_experiments_are_those_of_the_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("wildood.experiments.plan.TIMED_IMAGES", 2)
    save_file(WideResNet(100).state_dict(), tmp_path / "wrn-40-2-cifar100.safetensors")
    asked = [shlex.split(line)[1:] for line in commands("docs/experiments.md")]
    assert {words[0] for words in asked} == {"reproduce", "report"}
    for words in asked:
        if words[0] == "reproduce" and "--data-root" not in words:
            assert main([*words, *(["--dry-run"] if "--dry-run" not in words else [])]) == 0
        elif words[0] == "reproduce":
            assert parse(ReproduceOptions, "reproduce", words[1:]).name == "cpu"


def test_the_readme_puts_predict_where_argmax_was():
    torch.manual_seed(0)
    space = names()
    exec(compile(blocks("README.md", "python")[0], "README.md", "exec"), space)  # noqa: S102 - our own document
    assert space["answers"].shape == (4,)
    assert set(space["answers"].tolist()) <= {wildood.UNKNOWN, 0, 1}
    assert space["detector"].promise.unseen


@pytest.fixture
def place(tmp_path):
    rng = np.random.default_rng(0)
    for name, count in (("a", 120), ("b", 40), ("h", 60), ("new", 5), ("test", 30), ("svhn", 20), ("textures", 20)):
        x, y = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, count)
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    save_file(ResNet20().state_dict(), tmp_path / "w.safetensors")
    return tmp_path


def commands(document):
    lines = "\n".join(blocks(document, "sh")).replace("\\\n", " ").splitlines()
    return [line.split("  #")[0].strip() for line in lines if line.strip()]


def exit_code(command, place):
    """Of a command, in this process unless it needs a shell."""
    if not set("|<>$*") & set(command):
        return main(shlex.split(command)[1:])
    line = command.replace("wildood ", f"{shlex.quote(sys.executable)} -m wildood ", 1)
    return subprocess.run(
        ["/bin/bash", "-o", "pipefail", "-c", line], cwd=place, capture_output=True, check=False
    ).returncode


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_commands_run_one_after_the_other(document, place, monkeypatch, capsys, one_thread):
    monkeypatch.chdir(place)
    found = [command for command in commands(document) if command.startswith("wildood ")]
    assert len(found) >= 2
    for command in found:
        name = command.split()[1]
        short = SHORT.get(name, []) if "--seeds" not in command else []
        shortened = " ".join([command.replace("--seeds 2", "--seeds 1").replace("--epochs 40", "--epochs 1"), *short])
        good = {0, 3} if name == "inspect" else {0}  # 3: by chance, noise looks unknown in up to 5 % of all draws
        assert exit_code(shortened, place) in good, f"{command}\n{capsys.readouterr().err}"
    assert (place / "detector" / "report.html").exists()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_is_to_be_made_can_be_made(document):
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for command in commands(document):
        if command.startswith("make "):
            assert command.split()[1] in targets
    assert {"demo", "test"} <= set(targets)


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
)
def test_every_link_within_the_project_leads_somewhere(document):
    path = ROOT / document
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        name, _, heading = target.partition("#")
        linked = (path.parent / name) if name else path
        assert linked.exists(), target
        if not heading:
            continue
        headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in headings}
        assert heading in slugs, target


def test_the_exit_codes_of_the_guide_are_those_of_the_program():
    from wildood.cli import main  # noqa: PLC0415 - its name is taken by the function elsewhere

    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", (ROOT / "docs/guide.md").read_text("utf-8"), re.MULTILINE)}
    assert listed == {main.OK, 1, main.MISTAKE, main.FOUND, main.FAILED, main.INTERRUPTED}
