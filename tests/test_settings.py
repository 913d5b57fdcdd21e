"""Whatever is written in the place of a setting is taken as what it says, or refused with one line."""

import inspect
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import wildood
from wildood.errors import InputError
from wildood.models.resnet import ResNet20
from wildood.models.small import MLP, SmallCNN
from wildood.models.wide_resnet import WideResNet
from wildood.settings import (
    check_callable,
    check_choice,
    check_count,
    check_flag,
    check_integer,
    check_number,
    check_path,
    quoted,
    settings_text,
)

# What no setting can be, of any class.
REFUSED = (
    *(10**400, -math.inf, math.inf, math.nan, 1j, "", "x\n", "a\0", "a\udcff", b"x", [None], (None, ...), {}, {1}),
    *(object(), int, range(3), iter([1]), slice(3), np.datetime64("2020"), np.zeros((40, 4)), np.array([])),
    *(torch.empty(0), torch.empty(3, device="meta"), torch.eye(2).to_sparse(), torch.ones((), dtype=torch.cfloat)),
)
MAY_BE_INFINITE = {"tau", "tol", "gamma", "clip"}  # where infinity says that there is no limit
METHODS = wildood.Woods, wildood.WoodsAlt, wildood.OutlierExposure, wildood.EnergyMargin, wildood.EnergyLogistic
METHODS += wildood.Godin, wildood.Csi
SCORES = wildood.EnergyScore, wildood.Odin, wildood.Mahalanobis, wildood.Knn, wildood.ReAct, wildood.Vim
SCORES += wildood.Gen, wildood.NnGuide, wildood.Nci, wildood.Scale, wildood.Ash, wildood.Dice
MODELS = {
    MLP: {"inputs": 4, "classes": 3, "hidden": (8,)},
    SmallCNN: {"classes": 3, "width": 4},
    ResNet20: {"classes": 3},
    WideResNet: {"depth": 10, "widen": 1},
}
SETTINGS = [
    (cls, name, {})
    for cls in (*METHODS, *SCORES, wildood.Schedule, wildood.InputSpec)
    for name in inspect.signature(cls).parameters
]
SETTINGS += [(cls, name, good) for cls, good in MODELS.items() for name in inspect.signature(cls).parameters]


@pytest.mark.parametrize(
    ("cls", "name", "good"), SETTINGS, ids=lambda part: getattr(part, "__name__", part if isinstance(part, str) else "")
)
def test_every_setting_refuses_what_is_none_with_one_line(cls, name, good):
    for value in REFUSED:
        if value is math.inf and name in MAY_BE_INFINITE and cls not in SCORES:
            assert cls(**{**good, name: value})
            continue
        with pytest.raises(InputError, match=name) as refused:
            cls(**{**good, name: value})
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) <= 300


@pytest.mark.parametrize("value", [np.float32(0.5), np.float64(0.5), np.float16(0.5), Fraction(1, 2), 0.5])
def test_a_number_of_any_library_becomes_a_float(value):
    assert type(check_number(value, "lr")) is float
    assert check_number(value, "lr") == 0.5
    assert type(wildood.Woods(alpha=value).alpha) is float


@pytest.mark.parametrize("value", [np.int64(3), np.uint8(3), 3])
def test_an_integer_of_any_library_becomes_an_int(value):
    assert type(check_count(value, "k")) is int
    assert wildood.Knn(k=value).settings == {"k": 3}


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: check_number(True, "lr", "a positive number"), "lr is True: give a positive number"),
        (lambda: check_number(1.0, "pi", "a share", below=1), "pi is 1.0: give a share"),
        (lambda: check_integer(2.0, "k", most=9), "k is 2.0: give a whole number from 1 to 9"),
        (lambda: check_integer(10, "k", most=9), "k is 10: give a whole number from 1 to 9"),
        (lambda: check_count(10**23, "epochs"), f"epochs is {10**23}: give a positive whole number up to 10^9"),
        (lambda: check_flag(2, "frozen"), "frozen is 2: give True or False"),
        (lambda: check_flag(torch.ones(3), "frozen"), "frozen is tensor([1., 1., 1.]): give True or False"),
        (lambda: check_choice(["last"], "keep", ("best", "last")), "keep is ['last']: give 'best' or 'last'"),
        (lambda: check_path(b"x", "run_dir"), "run_dir is b'x': give a path, as a str or a Path"),
        (lambda: check_path("a\0b", "run_dir"), "run_dir is 'a\\x00b', which no file can be named: give another path"),
        (lambda: check_path("y" * 256, "run_dir"), "run_dir is 'yyy"),
        (lambda: check_callable(3, "on_epoch", {}), "on_epoch is 3: give a function of 1 argument(s)"),
    ],
)
def test_a_refusal_says_what_was_written_and_what_is_expected(check, message):
    with pytest.raises(InputError) as refused:
        check()
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("value", [True, 1, np.True_, np.int64(1)])
def test_a_flag_may_be_numpys_or_a_digit(value):
    assert check_flag(value, "frozen") is True


def test_paths_that_the_system_can_have_are_kept():
    assert check_path("caf\udce9", "run_dir") == Path("caf\udce9")
    assert check_path(Path("a/b"), "run_dir") == Path("a/b")


@pytest.mark.parametrize("value", [torch.zeros(3, 3), np.zeros((99, 99)), "y" * 9999, list(range(999)), object()])
def test_a_value_is_quoted_in_one_short_line(value):
    assert len(quoted(value)) <= 100
    assert "\n" not in quoted(value)


def test_a_whole_number_that_python_does_not_write_out_is_refused():
    with pytest.raises(InputError, match="epochs is a very long int: give a positive whole number"):
        check_count(10**5000, "epochs")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"name": "Woods", "alpha": 0.05, "tau": None, "published": False}, "alpha 0.05, published False"),
        (
            {"steps": None, "epochs": 3, "weight_decay": 0, "milestones": (0.5, 0.75)},
            "epochs 3, weight_decay 0, milestones (0.5, 0.75)",
        ),
        ({}, ""),
    ],
)
def test_settings_leave_out_only_the_name_and_what_is_not_set(settings, text):
    assert settings_text(settings) == text
