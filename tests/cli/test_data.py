"""`wildood data` as a user types it, with tiny sets from a file_server on this machine."""

import io
import os
import pickle
import subprocess
import sys
import tarfile
from dataclasses import replace

import numpy as np
import pytest
from scipy.io import savemat

from wildood.cli.main import main
from wildood.data.catalog import SETS, SetPart

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def sets(file_server, monkeypatch):
    """CIFAR-10 and SVHN with a few images, from this machine; nothing else can be downloaded."""
    for name in SETS:
        monkeypatch.setitem(SETS, name, replace(SETS[name], downloads=()))
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name, count in (*((f"data_batch_{number}", 2) for number in range(1, 6)), ("test_batch", 3)):
            rows = RNG.integers(0, 256, (count, 3072), dtype=np.uint8)
            add(tar, name, {"data": rows, "labels": [1] * count})
        add(tar, "batches.meta", {"label_names": [str(number) for number in range(10)]})
    file = file_server.publish("cifar-10-python.tar.gz", content.getvalue(), unpacked=1_000_000, members=20)
    parts = tuple(replace(part, count=count) for part, count in zip(SETS["cifar10"].parts, (10, 3), strict=True))
    monkeypatch.setitem(SETS, "cifar10", replace(SETS["cifar10"], downloads=(file,), parts=parts))

    matlab = io.BytesIO()
    savemat(matlab, {"X": RNG.integers(0, 256, (32, 32, 3, 4), dtype=np.uint8), "y": np.arange(1, 5)})
    files = [file_server.publish(f"{part}_32x32.mat", matlab.getvalue(), part=part) for part in ("train", "test")]
    parts = (*(SetPart(part, 4, (f"{part}_32x32.mat",)) for part in ("train", "test")), SETS["svhn"].part("extra"))
    monkeypatch.setitem(SETS, "svhn", replace(SETS["svhn"], downloads=tuple(files), parts=parts))


def add(tar, name, content):
    written = pickle.dumps(content, protocol=2)
    info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
    info.size = len(written)
    tar.addfile(info, io.BytesIO(written))


def rows_of(table):
    """The cells of the table's rows, wrapped lines joined."""
    lines = table.splitlines()
    header = next(number for number, line in enumerate(lines) if "what it is" in line)
    starts = [lines[header].index(heading) for heading in ("name", "what it is", "images", "download", "where")]
    rows = []
    for line in lines[header + 2 : -1]:
        cells = [line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]
        if cells[0]:
            rows.append(cells)
        elif any(cells):
            rows[-1] = [" ".join(filter(None, pair)) for pair in zip(rows[-1], cells, strict=True)]
    return {row[0]: row[1:] for row in rows}


@pytest.mark.parametrize("width", [80, 120])
def test_list_says_what_there_is_and_where_and_fits_the_terminal(tmp_path, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["data", "get", "svhn", "--quiet", "--data-root", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["data", "list", "--data-root", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[-1] == f"below {tmp_path}"
    assert max(map(len, out.splitlines()[:-1])) <= width
    rows = rows_of(out)
    assert list(rows) == list(SETS)
    assert rows["cifar10"] == ["CIFAR-10: ten classes of animals and vehicles", "train 10 test 3", "0 MB", "missing"]
    assert rows["svhn"][1:] == ["train 4 test 4 extra 531,131", "0 MB", "svhn (without extra)"]
    assert rows["digits"][1:] == ["all 1,797", "nothing", "in scikit-learn"]


def test_get_downloads_checks_and_unpacks_and_the_second_time_does_nothing(tmp_path, capsys):
    words = ["data", "get", "cifar10", "svhn:test", "--data-root", str(tmp_path)]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert out == "cifar10: cifar10/cifar-10-batches-py\nsvhn: svhn (without train, extra)\n"
    assert "cifar10: downloading http://127.0.0.1" in err
    assert "no licence stated" in err
    assert not (tmp_path / "downloads" / "cifar-10-python.tar.gz").exists()
    assert main(words) == 0
    assert capsys.readouterr() == (out, "")


def test_get_may_keep_archives_and_be_quiet(tmp_path, capsys):
    assert main(["data", "get", "cifar10", "--keep-archives", "--quiet", "--data-root", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""
    assert (tmp_path / "downloads" / "cifar-10-python.tar.gz").exists()


def test_the_data_root_may_come_from_the_environment(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WILDOOD_DATA", str(tmp_path))
    assert main(["data", "get", "svhn"]) == 0
    assert (tmp_path / "svhn" / "train_32x32.mat").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["get", "cifar1O"], "no set is named 'cifar1O': did you mean cifar10?"),
        (["get", "cifar10", "svnh"], "no set is named 'svnh': did you mean svhn?"),
        (["get", "svhn:val"], "svhn has no part 'val': give svhn:train, svhn:test or svhn:extra"),
        (["get"], "data get needs the name of a set: wildood data list shows them"),
        (["check", "elephants"], f"no set is named 'elephants': give one of {', '.join(SETS)}"),
        (["lits"], "data: action cannot be 'lits': it is one of check, get, list. See wildood data --help"),
        ([], "data: missing: ACTION. See wildood data --help"),
        (["list", "--rot", "x"], "data: unrecognized options: --rot, x. See wildood data --help"),
    ],
)
def test_a_mistake_is_one_line_and_downloads_nothing(tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.setenv("WILDOOD_DATA", str(tmp_path))
    assert main(["data", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"wildood: {message}")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_fails_is_one_line(tmp_path, capsys, file_server):
    del file_server.files["cifar-10-python.tar.gz"]
    assert main(["data", "get", "cifar10", "--quiet", "--data-root", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("wildood: cifar-10-python.tar.gz: the source says 404")
    assert err.count("\n") == 1


def test_ctrl_c_says_that_the_download_goes_on_later(tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("wildood.data.download._write", interrupted)
    assert main(["data", "get", "svhn", "--quiet", "--data-root", str(tmp_path)]) == 130
    assert "called again, it goes on from where it was" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "svhn").iterdir()] == ["train_32x32.mat.part"]


def test_check_opens_counts_and_compares_what_is_there(tmp_path, capsys):
    assert main(["data", "get", "cifar10", "svhn", "--keep-archives", "--data-root", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["data", "check", "--data-root", str(tmp_path)]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["cifar10:train", "10", "images", "ok"],
        ["cifar10:test", "3", "images", "ok"],
        ["downloads/cifar-10-python.tar.gz", "checksum", "ok"],
        ["svhn:train", "4", "images", "ok"],
        ["svhn:test", "4", "images", "ok"],
        ["svhn/train_32x32.mat", "checksum", "ok"],
        ["svhn/test_32x32.mat", "checksum", "ok"],
        ["digits:all", "1,797", "images", "ok"],
    ]


def test_check_tells_everything_that_is_wrong(tmp_path, capsys, monkeypatch):
    assert main(["data", "get", "cifar10", "svhn", "--quiet", "--data-root", str(tmp_path)]) == 0
    (tmp_path / "svhn" / "test_32x32.mat").write_bytes(b"torn")
    (tmp_path / "cifar10" / "cifar-10-batches-py" / "test_batch").write_bytes(b"torn")
    more = tuple(replace(part, count=part.count + 1) for part in SETS["cifar10"].parts)
    monkeypatch.setitem(SETS, "cifar10", replace(SETS["cifar10"], parts=more))
    capsys.readouterr()
    assert main(["data", "check", "cifar10", "svhn", "isun", "--data-root", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    said = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert said["cifar10:train"] == "WRONG: 10 images, officially 11"
    assert "test_batch is not one of CIFAR's Python files" in said["cifar10:test"]
    assert said["svhn:train"] == "4 images ok"
    assert said["svhn:test"].startswith("WRONG: ")
    assert said["svhn/test_32x32.mat"].startswith("WRONG: its md5 is ")
    assert said["isun:all"].startswith("WRONG: isun is not below")
    assert err == "wildood: data check: 5 of 7 are not as expected: see above\n"


def test_check_of_an_empty_root_is_no_mistake(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("wildood.data.catalog.find_spec", lambda _: None)
    assert main(["data", "check", "--data-root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"no named set is below {tmp_path}: wildood data get NAME brings one\n"


def test_one_part_is_checked_alone(tmp_path, capsys):
    assert main(["data", "get", "svhn", "--quiet", "--data-root", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["data", "check", "svhn:test", "--data-root", str(tmp_path)]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["svhn:test", "svhn/test_32x32.mat"]


def test_list_starts_without_torch(tmp_path):
    code = "import sys; from wildood.cli.main import main; main(['data', 'list']); sys.exit('torch' in sys.modules)"
    environment = os.environ | {"WILDOOD_DATA": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
