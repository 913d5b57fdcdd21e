"""Options: a mistake in them is one line; those of fit and pretrain are the defaults of the method, then the file of
--config, then the command line.
"""

import os
import re
import tomllib
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import ClassVar, Literal

import pytest

from wildood.cli.fit import ALPHA, FitOptions, method_of
from wildood.cli.help import GROUPS
from wildood.cli.options import as_toml, parse_training
from wildood.cli.pretrain import HIDDEN, PretrainOptions
from wildood.methods.outlier_exposure import OutlierExposure
from wildood.methods.schedule import Schedule
from wildood.methods.shipped import METHODS
from wildood.methods.woods import Woods
from wildood.methods.woods_alt import WoodsAlt

COMMON = 'labelled = "labelled.npz"\nwild = "wild.npz"\nholdout = "holdout.npz"\nmodel = "summing:build"\n'


def parse_fit(*words):
    return parse_training(FitOptions, "fit", words, method_of, alpha=ALPHA)


@pytest.fixture
def config(tmp_path):
    """A function that writes a file and returns the words that name it."""

    def write(content, name="run.toml"):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return "--config", str(tmp_path / name)

    return write


@pytest.mark.parametrize("name", METHODS)
def test_without_options_method_and_schedule_are_the_methods_own(name):
    options = parse_fit("--method", name)
    assert options.settings == METHODS[name]()
    assert options.schedule == METHODS[name]().schedule()


def test_as_published_is_the_base_of_other_settings():
    options = parse_fit("--as-published", "--gamma", "1.2", "--lr", "0.5")
    assert (options.settings.gamma, options.settings.mu2) == (1.2, Woods.as_published().mu2)
    assert (options.schedule.lr, options.schedule.epochs) == (0.5, Schedule.as_published().epochs)


def test_steps_and_epochs_replace_each_other():
    assert (parse_fit("--epochs", "2").schedule.epochs, parse_fit("--epochs", "2").schedule.steps) == (2, None)
    options = parse_training(PretrainOptions, "pretrain", ["--steps", "5"], hidden=HIDDEN)
    assert (options.schedule.steps, options.schedule.epochs) == (5, None)


def test_names_of_settings_are_unique():
    """Options have flat names, and so has settings.toml."""
    options = {each.name for each in fields(FitOptions)} | {each.name for each in fields(PretrainOptions)}
    schedule = {each.name for each in fields(Schedule)}
    assert not options & schedule
    for method in METHODS.values():
        assert not {each.name for each in fields(method)} & (options | schedule)


@dataclass(frozen=True)
class Extended(Woods):
    """A method with more settings.

    Attributes:
        gap: how far apart.
        start: where it begins.
    """

    uses_wild: ClassVar[bool] = True

    gap: float | None = 2.5
    start: Literal["here", "there"] = "here"

    def schedule(self):
        return Schedule(steps=7) if self.start == "there" else Schedule()


def test_a_new_setting_of_a_method_is_an_option_and_a_name_in_the_file(config, monkeypatch, capsys):
    monkeypatch.setitem(METHODS, "woods", Extended)
    options = parse_fit("--gap", "None", "--start", "there", "--alpha", "0.1")
    assert options.settings == Extended(alpha=0.1, gap=None, start="there")
    assert options.schedule.steps == 7  # which depends on the setting
    written = as_toml(options, "fit")
    assert parse_fit(*config(written)).settings == options.settings
    with pytest.raises(SystemExit):
        parse_fit("--help-all")
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--gap NUMBER how far apart. (default: 2.5) --start {here,there} where it begins. (default: here)" in shown
    assert "--alpha NUMBER" in shown


def shown_by(capsys, *words, cls=FitOptions):
    """The help as a terminal of 100 columns shows it."""
    with pytest.raises(SystemExit) as ended:
        parse_fit(*words) if cls is FitOptions else parse_training(cls, "pretrain", words, hidden=HIDDEN)
    assert ended.value.code == 0
    return capsys.readouterr().out


def headings(help_text):
    return re.findall(
        "^[╭─ ]+([a-z-]+) options[╮─ ]+$", help_text, re.MULTILINE
    )  # without a frame where that cannot be printed


def options_in(help_text):
    return re.findall("^[│ ] {1,2}(--[a-z][a-z0-9-]+)", help_text, re.MULTILINE)


@pytest.fixture
def columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.mark.parametrize("cls", [FitOptions, PretrainOptions])
@pytest.mark.parametrize("method", METHODS)
def test_the_help_fits_on_two_screens_and_names_every_option_of_the_command(columns, capsys, cls, method):
    shown = shown_by(capsys, "--help", *(["--method", method] if cls is FitOptions else []), cls=cls)
    assert len(shown.splitlines()) <= 70
    assert max(map(len, shown.splitlines())) <= 100
    assert headings(shown) == [group for group in GROUPS if group != "promise" or cls is FitOptions]
    own = {f"--{each.name.replace('_', '-')}" for each in fields(cls)} - {"--settings", "--schedule", "--reader"}
    assert own <= {*options_in(shown), "--help-all"}
    assert {"--steps", "--lr"} <= {*options_in(shown)}
    assert "--momentum" not in shown


@pytest.mark.parametrize("method", METHODS)
def test_the_full_help_has_every_setting_once_and_those_of_a_method_below_its_name(columns, capsys, method):
    shown = shown_by(capsys, "--method", method, "--help-all")
    cls = METHODS[method]
    has_own = {each.name for each in fields(cls)} != {"alpha"}
    assert headings(shown) == [*GROUPS, *([method] if has_own else []), "schedule"]
    expected = [each.name for part in (FitOptions, cls, Schedule) for each in fields(part)]
    expected = [f"--{name.replace('_', '-')}" for name in expected if name not in {"settings", "schedule", "reader"}]
    assert sorted(options_in(shown)) == sorted([*expected, "--help-all"])
    others = {each.name for other in METHODS.values() for each in fields(other)} - {each.name for each in fields(cls)}
    assert not {f"--{name.replace('_', '-')}" for name in others} & {*options_in(shown)}


def test_every_option_has_a_description_and_the_short_ones_are_whole(columns, capsys):
    for words in (["--help"], ["--help-all"]):
        lines = shown_by(capsys, *words).splitlines()
        bare = [
            line
            for line, below in pairwise(lines)
            if re.fullmatch(r"[│ ] {1,2}--\S+( \S+)*[│ ]+", line) and below[1:9].strip()
        ]
        assert bare == []
    short = " ".join(shown_by(capsys, "--help").replace("│", " ").split())
    assert "--alpha NUMBER the false-alarm rate (default: 0.05) --confidence" in short
    assert "--method NAME woods, woods-alt, oe, energy-margin, energy-logistic, godin, csi or separate" in short


def test_values_of_the_file_are_defaults_in_the_help(config, capsys, columns):
    assert "(default: 0.25)" in shown_by(capsys, *config("alpha = 0.25\n"), "-h")


def test_options_override_the_file(config):
    options = parse_fit(
        *config(COMMON + "steps = 3\nbatch = 16\nmean = [0.5]\nfrozen = true\n"), "--steps", "4", "--alpha", "0.2"
    )
    assert (options.schedule.steps, options.schedule.batch, options.settings.alpha) == (4, 16, 0.2)
    assert (options.labelled, options.mean, options.frozen, options.holdout) == ("labelled.npz", (0.5,), True, "holdout.npz")
    assert parse_fit(*config("frozen = true\n"), "--no-frozen").frozen is False


@pytest.mark.parametrize(
    ("file", "words", "length"),
    [
        ("steps = 3", ["--epochs", "4"], (None, 4, None)),
        ("epochs = 3", ["--steps", "4"], (4, None, None)),
        ("steps = 3\nminutes = 5", ["--steps", "4"], (4, None, 5.0)),
        ("steps = 3", ["--minutes", "0.5"], (3, None, 0.5)),
        ("minutes = 5", ["--minutes", "0.5"], (None, None, 0.5)),
        ("steps = 3", ["--no-as-published"], (3, None, None)),
        ("", [], (None, None, None)),
    ],
)
def test_a_length_on_the_command_line_replaces_that_of_the_file(config, file, words, length):
    schedule = parse_fit(*config(f"{COMMON}batch = 16\n{file}\n"), *words).schedule
    assert (schedule.steps, schedule.epochs, schedule.minutes, schedule.batch) == (*length, 16)


def test_another_method_ignores_the_settings_of_the_files_method(config):
    words = config(COMMON + 'method = "woods"\nmu2 = 0.7\nlr = 0.9\nsteps = 5\nkeep = "last"\n')
    assert parse_fit(*words, "--method", "woods").settings.mu2 == 0.7
    options = parse_fit(*words, "--method", "woods-alt", "--epochs", "1")
    assert (options.settings, options.schedule) == (WoodsAlt(), Schedule(epochs=1))
    assert options.keep == "last"
    assert parse_fit(*words, "--as-published").schedule == Schedule.as_published()


def test_what_is_written_is_read_back(config):
    words = [
        "--method",
        "oe",
        "--weight",
        "0.3",
        "--epochs",
        "2",
        "--milestones",
        "0.2",
        "0.4",
        "--augment",
        "True",
        "--frozen",
    ]
    options = parse_fit(*words, "--grid", "weight=1,2", "--mean", "0.1", "0.2", "--size", "8", "--out", "d")
    written = as_toml(options, "fit")
    assert options.settings == OutlierExposure(weight=0.3)
    assert tomllib.loads(written)["milestones"] == [0.2, 0.4]
    again = parse_fit(*config(written))
    assert {name: value for name, value in vars(again).items() if name != "config"} == {
        name: value for name, value in vars(options).items() if name != "config"
    }
    pretraining = parse_training(PretrainOptions, "pretrain", ["--steps", "4", "--lr", "0.5"], hidden=HIDDEN)
    words = config(as_toml(pretraining, "pretrain", HIDDEN))
    assert parse_training(PretrainOptions, "pretrain", words, hidden=HIDDEN).schedule == pretraining.schedule


MISTAKES = {
    "no such method": ('method = "wods"', "run.toml: method is 'wods', expected 'woods' or 'woods-alt' or 'oe'"),
    "no number": ('steps = "many"', "run.toml: the schedule's steps is 'many': give a positive whole number"),
    "no flag": ('frozen = "yes"', "run.toml: frozen is 'yes', expected true or false"),
    "no such name": ("stepz = 3", "run.toml: no option is named 'stepz'; see wildood fit --help"),
    "not text": (b"\xff\xfe", "run.toml is not TOML"),
    "NUL in a path": ('labelled = "a\\u0000b"', "'a\\x00b' holds a NUL character: leave it out"),
    "brackets without end": (f"labelled = {'[' * 3000}", "run.toml is not TOML"),
    "of another method": ('method = "oe"\ngamma = 2', "--gamma is not a setting of oe: leave it out"),
    "two lengths": ("steps = 2\nepochs = 3", "--steps and --epochs: give one of them"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_file_is_one_line(assert_mistake, config, mistake):
    content, message = MISTAKES[mistake]
    assert_mistake(["fit", *config(content)], message)


def test_a_file_that_is_none_is_refused(assert_mistake, tmp_path):
    assert_mistake(["fit", "--config", "no.toml"], "--config no.toml: No such file")
    os.mkfifo(tmp_path / "pipe.toml")
    assert_mistake(
        ["fit", "--config", tmp_path / "pipe.toml"], "pipe.toml is a pipe, a socket or a device: give a plain file"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "fit needs --labelled and --wild and --model and --out"),
        (["--method", "oe", "--gamma", "2"], "--gamma is not a setting of oe: leave it out"),
        (["--method", "godin", "--head-lr", "0.2"], "--head-lr is not a setting of godin: leave it out"),
        (["--method", "oe", "--as-published"], "--as-published is for woods"),
        (["--steps", "3", "--epochs", "2"], "--steps and --epochs: give one of them"),
        (["--alpha", "2"], "alpha is 2.0: give a false-alarm rate"),
        (["--epochs", "9" * 23], "epochs is 99999999999999999999999: give a positive"),
    ],
)
def test_settings_that_cannot_be_are_refused(assert_mistake, words, message):
    assert_mistake(["fit", *words], message)


TYPED_MISTAKES = {
    "no such option": (["fit", "--stepz", "3"], "unrecognized options: --stepz, 3: did you mean --steps?"),
    "no such flag": (["fit", "--froze"], "unrecognized options: --froze: did you mean --frozen?"),
    "no such flag to take back": (["fit", "--no-froze"], "unrecognized options: --no-froze: did you mean --no-frozen?"),
    "not a number": (["fit", "--steps", "x"], "--steps cannot be 'x'. See wildood fit --help"),
    "not a whole number": (["fit", "--seed", "x"], "wildood: fit: --seed cannot be 'x'. See"),
    "not one of few": (["fit", "--decay", "x"], "--decay cannot be 'x': it is one of cosine, end, milestones. See"),
    "not numbers": (["fit", "--mean", "0.5", "x"], "--mean cannot be '0.5', 'x'"),
    "no such choice": (["fit", "--method", "wods"], "it is one of csi, energy-logistic, energy-margin"),
    "nothing to score": (["score", "d"], "missing: EXAMPLES"),
    "one word too many": (["show", "d", "e"], "unrecognized options: e"),
    "a name of two lines": (["fit", "--config", "a\nb"], "--config a b: No such file or directory"),
}


@pytest.mark.parametrize("mistake", TYPED_MISTAKES)
def test_a_mistake_in_the_options_is_one_line(assert_mistake, mistake):
    assert_mistake(*TYPED_MISTAKES[mistake])


@pytest.mark.parametrize("command", ["fit --wild wild.npz --holdout holdout.npz --batch 32", "pretrain"])
def test_a_device_is_named_on_the_command_line(assert_mistake, command):
    words = f"{command} --labelled labelled.npz --model summing:build --out out --device cuda:77".split()
    assert_mistake(words, "device is 'cuda:77', which torch cannot use here: give 'cpu'")
