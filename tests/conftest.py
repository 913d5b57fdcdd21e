import hashlib
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from wildood.data.catalog import Download
from wildood.experiments.experiment import Experiment
from wildood.experiments.pool import connected, using_threads
from wildood.methods.schedule import Schedule
from wildood.train import checkpoint


@pytest.fixture(scope="session")
def small_root(tmp_path_factory):
    """A data root with an ID set of two classes of noisy 8 x 8 images and two OOD sets."""
    root, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)

    def images(count, level):
        return np.clip(rng.normal(level, 40, (count, 8, 8, 3)), 0, 255).astype(np.uint8)

    def known(count):
        labels = np.arange(count) % 2
        return images(count, np.where(labels, 190, 60)[:, None, None, None]), labels

    (train, train_labels), (test, test_labels) = known(400), known(200)
    arrays = {"train_images": train, "train_labels": train_labels, "test_images": test, "test_labels": test_labels}
    np.savez(root / "known.npz", **arrays)
    np.savez(root / "grey.npz", images=images(200, 128))
    np.savez(root / "white.npz", images=images(150, 250))
    return root


@pytest.fixture(scope="session")
def torchrun():
    """A function that starts a program on several processes that meet on loopback; they do not outlive the test."""

    @contextmanager
    def start(world, *words, **settings):
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)] if world > 1 else []
        process = subprocess.Popen(
            [sys.executable, *launcher, *map(str, words)],
            env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A shell starts what runs in its background with SIGINT ignored, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads here
            **settings,
        )
        with process:
            try:
                yield process
            finally:
                process.terminate()  # the launcher ends its processes; SIGKILL would leave them

    return start


@pytest.fixture(scope="session")
def small():
    """An experiment on the small sets that takes a second."""
    return Experiment(
        "known.npz",
        ("grey.npz",),
        "grey.npz",
        0.2,
        "woods",
        schedule=Schedule(steps=6, batch=16),
        model="SmallCNN",
        model_settings={"channels": 3, "width": 4, "hidden": 8},
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
        pretraining=Schedule(epochs=3, batch=32, lr=0.05),
    )


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster for all tests of a module, with two workers; it leaves nothing behind."""
    tokens = Path.home() / ".ray"
    before = {*tokens.glob("*")}
    # Its own directory: another test process may start a cluster at the same time. Ray's sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="r") as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", place)
        patch.setattr("wildood.experiments.pool.processors", lambda: 2)
        with connected("local", 1, 0.0) as ray:
            host, port = ray.get_runtime_context().gcs_address.split(":")
            yield ray
        assert list(Path(place).iterdir()) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 1)
    assert {*tokens.glob("*")} == before


@pytest.fixture(scope="session")
def run_here():
    """A function that runs a program in this process, with one thread: another process would import torch once more."""

    def run(program, *words):
        with pytest.MonkeyPatch.context() as patch, using_threads(1):
            patch.setattr(sys, "argv", [str(program), *map(str, words)])
            patch.setattr(checkpoint, "SECONDS", checkpoint.SECONDS)  # which programs change
            with torch.random.fork_rng():
                runpy.run_path(str(program))

    return run


@pytest.fixture
def one_thread():
    with using_threads(1):
        yield


class FileServer(ThreadingHTTPServer):
    """A web server on loopback: it serves `files`, can misbehave, and remembers the requests."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), FileHandler)
        self.files: dict[str, bytes] = {}
        self.etag, self.redirect = '"1"', ""
        self.knows_ranges, self.says_length, self.offset_error = True, True, 0
        self.cut_after: list[int] = []  # how many bytes the next answers have before the connection drops
        self.statuses: list[int] = []  # what the next answers say instead of the file
        self.asked: list[str] = []
        self.ranges: list[str | None] = []

    def url(self, name):
        return f"http://127.0.0.1:{self.server_port}/{name}"

    def publish(self, name, content, **settings):
        """Serve a file, and describe it as a named set does."""
        self.files[name] = content
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        return Download(self.url(name), name, md5, len(content), **settings)


class FileHandler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, asked = self.server, self.headers["Range"]
        if server.redirect and self.path != server.redirect:
            self.answer(302, Location=server.redirect)
            return
        server.asked.append(self.path)
        server.ranges.append(asked)
        if server.statuses:
            self.send_error(server.statuses.pop(0))
            return
        content = server.files.get(self.path.removeprefix("/"), b"")
        start = int(re.fullmatch(r"bytes=(\d+)-", asked).group(1)) if asked and server.knows_ranges else 0
        if start >= len(content):
            self.answer(416 if content else 404, **{"Content-Range": f"bytes */{len(content)}"})
            return
        headers = {}
        if start:
            start += server.offset_error
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if server.etag:
            headers["ETag"] = server.etag
        if server.says_length:
            headers["Content-Length"] = str(len(content) - start)
        self.answer(206 if start else 200, **headers)
        self.wfile.write(content[start:][: server.cut_after.pop(0)] if server.cut_after else content[start:])

    def answer(self, status, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def file_server(monkeypatch):
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setattr("wildood.data.download.PAUSE", 0)
    server = FileServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()
