"""A mistake in the options is one line that says what to do."""

import pytest

MISTAKES = {
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
    "a name of two lines": (["fit", "--config", "a\nb"], "--config a b: No such file or directory"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_options_is_one_line(assert_mistake, mistake):
    assert_mistake(*MISTAKES[mistake])
