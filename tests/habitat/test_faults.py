"""`wildood serve` as a whole, over HTTP: killed under load, without room, twice on one habitat, at a wrong clock, abused."""

import http.client
import itertools
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

import wildood
from wildood.habitat.habitat import Habitat, Settings
from wildood.models.small import MLP

PROGRAMS = Path(__file__).parents[1] / "programs"
WILDOOD = ("-m", "wildood")
PATIENCE = 60.0  # seconds for what must happen in the end
RNG = np.random.default_rng(0)

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="what a process holds is read from /proc")


@pytest.fixture(scope="module")
def small():
    """A detector of vectors of four numbers."""
    torch.manual_seed(0)
    return wildood.posthoc(MLP(4, 3), wildood.EnergyScore(), holdout=RNG.normal(size=(60, 4)).astype("float32"), alpha=0.1)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def until(condition):
    """Wait for what must happen in the end."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


class Server:
    """A process with a server on a habitat."""

    def __init__(self, habitat, *program, port=None):
        self.port = port or free_port()
        words = (*(program or WILDOOD), "serve", "--habitat", habitat, "--port", self.port)
        command = [sys.executable, *map(str, words)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.pid, self.log = self.process.pid, []
        self._reading = threading.Thread(target=lambda: self.log.extend(iter(self.process.stderr.readline, "")))
        self._reading.start()

    def __enter__(self):
        if not self.process.stdout.readline().startswith("detector d"):
            self.end(signal.SIGKILL)
            raise AssertionError(self.log)
        return self

    def __exit__(self, *_):
        self.end(signal.SIGKILL)

    def end(self, number):
        """Send a signal and wait for the end; gives the exit code."""
        if self.process.stdout.closed:
            return self.process.returncode
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self._reading.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return code

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def counter(self, name):
        return float(re.search(rf"^wildood_{name} (\S+)$", self.get("/metrics"), re.MULTILINE)[1])

    def ask(self, *numbers, name):
        """The status of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("POST", "/v2/models/wildood/infer", body_of(numbers, name))
            return connection.getresponse().status
        finally:
            connection.close()


def body_of(numbers, name):
    """A request whose examples are numbers, four times each."""
    data = np.repeat(np.array(numbers, np.float32), 4).tolist()
    tensor = {"name": "x", "shape": [len(numbers), 4], "datatype": "FP32", "data": data}
    return json.dumps({"id": name, "inputs": [tensor]}).encode()


@dataclass
class Sent:
    """A request, with the times at which it began and was answered."""

    numbers: list
    began: float = field(default_factory=time.monotonic)
    answered: float | None = None
    detector: str | None = None


class Load:
    """Threads that send requests of one to three examples until they are stopped; who gets no answer begins anew."""

    def __init__(self, *ports, threads=4, pause=0.0):
        self.sent, self.errors, self._pause = {}, [], pause
        self._numbers, self._ended = itertools.count(1), threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(ports[each % len(ports)],)) for each in range(threads)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self, port):
        while not self._ended.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            with suppress(OSError, http.client.HTTPException):
                connection.connect()
                while not self._ended.wait(self._pause):
                    self._ask(connection)
            connection.close()
            self._ended.wait(0.02)

    def _ask(self, connection):
        first = next(self._numbers)
        name = f"r{first}"
        sent = self.sent[name] = Sent([4 * first + each for each in range(1 + first % 3)])
        connection.request("POST", "/v2/models/wildood/infer", body_of(sent.numbers, name))
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            self.errors.append(content)
            return
        sent.detector, sent.answered = json.loads(content)["model_version"], time.monotonic()

    @property
    def answered(self):
        return {name: sent for name, sent in list(self.sent.items()) if sent.answered is not None}


def assert_whole(habitat):
    """Nothing is torn or lost; what killed processes left is removed."""
    assert [fault for fault in habitat.check() if "named by nothing" not in fault] == []
    habitat.sweep()
    assert habitat.check() == []
    history = habitat.promotions()
    assert [each.former for each in history[1:]] == [each.detector for each in history[:-1]]
    assert habitat.detector().threshold == habitat.detector("d0001").threshold


def stored(habitat, prefix="r"):
    """The numbers of the examples that are stored, by request."""
    rows = habitat.store.rows(with_examples=True)
    examples = habitat.store.source(rows.id).gather(torch.arange(len(rows)))[0] if len(rows) else torch.zeros(0, 4)
    assert torch.equal(examples, examples[:, :1].expand_as(examples))
    requests = {}
    for name, number in zip(rows.request.tolist(), examples[:, 0].int().tolist(), strict=True):
        if name.startswith(prefix):
            requests.setdefault(name, []).append(number)
    return requests


# --- a server that is killed ----------------------------------------------------------------------------------------------


@contextmanager
def promoting(habitat):
    """A process that promotes; gives the growing list of what it has promoted."""
    command, promoted = [sys.executable, str(PROGRAMS / "promoter.py"), str(habitat.path)], []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        reading = threading.Thread(target=lambda: promoted.extend(iter(process.stdout.readline, "")))
        reading.start()
        try:
            yield promoted
            assert process.poll() is None
        finally:
            process.kill()
            reading.join()


def kill_servers(directory, detector, kills, rng, flush=0.2):
    """Kill the server of a habitat under load, again and again; gives the requests answered, and those of them lost."""
    habitat = Habitat.create(directory, detector, Settings(flush_seconds=flush, per_window=None))
    port, before, lost_at_all = free_port(), {}, set()
    with Load(port) as load, promoting(habitat) as promoted:
        for number in range(kills):
            with Server(habitat.path, port=port) as server:
                began = time.monotonic()
                until(lambda: promoted)
                until(lambda began=began: any(each.began > began for each in load.answered.values()))
                time.sleep(rng.uniform(0, 1.5 if number % 10 < 9 else 4 * flush + 2))
                said = server.counter("sampled_total")
                killed = time.monotonic()
                server.end(signal.SIGKILL)
            with habitat.store.index.writing():  # no promotion meanwhile
                assert_loads(habitat)
            assert [fault for fault in habitat.check() if "named by nothing" not in fault] == []
            present = stored(habitat)
            assert {name: load.sent[name].numbers for name in present} == present  # none double, each as it was sent
            assert before.items() <= present.items()
            new = present.keys() - before.keys()
            assert sum(len(present[name]) for name in new) >= said
            answered = {name: each for name, each in load.answered.items() if began < each.began < killed}
            lost = answered.keys() - present.keys()
            lost_at_all |= lost
            if lost:
                earliest = min(answered[name].answered for name in lost)
                assert max((load.sent[name].began for name in new), default=0.0) < earliest  # only the last ones
                assert killed - earliest < flush + 3  # which is for a busy machine
            before = present
    assert_whole(habitat)
    assert {each.detector for each in load.answered.values()} <= {each.id for each in habitat.detectors()}
    assert load.errors == []
    return load, lost_at_all


def assert_loads(habitat):
    """The champion is whole."""
    with habitat.store.index.reading() as index:
        assert index.execute("SELECT count(*) FROM promotions").fetchone()[0] > 0
    assert habitat.detector().threshold == habitat.detector("d0001").threshold


@pytest.mark.slow
def test_a_killed_server_loses_only_what_it_answered_last(small, tmp_path):
    load, lost = kill_servers(tmp_path / "h", small, 2, np.random.default_rng(0))
    assert len(load.answered) > 10 * len(lost) / 9  # most are there


@pytest.mark.campaign
def test_a_server_killed_fifty_times_loses_only_what_it_answered_last(small, tmp_path):
    load, lost = kill_servers(tmp_path / "h", small, 50, np.random.default_rng(1))
    sys.stdout.write(f"{len(load.answered):,} requests were answered, {len(lost):,} of them lost\n")  # shown by -s
    assert 0 < len(lost) < len(load.answered)


# --- one server that survives all that follows ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """A directory; for root, a disk of its own of 8 MB."""
    place = tmp_path_factory.mktemp("disk")
    mounted = os.geteuid() == 0 and mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", place)
    yield place, mounted
    if mounted:
        subprocess.run([shutil.which("umount"), "--lazy", place], check=True)


def mount(*words):
    """Whether something could be mounted."""
    program = shutil.which("mount")
    return program is not None and subprocess.run([program, *words], check=False, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def offset(tmp_path_factory):
    """The file that says how many seconds the clock of the servers is ahead."""
    path = tmp_path_factory.mktemp("clock") / "offset"
    path.write_text("0")
    return path


def move(offset, seconds):
    draft = offset.with_name("draft")
    draft.write_text(str(seconds))
    draft.replace(offset)


@pytest.fixture(scope="module")
def server(small, disk, offset):
    habitat = Habitat.create(disk[0] / "h", small, Settings(flush_seconds=0.1))
    with Server(habitat.path, PROGRAMS / "impatient_serve.py", offset, 60) as server:
        yield server
        assert server.end(signal.SIGTERM) == 0
    assert_whole(habitat)
    windows = habitat.store.windows()
    assert windows.dropped.sum() == 0
    assert windows.seen.sum() == windows.sampled.sum() == len(habitat.store.rows())


@contextmanager
def full(server, place):
    """A disk without room."""
    with (place / "large").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    yield
    (place / "large").unlink()


@contextmanager
def unwritable(server, place):
    """A disk that may not be written to."""
    until(lambda: mount("-o", "remount,ro", place))  # while nothing is written
    yield
    assert mount("-o", "remount,rw", place)


@contextmanager
def limited(server, place):
    """Files that may not grow."""
    former = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, former[1]))
    yield
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, former)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [full, unwritable, limited])
def test_without_room_it_goes_on_answering_and_stores_everything_later(server, disk, fault):
    place, mounted = disk
    if not mounted and fault is not limited:
        pytest.skip("only root can mount a small disk")
    logged, sent, names = len(server.log), {}, (f"{fault.__name__}{number}" for number in itertools.count())

    def ask():
        name = next(names)
        sent[name] = [len(sent)]
        assert server.ask(len(sent) - 1, name=name) == 200
        return server.counter("recording")

    assert ask() == 1
    with fault(server, place):
        until(lambda: ask() == 0)
        assert [ask() for _ in range(20)] == [0] * 20
    until(lambda: server.counter("recording") == 1)
    assert ask() == 1
    until(lambda: len(stored(Habitat(place / "h"), fault.__name__)) == len(sent))
    assert stored(Habitat(place / "h"), fault.__name__) == sent
    until(lambda: "answers are stored again" in "".join(server.log[logged:]))
    lines = server.log[logged:]
    assert ["nothing is stored (" in each for each in lines].count(True) == 1
    assert ["answers are stored again" in each for each in lines].count(True) == 1
    assert len(lines) <= 3  # perhaps one that the index cannot be read, either: SQLite needs room for that
    assert all("habitat cannot be read, d0001 goes on" in each for each in lines if " stored" not in each)


@pytest.mark.slow
def test_a_clock_that_jumps_loses_nothing(server, disk, offset):
    habitat, names = Habitat(disk[0] / "h"), []
    for hours in (0, -1, -100, 3, 2, -5, 40, 0):
        move(offset, 3600 * hours)
        for _ in range(5):
            names.append(f"clock{len(names)}")
            assert server.ask(len(names), name=names[-1]) == 200
        until(lambda: len(stored(habitat, "clock")) == len(names))
    rows = habitat.store.rows()
    assert [each for each in rows.request.tolist() if each.startswith("clock")] == names
    assert (np.diff(rows.time) >= 0).all()
    assert rows.time[-1] - rows.time[0] > 40 * 3600
    assert server.counter("recording") == 1


def connected(server):
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


@pytest.fixture
def sockets():
    """A function that connects to a server."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(connected(server))


def message(number, name="abused"):
    body = body_of([number], name)
    return b"POST /v2/models/wildood/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def answers(connection, count):
    """The scores of so many answers on a connection."""
    scores = []
    with connection.makefile("rb") as file:
        for _ in range(count):
            assert file.readline().startswith(b"HTTP/1.1 200 ")
            head = b"".join(iter(file.readline, b"\r\n"))
            answer = json.loads(file.read(int(re.search(rb"content-length: (\d+)", head)[1])))
            scores += [each["data"][0] for each in answer["outputs"] if each["name"] == "score"]
    return scores


@pytest.mark.slow
def test_requests_that_come_slowly_delay_no_other(server, sockets):
    slow = [sockets(server) for _ in range(30)]
    for number, each in enumerate(slow):
        each.sendall(message(number)[: -10 - number])
    assert [server.ask(number, name="abused") for number in range(30)] == [200] * 30
    assert server.counter("waiting_examples") == 0
    for place in range(40):
        for number, each in enumerate(slow):
            rest = message(number)[-10 - number :]
            each.sendall(rest[place : place + 1])
    slow_scores = [answers(each, 1)[0] for each in slow]
    pipelined = sockets(server)
    pipelined.sendall(b"".join(map(message, range(30))))
    assert np.allclose(answers(pipelined, 30), slow_scores, rtol=1e-5)


def held(server):
    """The files and threads of a process."""
    place = Path("/proc") / str(server.pid)
    return len(list((place / "fd").iterdir())), len(list((place / "task").iterdir()))


def memory(server):
    """The resident memory of a process, in kB."""
    return int(re.search(r"VmRSS:\s+(\d+)", (Path("/proc") / str(server.pid) / "status").read_text())[1])


def abuse(server, number):
    """Clients that break off in every way."""
    whole = message(number)
    for part in (whole[:20], whole[:-20], whole, whole[:-20]):
        with connected(server) as connection:
            connection.sendall(part)
            if number % 2:  # reset rather than closed
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    with connected(server) as connection:
        connection.sendall(whole * 20)  # and read none
    with connected(server) as connection:
        connection.sendall(whole * 10)
        answers(connection, 10)


def abused(server, rounds):
    """The memory after so many rounds, in kB, and half of them."""
    for number in range(10):
        abuse(server, number)
    server.get("/metrics")
    until(lambda: server.counter("waiting_examples") == 0)
    before, sizes = held(server), []
    for _ in range(2):
        for number in range(rounds // 2):
            abuse(server, number)
        sizes.append(memory(server))
    until(lambda: held(server) <= before)
    assert server.ask(1, name="abused") == 200
    return sizes


@pytest.mark.slow
def test_clients_that_break_off_leave_nothing_behind(server):
    half, whole = abused(server, 60)
    assert whole - half < 20_000


@pytest.mark.campaign
def test_many_clients_that_break_off_leave_nothing_behind(server):
    half, whole = abused(server, 500)
    assert whole - half < 20_000


# --- two servers ----------------------------------------------------------------------------------------------------------


def stall(server, sockets):
    """Clients that send no more, and one that does not read its answers."""
    whole = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    parts = (b"", b"POST /pre", message(1)[:-5], whole + b"GET", whole * 2000)
    stalled = [sockets(server) for _ in parts]
    for connection, part in zip(stalled, parts, strict=True):
        connection.setblocking(False)
        with suppress(OSError):
            connection.sendall(part)
    return stalled


@pytest.mark.slow
def test_two_servers_share_a_habitat(small, tmp_path, offset, sockets):
    settings = Settings(flush_seconds=0.1, per_window=150, budget=45_000)
    habitat = Habitat.create(tmp_path / "h", small, settings)
    move(offset, 0)
    program = (PROGRAMS / "impatient_serve.py", offset, 2)
    with Server(habitat.path, *program) as one, Server(habitat.path, *program) as other:
        stalled = stall(one, sockets)
        with Load(one.port, other.port) as load:
            until(lambda: len(load.answered) > 300)
            habitat.add(small, parent="d0001", trained_until=0)
            habitat.promote("d0002", who="ann", force=True)
            for each in (one, other):
                until(lambda each=each: "d0002" in each.get("/v2/models/wildood"))
            until(lambda: len({each.detector for each in list(load.answered.values())}) == 2)
        examples = sum(len(each.numbers) for each in load.sent.values())
        until(lambda: habitat.store.windows().seen.sum() == examples)
        assert load.errors == []
        assert len(load.answered) == len(load.sent)
        rows = habitat.store.rows()
        assert len(rows) == habitat.store.windows().sampled.sum() == 150
        assert all(set(numbers) <= set(load.sent[name].numbers) for name, numbers in stored(habitat).items())
        assert sum(len(set(numbers)) for numbers in stored(habitat).values()) == 150

        move(offset, 7200)  # another window, which is not filled
        later = {f"later{number}": [number] for number in range(40)}
        for name, numbers in later.items():
            assert (one, other)[numbers[0] % 2].ask(*numbers, name=name) == 200
        until(lambda: len(stored(habitat, "later")) == 40)
        until(lambda: size(habitat) <= 45_000)
        assert stored(habitat, "later") == later
        for connection in stalled:
            connection.settimeout(PATIENCE)
            while connection.recv(1000):
                pass
        stall(one, sockets)
        assert (one.end(signal.SIGTERM), other.end(signal.SIGTERM)) == (0, 0)
        assert one.log == other.log == ["detector d0002 answers in the place of d0001\n"]
    assert_whole(habitat)


def size(habitat):
    """The bytes of the traffic."""
    return sum(each.stat().st_size for each in habitat.store.traffic.iterdir()) + 256 * len(habitat.store.rows())
