"""The command as a whole: help, exit codes, one line for a mistake, a traceback for a bug; results wrapped in a terminal."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from wildood import __version__
from wildood.cli.main import COMMANDS, main, say, say_named, wrapped
from wildood.data.files import load_state

LONG = "a false-alarm rate of at most 5 % on ID data like /a/very/long/path/that/does/not/fit/into/one/line.npz"
WITHOUT_TORCH = """
import sys
from wildood.cli.main import main
print([main([word]) for word in sys.argv[1:]], "torch" in sys.modules)
"""


@pytest.fixture
def subprocess_settings(arrays):
    return {"cwd": arrays, "env": os.environ | {"OMP_NUM_THREADS": "1"}}


def test_help_and_version_do_not_import_torch():
    command = [sys.executable, "-c", WITHOUT_TORCH, "--help", "--version"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.startswith("usage: wildood COMMAND [OPTIONS]")
    assert out.endswith(f"\n{__version__}\n[0, 0] False\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: wildood {command}" in capsys.readouterr().out


def test_a_misspelt_command_is_a_mistake(assert_mistake):
    assert_mistake(["ft"], "no command 'ft': did you mean 'fit'?")


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
    assert colours.search(in_a_terminal("data", "--help", environment=environment))
    plain = in_a_terminal("data", "--help", environment=environment | {"NO_COLOR": "1"})
    assert "usage: wildood data" in plain
    assert not colours.search(plain)


@pytest.mark.parametrize("error", [MemoryError("36 TiB"), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_sizes_beyond_memory_give_one_line(error, monkeypatch, capsys):
    monkeypatch.setattr("wildood.cli.show.run", lambda _words: (_ for _ in ()).throw(error))
    assert main(["show", "d"]) == 2
    assert capsys.readouterr().err == f"wildood: there is not enough memory for these sizes: give smaller ones ({error})\n"


def test_a_bug_shows_where_it_is(monkeypatch, cli):
    monkeypatch.setattr("wildood.cli.show.run", lambda _words: (_ for _ in ()).throw(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        main(["show", "d"])
    with pytest.raises(ZeroDivisionError, match="a bug"):
        cli("fit", "--labelled", "labelled.npz", "--wild", "wild.npz", "--model", "summing:broken", "--out", "x")


def test_a_mistake_gives_exit_code_2_in_the_shell(subprocess_settings):
    command = [sys.executable, "-m", "wildood", "show", "nowhere"]
    done = subprocess.run(command, **subprocess_settings, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("wildood: nowhere/detector.json cannot be read")


@pytest.mark.slow
def test_a_reader_that_has_had_enough_is_no_error(fitted, subprocess_settings):
    pipeline = f"{sys.executable} -m wildood score d new.npy --model summing:build | head -1"
    command = ["/bin/bash", "-o", "pipefail", "-c", pipeline]
    done = subprocess.run(command, **subprocess_settings, capture_output=True, check=False)
    assert done.stderr == b"examples: 7 examples from new.npy\n"
    assert done.stdout.startswith(b"example,score")


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--grid", "gamma=1.1,1.5"]], ids=["one", "a grid"])
def test_fit_whose_reader_has_gone_writes_everything_all_the_same(fit_words, subprocess_settings, tmp_path, words):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "wildood", *fit_words, *words, "--alpha", "0.2", "--out", str(tmp_path / "d")]
    done = subprocess.run(command, **subprocess_settings, stdout=writing, stderr=writing, check=False)
    os.close(writing)
    assert done.returncode == 0
    assert {"detector.json", "settings.toml", "report.html"} <= {path.name for path in (tmp_path / "d").iterdir()}


@contextmanager
def started(*words, **settings):
    """A command at work, which does not outlive the test."""
    process = subprocess.Popen(
        [sys.executable, "-m", "wildood", *words],
        **settings,
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


@pytest.mark.slow
@pytest.mark.parametrize("command", ["fit", "pretrain"])
def test_ctrl_c_leaves_a_run_that_goes_on_from_where_it_was(arrays, subprocess_settings, command):
    words = [command, "--labelled", "labelled.npz", "--batch", "32", "--model", "summing:build", "--steps", "200000"]
    words += (
        ["--wild", "wild.npz", "--holdout", "holdout.npz", "--alpha", "0.1"] if command == "fit" else ["--augment", "False"]
    )
    words += ["--out", f"long-{command}"]
    run = arrays / f"long-{command}" / "run"
    with started(*words, **subprocess_settings) as process:
        deadline = time.monotonic() + 300
        while not (run / "history.jsonl").exists() or len((run / "history.jsonl").read_bytes().splitlines()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert errors.decode().endswith("wildood: interrupted; called again, training goes on from where it was\n")
    assert b"Traceback" not in errors
    step = load_state((run / "checkpoint.safetensors").read_bytes())["state"]["step"]
    with started(*words, **subprocess_settings) as again:
        resuming = next(line for line in again.stderr if line.startswith((b"resuming", b"step")))
    assert resuming.decode() == f"resuming long-{command}/run at step {step} of 200000\n"


@pytest.mark.parametrize("width", [20, 40, 79])
def test_no_word_is_broken(width):
    lines = wrapped(LONG, indent=4, width=width).splitlines()
    assert " ".join(lines).split() == LONG.split()
    assert all(len(line) <= width or len(line.split()) == 1 for line in lines)
    assert all(line.startswith("    ") for line in lines[1:])


def test_names_stand_before_their_texts(capsys, monkeypatch):
    say_named({"promise": LONG, "seed": "0"}, width=8)
    assert capsys.readouterr().out == f"promise  {LONG}\nseed     0\n"
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _self: True)
    monkeypatch.setenv("COLUMNS", "40")
    say_named({"promise": LONG, "seed": "0"}, width=8)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "promise  a false-alarm rate of at most 5"
    assert all(line.startswith(" " * 9) for line in lines[1:-1])
    assert lines[-1] == "seed     0"


def test_lines_stay_lines(capsys):
    say("one\n\ntwo")
    assert capsys.readouterr().out == "one\n\ntwo\n"
