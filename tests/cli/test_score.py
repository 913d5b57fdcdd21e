"""`wildood score`: the lines of every example, and an output that continues where it was interrupted, here and on Ray."""

import io
import os
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import wildood
from wildood.cli import score as command
from wildood.cli.main import main
from wildood.data import archives
from wildood.data.archives import ArrayShard
from wildood.data.texts import TextShard
from wildood.detect.bulk import ShardDirectory
from wildood.errors import InputError
from wildood.models.small import MLP, SmallCNN

KILLED = Path(__file__).parents[1] / "programs" / "killed_score.py"
RAY = ["score", "d", "few.npy", "--out", "a.csv", "--ray", "local"]
# A start that Ray gives up leaves unclosed pipes of its own; the next attempt is what counts.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two detectors of vectors and one of pictures, 20,000 vectors and 1,000 pictures."""
    place, rng = tmp_path_factory.mktemp("made"), np.random.default_rng(0)
    torch.manual_seed(0)
    x = rng.normal(size=(20_000, 4)).astype("float32")
    np.save(place / "x.npy", x)
    for name, alpha in (("d", 0.2), ("other", 0.1)):
        wildood.posthoc(MLP(4, 3), wildood.EnergyScore(), holdout=x[:200], alpha=alpha).save(place / name)
    pixels = rng.integers(0, 256, (1000, 8, 8, 3), dtype=np.uint8)
    spec = wildood.InputSpec(mean=(0.5,) * 3, std=(0.25,) * 3)
    model = SmallCNN(channels=3, classes=3, width=4, hidden=8)
    wildood.posthoc(model, wildood.EnergyScore(), holdout=pixels[:200], alpha=0.2, input=spec).save(place / "seeing")
    (place / "inbox").mkdir()
    for number, picture in enumerate(pixels):
        Image.fromarray(picture).save(place / "inbox" / f"{number:04}.png")
    return place


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    for name in ("d", "other", "seeing"):
        shutil.copytree(made / name, tmp_path / name)
    for name in ("x.npy", "inbox"):
        (tmp_path / name).symlink_to(made / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WILDOOD_DATA", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(archives, "LARGEST", 256)


def whole(*words):
    assert main(["score", *words, "--out", "whole"]) == 0
    return Path("whole").read_bytes()


def interrupt(monkeypatch, after, *words):
    """The command, interrupted before it writes another shard."""
    with monkeypatch.context() as patch:
        really, written = ShardDirectory.write, []

        def write(directory, shard, scores):
            if len(written) == after:
                raise KeyboardInterrupt
            written.append(shard)
            really(directory, shard, scores)

        patch.setattr(ShardDirectory, "write", write)
        assert main(["score", *words]) == 130


@pytest.mark.slow
@pytest.mark.parametrize("moment", [4, 7])  # a shard is on the disk but has no name yet; the shards are being joined
def test_killed_at_any_moment_it_continues_to_the_same_bytes(place, moment):
    words = ["score", "d", "x.npy", "--out", "a.csv"]
    expected = whole("d", "x.npy")
    killed = subprocess.run([sys.executable, KILLED, str(moment), *words], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not Path("a.csv").exists()
    assert len(list(Path("a.csv.part").glob("*.shard"))) == moment - 2
    assert main(words) == 0
    assert Path("a.csv").read_bytes() == expected
    assert list(Path().glob("*.part*")) == []


def test_interrupted_it_says_what_is_kept_and_called_again_where_it_continues(place, monkeypatch, capsys):
    words = ["d", "x.npy", "--out", "a.csv"]
    expected = whole("d", "x.npy")
    capsys.readouterr()
    interrupt(monkeypatch, 2, *words)
    assert "a.csv.part keeps 8192 lines: the same command continues from there\n" in capsys.readouterr().err
    assert main(["score", *words]) == 0
    assert "a.csv.part has 8192 lines already: continuing from there\n" in capsys.readouterr().err
    assert Path("a.csv").read_bytes() == expected
    assert main(["score", *words]) == 0  # and anew, in the place of what is whole
    assert "already" not in capsys.readouterr().err


def test_a_device_is_named_and_refused_where_there_is_none_or_ray(place, capsys):
    np.save("few.npy", np.load("x.npy")[:10])
    assert whole("d", "few.npy") == whole("d", "few.npy", "--device", "cpu")
    capsys.readouterr()
    assert main(["score", "d", "few.npy", "--device", "nowhere"]) == 2
    assert capsys.readouterr().err.startswith("wildood: device is 'nowhere', which torch cannot use here: give 'cpu'")
    assert main([*RAY, "--device", "cpu"]) == 2
    assert "with --ray, each task has a CPU" in capsys.readouterr().err


OTHERS = {
    "a detector": ["other", "x.npy"],
    "examples": ["d", "y.npy"],
    "a --format": ["d", "x.npy", "--format", "jsonl"],
}


@pytest.mark.parametrize("what", OTHERS)
def test_shards_of_another_call_are_refused_in_one_line_and_kept(place, monkeypatch, capsys, what):
    np.save("y.npy", np.load("x.npy"))
    interrupt(monkeypatch, 2, "d", "x.npy", "--out", "a.csv")
    kept = {path: path.read_bytes() for path in Path("a.csv.part").iterdir()}
    capsys.readouterr()
    assert main(["score", *OTHERS[what], "--out", "a.csv"]) == 2
    said = f"wildood: a.csv.part was begun with {what} other than now: remove it to begin anew, or give another --out"
    assert capsys.readouterr().err.splitlines()[-1] == said
    assert {path: path.read_bytes() for path in Path("a.csv.part").iterdir()} == kept


def test_standard_input_continues_if_it_is_the_same_again(place, monkeypatch, capsys):
    expected = whole("d", "x.npy")
    words = ["d", "-", "--out", "a.csv"]

    def typed(array):
        content = io.BytesIO()
        np.save(content, array)
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content.getvalue())))

    x = np.load("x.npy")
    typed(x)
    interrupt(monkeypatch, 2, *words)
    typed(np.where(np.arange(20_000)[:, None] == 5000, 0, x))
    assert main(["score", *words]) == 2
    assert "a.csv.part was begun with other examples than now" in capsys.readouterr().err
    typed(x)
    assert main(["score", *words]) == 0
    assert Path("a.csv").read_bytes() == expected


def test_an_output_that_is_no_plain_file_is_refused_and_stays(place, capsys):
    os.mkfifo("pipe")
    for out, what in (
        ("pipe", "is a directory or a device"),
        ("d", "is a directory or a device"),
        ("no/a", "is in a directory"),
    ):
        assert main(["score", "d", "x.npy", "--out", out]) == 2
        assert f"--out {out} {what}" in capsys.readouterr().err
    assert Path("pipe").is_fifo()


def test_standard_output_gets_the_same_lines(place, capsys):
    expected = whole("d", "x.npy")
    capsys.readouterr()
    assert main(["score", "d", "x.npy"]) == 0
    assert capsys.readouterr().out.encode() == expected


def test_pictures_have_the_scores_of_opened_ones_and_leave_no_cache(place, small_shards):
    lines = whole("seeing", "inbox").decode().splitlines()
    assert not (place / "data").exists()
    images = wildood.open_images("inbox")
    scores = wildood.load("seeing").score(images)
    assert [line.split(",")[:2] for line in lines[1:]] == [
        [name, str(float(score))] for name, score in zip(images.names, scores, strict=True)
    ]


def test_broken_picture_in_the_middle_stops_it_and_repaired_or_skipped_it_continues(place, small_shards, capsys):
    Path("inbox").unlink()
    shutil.copytree(next(place.parent.glob("made*")) / "inbox", "inbox")
    torn, words = Path("inbox/0600.png"), ["score", "seeing", "inbox", "--out", "a.csv"]
    sound = torn.read_bytes()
    torn.write_bytes(sound[:40])
    assert main(words) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "a.csv.part keeps 512 lines: the same command continues from there"
    assert said[1].startswith(f"wildood: {place / torn} cannot be read as a picture (")
    assert len(said) == 2
    shutil.copytree("a.csv.part", "b.csv.part")

    assert main([*words[:-1], "b.csv", "--skip-broken"]) == 0
    said = capsys.readouterr().err
    assert "left out, because it cannot be read: 0600.png (" in said
    assert said.endswith("inbox: 1 left out because they cannot be read\nexamples: 999 examples from inbox\n")
    names = [line.split(",")[0] for line in Path("b.csv").read_text().splitlines()[1:]]
    assert names == [f"{number:04}.png" for number in range(1000) if number != 600]

    torn.write_bytes(sound)
    assert main(words) == 0
    assert "a.csv.part has 512 lines already" in capsys.readouterr().err
    assert Path("a.csv").read_bytes() == whole("seeing", "inbox")


@pytest.mark.parametrize("out", ["-", "a.csv"])
def test_mistake_is_one_line_and_leaves_no_shards(place, capsys, out):
    Path("empty").mkdir()
    np.save("nan.npy", np.full((3, 4), np.nan, np.float32))
    np.save("wide.npy", np.zeros((3, 5), np.float32))
    mistakes = {
        "empty": "holds no pictures",
        "nan.npy": "x: example 0 holds NaN or infinity",
        "wide.npy": "x: an example has shape (5,), expected (4,)",
        "cifar11": "did you mean the named set cifar10?",
    }
    for examples, said in mistakes.items():
        assert main(["score", "d", examples, "--out", out]) == 2
        printed = capsys.readouterr()
        assert said in printed.err.splitlines()[-1]
        assert printed.out == ""
    assert list(Path().glob("a.csv*")) == []


@pytest.fixture
def few(place, small_shards, one_thread):
    """What a plain call writes for 3,000 examples in 12 shards."""
    x = np.load("x.npy")[:3000]
    np.save("few.npy", x)
    np.savez("few.npz", x=x)
    return whole("d", "few.npy")


def killed_once(real, notes, at):
    """The task of a worker that notes each shard, and is killed in the middle of one, the first time."""

    def score_task(shard, job):
        first = not notes.exists() or f" {at}\n" not in notes.read_text()
        with notes.open("a") as file:
            file.write(f"{os.getpid()} {shard.first}\n")
        if shard.first == at and first:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(shard, job)

    return score_task


@pytest.mark.slow
def test_killed_worker_and_interrupted_caller_change_no_byte(cluster, few, monkeypatch, capsys):
    task, notes, later = command.score_task, Path("notes.txt").absolute(), Path("later.txt").absolute()
    monkeypatch.setattr(command, "score_task", killed_once(task, notes, at=1024))
    interrupt(monkeypatch, 6, *RAY[1:])
    tries = [int(line.split()[1]) for line in notes.read_text().splitlines()]
    assert tries.count(1024) == 2
    assert max(tries) <= (6 + 2 * 2) * 256  # no further ahead than two shards for each of two CPUs
    # Another file: a task of the first call may still be ending.
    monkeypatch.setattr(command, "score_task", killed_once(task, later, at=-1))
    capsys.readouterr()
    assert main(RAY) == 0
    assert "a.csv.part has 1536 lines already" in capsys.readouterr().err
    tries = [int(line.split()[1]) for line in later.read_text().splitlines()]
    assert sorted(tries) == list(range(1536, 3000, 256))
    assert Path("a.csv").read_bytes() == few


@pytest.mark.parametrize(
    "make",
    [
        lambda first, n: ArrayShard(first, n, rows=np.zeros((n, 1))),
        lambda first, n: TextShard(first, n, parts={"input_ids": np.zeros((n, 1), np.int64)}),
    ],
)
def test_examples_that_are_sent_to_workers_fill_at_most_half_of_their_memory(make, monkeypatch):
    under_way, most = [], []

    def send(shard, _job):
        under_way.append(shard)
        most.append(sum(each.count for each in under_way))
        return shard

    def get(shard):
        under_way.remove(shard)
        return shard.count

    task = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=send))
    ray = SimpleNamespace(remote=lambda _: task, cluster_resources=lambda: {"CPU": 8}, get=get)
    monkeypatch.setattr(command, "connected", lambda *_, **__: nullcontext(ray))
    monkeypatch.setattr(command, "OBJECTS", 1000)  # bytes, of which an example has 8
    shards = [make(first, n) for first, n in enumerate([20, 20, 30, 100, 10, 10])]
    assert [count for _, count in command.score_on_ray(iter(shards), "local", None)] == [20, 20, 30, 100, 10, 10]
    assert most == [20, 40, 50, 100, 10, 20]


def test_workers_import_from_the_directory_of_the_caller_only_for_a_model_of_the_users(place, one_thread, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    job = command.Job.of(Path("d"), None, "csv")._replace(import_path="the caller's directory")
    command._load_detector.__wrapped__(job)
    assert job.import_path not in sys.path
    with pytest.raises(InputError):
        command._load_detector.__wrapped__(job._replace(model="no_such_module:build"))
    assert job.import_path in sys.path


@pytest.mark.slow
def test_rows_that_workers_cannot_read_from_the_disk_are_sent_to_them(cluster, few, capsys):
    assert main(["score", "d", "few.npz", "--ray", "local"]) == 0
    assert capsys.readouterr().out.encode() == few


@pytest.mark.slow
def test_what_a_worker_refuses_and_a_worker_that_dies_again_and_again_are_one_line(cluster, few, monkeypatch, capsys):
    x = np.load("few.npy")
    x[600] = np.nan
    np.save("nan.npy", x)
    assert main(["score", "d", "nan.npy", "--ray", "local"]) == 2
    assert capsys.readouterr().err.splitlines()[1:] == [
        "wildood: x: example 600 holds NaN or infinity: repair or drop such examples"
    ]
    with monkeypatch.context() as patch:
        patch.setattr(command, "__version__", "0.0.7")
        assert main(RAY) == 2
    assert capsys.readouterr().err.rstrip().endswith("this one 0.0.7: install the same on all")
    monkeypatch.setattr(command, "MOST_DEATHS", 1)
    monkeypatch.setattr(command, "score_task", lambda _shard, _job: os.kill(os.getpid(), signal.SIGKILL))
    np.save("few.npy", x[:200])
    assert main(RAY) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("wildood: the worker that scored examples 0 to 199 died, and so did those that tried again (")
    assert list(Path().glob("a.csv*")) == []
