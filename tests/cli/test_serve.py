"""`wildood serve`: it starts on a real address, collects in a habitat, and drains when it is told to stop."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager
from urllib.error import HTTPError

import numpy as np
import pytest

import wildood
from wildood.cli.main import main
from wildood.cli.serve import ServeOptions, build_service, bytes_of, open_habitat, read_token, seconds_of, serving_of
from wildood.detect.storage import read_description
from wildood.errors import InputError
from wildood.habitat.habitat import Habitat
from wildood.models.small import MLP

X = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return wildood.posthoc(MLP(4, 3), wildood.EnergyScore(), holdout=X, alpha=0.1).save(
        tmp_path_factory.mktemp("saved") / "d"
    )


@contextmanager
def serving(*words):
    """A server in a process of its own, and its address."""
    command = [sys.executable, "-m", "wildood", "serve", *map(str, words), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            yield process, re.search(r"http://\S+", line)[0], line
        finally:
            process.kill()


def post(address, path, value, **headers):
    request = urllib.request.Request(f"{address}{path}", json.dumps(value).encode(), headers)  # noqa: S310 - loopback
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - same
        return json.load(answer)


@pytest.mark.slow
def test_it_serves_collects_and_drains(saved, tmp_path):
    token, habitat = tmp_path / "token", tmp_path / "h"
    token.write_text("0123456789abcdef\n")
    words = (saved, "--habitat", habitat, "--token-file", token, "--wait", 300, "--sample", 1)
    with serving(*words) as (process, address, line):
        assert line == f"detector d0001 at {address} (habitat {habitat})\n"
        with pytest.raises(HTTPError, match="401"):
            post(address, "/predict", X[:1].tolist())
        answers = []
        bearer = {"Authorization": "Bearer 0123456789abcdef"}
        waiting = threading.Thread(target=lambda: answers.append(post(address, "/predict", X[:2].tolist(), **bearer)))
        waiting.start()
        while "wildood_waiting_examples 2.0" not in scraped(address, bearer):
            pass
        process.send_signal(signal.SIGTERM)  # while a request waits for others
        waiting.join()
        output, errors = process.communicate(timeout=20)
    assert (process.returncode, output, errors) == (0, "", "")
    assert answers[0]["detector"] == "d0001"
    assert np.allclose(answers[0]["score"], wildood.load(saved).score(X[:2]), rtol=1e-5)
    assert Habitat(habitat).store.rows().request.tolist() == [answers[0]["id"]] * 2
    assert Habitat(habitat).check() == []


def scraped(address, headers):
    request = urllib.request.Request(f"{address}/metrics", headers=headers)  # noqa: S310 - loopback
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - same
        return answer.read().decode()


def options(**changes):
    return ServeOptions(**changes)


def closed(service):
    name = service.follower.served.id
    service.close()
    return name


def test_a_new_habitat_is_made_from_the_detector_and_an_old_one_needs_none(saved, tmp_path):
    place = tmp_path / "h"
    assert closed(build_service(options(detector=saved, habitat=place, sample=0.5, budget="1GB"))) == "d0001"
    settings = Habitat(place).settings
    assert (settings.sample, settings.budget) == (0.5, 10**9)
    assert closed(build_service(options(habitat=place))) == "d0001"
    assert closed(build_service(options(detector=saved, habitat=place))) == "d0001"
    assert len(Habitat(place).detectors()) == 1


def test_another_detector_than_the_habitats_is_refused(saved, tmp_path):
    open_habitat(options(detector=saved, habitat=tmp_path / "h"))
    other = wildood.load(saved).calibrate(alpha=0.2).save(tmp_path / "other")
    with pytest.raises(InputError, match="is no detector of the habitat"):
        open_habitat(options(detector=other, habitat=tmp_path / "h"))


def test_without_a_habitat_nothing_is_recorded(saved):
    service = build_service(options(detector=saved))
    assert service.collector is None
    assert closed(service) == read_description(saved)["digest"][:12]


def test_what_is_recorded_is_redacted(saved, tmp_path, monkeypatch):
    (tmp_path / "privacy.py").write_text("def hide(x):\n    return 0 * x\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    service = build_service(options(detector=saved, habitat=tmp_path / "h", redact="privacy:hide"))
    assert service.collector.recorder._redact(X).sum() == 0
    service.close()
    with pytest.raises(InputError, match="--redact privacy:seek"):
        build_service(options(habitat=tmp_path / "h", redact="privacy:seek"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "needs a DETECTOR, or the --habitat"),
        (("--habitat", "nowhere"), "is no habitat yet: name a DETECTOR"),
        (("nowhere",), "nowhere"),
        (("{saved}", "--host", "256.0.0.1"), "cannot listen at"),
        (("{saved}", "--port", "99999"), "--port is 99999"),
        (("{saved}", "--port", "{taken}"), "cannot listen at --host '127.0.0.1' --port"),
        (("{saved}", "--token-file", "nowhere"), "--token-file nowhere: No such file"),
        (("{saved}", "--name", "a/b"), "--name a/b: give letters"),
        (("{saved}", "--wait", "-1"), "--wait is -1"),
        (("{saved}", "--batch", "0"), "--batch is 0"),
        (("{saved}", "--max-body", "much"), "--max-body much: give bytes"),
    ],
)
def test_a_mistake_is_one_line(saved, tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        filled = [word.format(saved=saved, taken=port) for word in words]
        assert main(["serve", "--port", "0", *filled] if "--port" not in words else ["serve", *filled]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_package_that_is_missing_is_named(saved, monkeypatch, capsys):
    for name in [each for each in sys.modules if each.startswith(("wildood.habitat.server", "uvicorn"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", str(saved)]) == 2
    assert "pip install 'wildood[serve]'" in capsys.readouterr().err


def test_tokens_sizes_and_times(tmp_path):
    token = tmp_path / "token"
    token.write_bytes(b"  0123456789abcdef\n")
    assert read_token(token) == b"0123456789abcdef"
    for wrong in (b"", b"short", b"two words of a token", b"0123456789abcdef\nmore of it", b"x" * 1001, b"\xff" * 20):
        token.write_bytes(wrong)
        with pytest.raises(InputError, match="give one line"):
            read_token(token)
    assert (bytes_of("1.5MB", "x"), seconds_of("2h", "x")) == (1_500_000, 7200.0)
    for wrong in ("", "5 apples", "-1GB", "0", "1e9", "nan", "5gb", "9" * 30):
        with pytest.raises(InputError, match="--budget"):
            bytes_of(wrong, "--budget")


def test_only_an_open_server_without_a_token_checks_its_name(tmp_path):
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    assert serving_of(options()).hosts == {"127.0.0.1", "localhost", "::1"}
    assert serving_of(options(token_file=token)).hosts is None
    assert serving_of(options(host="0.0.0.0")).hosts is None  # noqa: S104 - nothing listens
