"""`wildood fit --judged`: a person's answers in a file."""

import numpy as np


def test_answers_in_an_npz_train_and_bound_what_is_caught(cli, arrays, fit_words):
    rng = np.random.default_rng(1)
    far = rng.normal(size=(40, 3)).astype("float32") - 9
    np.savez(arrays / "judged.npz", x=np.concatenate([far, far[:5] + 9]), is_ood=np.repeat([1, 0], [40, 5]))
    code, out, err = cli(*fit_words, "--judged", "judged.npz", "--out", "with-answers")
    assert code == 0, err
    assert "of unknowns like the judged ones are caught, at 95 % confidence" in out
    assert "judged: 45 examples from judged.npz" in err.splitlines()


def test_files_without_answers_are_refused(cli, arrays, fit_words):
    for words, message in (
        (["--judged", "odd.npz"], "--judged: odd.npz has a, b, c: give x, and is_ood with 1 for unknown and 0 for known"),
        (["--judged", "new.npy"], "--judged: the classes of new.npy are numbers: call them known and unknown"),
    ):
        code, out, err = cli(*fit_words, *words, "--out", "no")
        assert (code, out) == (2, "")
        assert message in err.splitlines()[-1]
