"""Scores against numpy (or autograd) written from the papers' formulas, and what they do where these end."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from torch import nn

import wildood
from wildood.data.validation import labelled_source, unlabelled_source
from wildood.models.classifier import Classifier, FeatureTap, Outputs, copy_classifier, forward_all
from wildood.scores.shipped import POSTHOC
from wildood.scores.temperature_scaling import least_cross_entropy

LAYER = [wildood.ReAct, wildood.Scale, wildood.Ash, wildood.Dice, wildood.Fdbd, wildood.Nci, wildood.Vim]


@pytest.fixture(scope="module")
def known(separable):
    """Outputs of the classifier as float64 arrays: phi and f of labelled data, `new` and `new_f` of others; W, b, y."""
    x, y = separable.labelled
    y = np.where(np.arange(len(y)) % 9 == 0, (y + 1) % 3, y)  # the classifier is right on all of the others
    source = labelled_source((x, y), "labelled")
    classifier, _ = copy_classifier(separable.model, source, None, None, uses_features=True)

    def both(data):
        with torch.no_grad():
            (outputs,) = [each for each, _ in forward_all(classifier, data, batch_size=len(data))]
        return outputs.features.numpy().astype(np.float64), outputs.logits.numpy().astype(np.float64)

    new = np.concatenate([separable.test[0][:60], separable.ood[:60]])
    head = separable.model.head
    return SimpleNamespace(
        classifier=classifier,
        source=source,
        y=y,
        **dict(zip(("phi", "f"), both(source), strict=True)),
        **dict(zip(("new", "new_f"), both(unlabelled_source(new, "x")), strict=True)),
        W=head.weight.detach().numpy().astype(np.float64),
        b=head.bias.detach().numpy().astype(np.float64),
    )


def scored(known, score):
    score.fit(known.classifier, known.source)
    with torch.no_grad():
        found = score(Outputs(torch.from_numpy(known.new_f).float(), torch.from_numpy(known.new).float()))
    return found.double().numpy()


def softmax(logits):
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)


def logsumexp(logits):
    return np.log(np.exp(logits).sum(-1))


def test_gen_is_the_generalized_entropy(known):
    p = softmax(known.new_f)
    np.testing.assert_allclose(scored(known, wildood.Gen()), (p**0.1 * (1 - p) ** 0.1).sum(1), rtol=1e-4)
    largest = np.sort(p, axis=1)[:, -2:]
    expected = (largest**2 * (1 - largest) ** 2).sum(1)
    np.testing.assert_allclose(scored(known, wildood.Gen(gamma=2, top=2)), expected, rtol=1e-3, atol=1e-12)


def test_gen_tells_sure_examples_apart():
    found = wildood.Gen()(Outputs(torch.tensor([[70.0, 0.0], [60.0, 0.0]])))
    np.testing.assert_allclose(found, [2 * np.exp(-7), 2 * np.exp(-6)], rtol=1e-4)


def test_the_temperature_has_the_least_cross_entropy(known):
    score = wildood.TemperatureScaling()
    found, share = scored(known, score), 1 / (len(known.y) + 1)
    targets = (1 - share) * np.eye(3)[known.y] + share / 3  # as if one more example were wrong

    def loss(temperature):
        return -(targets * np.log(softmax(known.f / temperature))).sum(1).mean()

    temperature = float(score.temperature)
    grid = temperature * np.linspace(0.9, 1.1, 201)
    assert np.argmin([loss(each) for each in grid]) in range(95, 106)
    assert loss(temperature) < min(loss(0.5 * temperature), loss(2 * temperature))
    np.testing.assert_allclose(found, -softmax(known.new_f / temperature).max(1), rtol=1e-4)


def test_a_temperature_without_errors_is_not_zero():
    labels = torch.arange(300) % 3
    temperature, _ = least_cross_entropy(nn.functional.one_hot(labels, 3) * 4.0, labels)
    assert 0.1 < temperature < 10


def test_kl_matching_is_the_divergence_from_the_nearest_template(known):
    p, new = softmax(known.f), softmax(known.new_f)
    templates = [p[known.f.argmax(1) == c].mean(0) for c in range(3)]
    expected = np.min([[entropy(row, template) for row in new] for template in templates], axis=0)
    np.testing.assert_allclose(scored(known, wildood.KlMatching()), expected, rtol=1e-3, atol=1e-5)


def test_gradnorm_is_the_norm_of_the_gradient_of_autograd(known):
    expected = []
    for features in torch.from_numpy(known.new):
        layer = nn.Linear(*known.W.shape[::-1]).double()
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(known.W))
            layer.bias.copy_(torch.from_numpy(known.b))
        nn.functional.cross_entropy(layer(features)[None], torch.full((1, 3), 1 / 3, dtype=torch.double)).backward()
        expected.append(-float(layer.weight.grad.abs().sum()))
    np.testing.assert_allclose(scored(known, wildood.GradNorm()), expected, rtol=1e-4)


@pytest.mark.parametrize("k", [1, 40])
def test_nnguide_is_the_energy_times_the_mean_of_the_largest_guides(known, k):
    def unit(rows):
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    guides = np.sort(unit(known.new) @ (unit(known.phi) * logsumexp(known.f)[:, None]).T, axis=1)[:, -k:].mean(1)
    np.testing.assert_allclose(scored(known, wildood.NnGuide(k)), -logsumexp(known.new_f) * guides, rtol=1e-4)


def test_she_is_the_inner_product_with_the_mean_of_what_was_classified_correctly(known):
    right = known.f.argmax(1) == known.y
    assert 0 < right.sum() < len(right)
    patterns = np.stack([known.phi[right & (known.y == c)].mean(0) for c in range(3)])
    expected = [-phi @ patterns[f.argmax()] for phi, f in zip(known.new, known.new_f, strict=True)]
    np.testing.assert_allclose(scored(known, wildood.She()), expected, rtol=1e-4)


def test_fdbd_is_the_mean_distance_to_the_boundaries_over_that_to_the_mean(known):
    expected = []
    for phi, f in zip(known.new, known.new_f, strict=True):
        y = f.argmax()
        others = [k for k in range(3) if k != y]
        distances = [abs(f[y] - f[k]) / np.linalg.norm(known.W[y] - known.W[k]) for k in others]
        expected.append(-np.mean(distances) / np.linalg.norm(phi - known.phi.mean(0)))
    np.testing.assert_allclose(scored(known, wildood.Fdbd()), expected, rtol=1e-3)


def test_nci_is_the_proximity_to_the_weights_and_the_norm(known):
    expected = []
    for phi, f in zip(known.new, known.new_f, strict=True):
        centred = phi - known.phi.mean(0)
        expected.append(-known.W[f.argmax()] @ centred / np.linalg.norm(centred) - 0.01 * np.abs(phi).sum())
    np.testing.assert_allclose(scored(known, wildood.Nci(0.01)), expected, rtol=1e-3)


def shaped(known, shape):
    return [-logsumexp(known.W @ shape(phi) + known.b) for phi in known.new]


@pytest.mark.parametrize("percentile", [65.0, 85.0])
def test_scale_is_the_energy_of_scaled_features(known, percentile):
    count = len(known.b), known.phi.shape[1] - int(np.round(known.phi.shape[1] * percentile / 100))

    def shape(phi):
        return phi * np.exp(phi.sum() / np.sort(phi)[-count[1] :].sum())

    np.testing.assert_allclose(scored(known, wildood.Scale(percentile)), shaped(known, shape), rtol=1e-4)


@pytest.mark.parametrize("variant", ["b", "s"])
def test_ash_is_the_energy_of_the_largest_features_alone(known, variant):
    count = 12 - int(np.round(12 * 0.65))

    def shape(phi):
        level = np.sort(phi)[-count]
        kept = np.where((phi >= level) & (phi > 0), phi, 0)
        if variant == "s":
            return kept * np.exp(phi.sum() / kept.sum())
        return np.where(kept > 0, phi.sum() / count, 0)

    np.testing.assert_allclose(scored(known, wildood.Ash(65.0, variant)), shaped(known, shape), rtol=1e-4)


def test_each_candidate_of_react_has_the_level_of_its_own_percentile(known):
    score = wildood.ReAct(percentile=None)
    score.fit(known.classifier, known.source)
    outputs = Outputs(torch.from_numpy(known.new_f).float(), torch.from_numpy(known.new).float())
    for candidate in score.candidates():
        fixed = wildood.ReAct(candidate.percentile)
        np.testing.assert_array_equal(candidate(outputs), scored(known, fixed))


@pytest.mark.parametrize("percentile", [30.0, 90.0])
def test_dice_is_the_energy_of_the_weights_that_contribute_most(known, percentile):
    contribution = known.W * known.phi.mean(0)
    masked = np.where(contribution > np.percentile(contribution, percentile), known.W, 0)
    expected = -logsumexp(known.new @ masked.T + known.b)
    np.testing.assert_allclose(scored(known, wildood.Dice(percentile)), expected, rtol=1e-4)


# --- where the formulas end -----------------------------------------------------------------------------------------------


def made(cls):
    return cls(**({"epsilon": 0.0} if cls.needs.gradients else {}))


def identity(weight, bias=0.0):
    """A classifier whose features are its inputs."""
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.fill_(bias)
    return Classifier(nn.Sequential(nn.Identity(), layer), tap=FeatureTap("1", "input")).eval()


@pytest.mark.parametrize("cls", POSTHOC, ids=lambda cls: cls.__name__)
def test_a_class_without_labelled_examples_leaves_all_scores_finite(cls, separable):
    x, y = separable.labelled
    data = {"labelled": (x[y != 1], y[y != 1]), "holdout": separable.holdout}
    if cls.needs.unseen:
        data["holdout"] = tuple(each[separable.holdout[1] != 1] for each in separable.holdout)
    detector = wildood.posthoc(separable.model, made(cls), **data)
    assert np.isfinite(detector.score(separable.test[0])).all()


def test_she_takes_the_mean_of_all_for_a_class_without_examples(separable, known):
    x, y = separable.labelled
    score = wildood.She()
    score.fit(known.classifier, labelled_source((x[y != 1], y[y != 1]), "labelled"))
    right = (known.f.argmax(1) == y) & (y != 1)
    np.testing.assert_allclose(score.patterns[1], known.phi[right].mean(0), rtol=1e-4, atol=1e-6)


def test_kl_matching_leaves_out_a_class_that_is_never_predicted(known, separable):
    x = separable.labelled[0][known.f.argmax(1) != 2]
    score = wildood.KlMatching()
    score.fit(known.classifier, unlabelled_source(x, "x"))
    assert score.templates.shape == (2, 3)


@pytest.mark.parametrize("cls", POSTHOC, ids=lambda cls: cls.__name__)
def test_constant_features_are_refused_in_one_line_or_scored(cls):
    classifier, x = identity(torch.eye(3)), np.ones((150, 3), np.float32)
    score = made(cls)
    try:
        score.fit(classifier, labelled_source((x, np.arange(150) % 3), "labelled"))
    except wildood.InputError as error:
        assert cls in {wildood.Mahalanobis, wildood.RelativeMahalanobis, wildood.Fdbd, wildood.Nci, wildood.Ensemble, wildood.Vim}  # fmt: skip  # noqa: E501
        assert "\n" not in str(error)  # noqa: PT017
        return
    with torch.no_grad():
        assert score(classifier(torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [2.0, 0.0, 1.0]]))).isfinite().all()


@pytest.mark.parametrize("score", [wildood.Fdbd(), wildood.Nci()], ids=lambda score: type(score).__name__)
def test_features_that_are_their_mean_are_scored(score):
    x = torch.tensor([[0.0, 2.0], [2.0, 0.0]])
    classifier = identity(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    score.fit(classifier, labelled_source((x.numpy(), np.array([1, 0])), "labelled"))
    with torch.no_grad():
        assert score(classifier(torch.ones(1, 2))).isfinite().all()


def test_two_classes_with_the_same_weights_have_no_boundary():
    weight = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    classifier, score = identity(weight), wildood.Fdbd()
    score.fit(classifier, labelled_source((np.eye(2, dtype=np.float32), np.array([0, 2])), "labelled"))
    with torch.no_grad():
        found = score(classifier(torch.tensor([[3.0, 1.0]])))
    expected = -(0 + (3 - 1) / np.sqrt(2)) / 2 / np.linalg.norm([2.5, 0.5])
    assert float(found) == pytest.approx(expected)


@pytest.mark.parametrize("score", [wildood.Scale(), wildood.Ash(), wildood.Ash(variant="s")])
def test_features_that_are_all_zero_have_the_energy_of_the_bias(score):
    classifier = identity(torch.eye(4), bias=0.5)
    score.fit(classifier, labelled_source((np.ones((5, 4), np.float32), np.arange(5) % 4), "labelled"))
    with torch.no_grad():
        assert float(score(classifier(torch.zeros(1, 4)))) == pytest.approx(-0.5 - np.log(4))


@pytest.mark.parametrize("score", [wildood.Scale(), wildood.Ash()], ids=lambda score: type(score).__name__)
def test_negative_features_are_refused(separable, score):
    name = type(score).__name__
    with pytest.raises(wildood.InputError, match=rf"^{name} needs features that are not negative, as after a ReLU, but \d+"):
        wildood.posthoc(nn.Linear(6, 3), score, labelled=separable.labelled, holdout=separable.holdout)


@pytest.mark.parametrize("score", [wildood.ReAct(), wildood.Dice()], ids=lambda score: type(score).__name__)
def test_negative_features_are_told_of(separable, score, caplog):
    wildood.posthoc(nn.Linear(6, 3), score, labelled=separable.labelled, holdout=separable.holdout)
    assert f"{type(score).__name__} was proposed for features that are not negative" in caplog.text
    caplog.clear()
    wildood.posthoc(separable.model, score, labelled=separable.labelled, holdout=separable.holdout)
    assert "not negative" not in caplog.text


@pytest.mark.parametrize(
    "cls",
    [wildood.Knn, wildood.NnGuide, wildood.ReAct, wildood.Scale, wildood.Ash, wildood.Dice, wildood.Fdbd, wildood.Nci,
     wildood.She],
)  # fmt: skip
def test_labelled_features_that_are_not_finite_are_refused(cls):
    class Overflowing(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(2, 2)

        def forward(self, x):
            return self.last(x / (x[:, :1] != 7))

    x = np.random.default_rng(0).uniform(size=(20, 2)).astype(np.float32)
    x[4, 0] = 7
    classifier = Classifier(Overflowing(), tap=FeatureTap("last", "input")).eval()
    with pytest.raises(wildood.InputError, match="1 of 20 labelled examples have features that are not finite"):
        cls().fit(classifier, labelled_source((x, np.arange(20) % 2), "labelled"))


def test_nnguide_refuses_logits_whose_energy_is_positive():
    classifier = identity(torch.eye(2), bias=-50.0)
    with pytest.raises(wildood.InputError, match="the mean of logsumexp of the logits is not positive"):
        wildood.NnGuide(1).fit(classifier, unlabelled_source(np.ones((3, 2), np.float32), "x"))


def test_she_refuses_a_classifier_that_is_always_wrong():
    x = np.eye(2, dtype=np.float32)
    with pytest.raises(wildood.InputError, match="She: the classifier is wrong on every labelled example"):
        wildood.She().fit(identity(torch.eye(2)), labelled_source((x, np.array([1, 0])), "labelled"))


@pytest.mark.parametrize("cls", LAYER, ids=lambda cls: cls.__name__)
def test_scores_that_read_the_last_layer_need_its_features(separable, cls):
    with pytest.raises(wildood.InputError, match=r"the features that the classifier's last nn.Linear takes"):
        wildood.posthoc(separable.model, cls(), labelled=separable.labelled, holdout=separable.holdout, features="body")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: wildood.Gen(gamma=0), "gamma is 0: give a positive number"),
        (lambda: wildood.Gen(top=0), "top is 0"),
        (lambda: wildood.Scale(100), "percentile is 100: give a number above 0, below 100, or None"),
        (lambda: wildood.Ash(variant="p"), "variant is 'p': give 'b' or 's'"),
        (lambda: wildood.Dice(0), "percentile is 0"),
        (lambda: wildood.Nci(-1), "norm_weight is -1: give a weight from 0 on, or None"),
        (lambda: wildood.NnGuide(0), "k is 0"),
    ],
)
def test_wrong_settings_are_refused(build, message):
    with pytest.raises(wildood.InputError, match=message):
        build()


@pytest.mark.parametrize("score", [wildood.TemperatureScaling(), wildood.KlMatching()], ids=lambda each: type(each).__name__)
def test_a_score_of_unseen_data_is_fitted_on_one_half_of_the_holdout_and_calibrated_on_the_other(separable, score):
    detector = wildood.posthoc(separable.model, score, holdout=separable.holdout)
    assert detector.promise.examples == 100
    assert detector.promise.unseen
    x, y = separable.holdout
    with pytest.raises(wildood.InputError, match="chose"):  # half of it has fitted the score
        detector.calibrate((x, y), 0.1)


def test_a_holdout_of_which_half_is_too_few_is_refused(separable):
    x, y = separable.holdout
    with pytest.raises(wildood.InputError, match="or a score that is not fitted on unseen data"):
        wildood.posthoc(separable.model, wildood.KlMatching(), holdout=(x[:30], y[:30]))


@pytest.mark.parametrize("score", [wildood.TemperatureScaling(), wildood.KlMatching()], ids=lambda each: type(each).__name__)
def test_without_a_holdout_a_score_of_unseen_data_is_fitted_on_labelled_data_set_aside(separable, score):
    detector = wildood.posthoc(separable.model, score, labelled=separable.labelled)
    assert detector.promise.examples == 45
    assert not detector.promise.unseen


def test_a_holdout_label_that_the_model_has_no_class_for_is_refused(separable):
    x, y = separable.holdout
    with pytest.raises(wildood.InputError, match="holdout: a label is 7, but the model has 3 classes"):
        wildood.posthoc(separable.model, wildood.TemperatureScaling(), holdout=(x, np.where(y == 2, 7, y)))


def test_without_a_holdout_such_a_label_is_one_of_labelled(separable):
    x, y = separable.labelled
    with pytest.raises(wildood.InputError, match=r"^labelled: a label is 7, but the model has 3 classes"):
        wildood.posthoc(separable.model, wildood.TemperatureScaling(), labelled=(x, np.where(y == 2, 7, y)))


def test_labels_are_asked_only_of_the_data_that_fits_the_score(separable):
    x, score = separable.labelled[0], wildood.TemperatureScaling()
    given = wildood.posthoc(separable.model, score, labelled=x, holdout=separable.holdout)
    expected = wildood.posthoc(separable.model, score, labelled=separable.labelled, holdout=separable.holdout)
    assert torch.equal(given.scorer.temperature, expected.scorer.temperature)
    assert given.record["data"] == expected.record["data"]
    with pytest.raises(wildood.InputError, match=r"give its labels, too, as in labelled=\(x, y\)"):
        wildood.posthoc(separable.model, score, labelled=x)
