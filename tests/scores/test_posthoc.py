"""What holds for every post-hoc score."""

import numpy as np
import pytest
import torch
from sklearn.covariance import EmpiricalCovariance
from sklearn.neighbors import NearestNeighbors
from torch import nn

import wildood
from wildood.data.inputs import InputSpec
from wildood.data.validation import labelled_source, unlabelled_source
from wildood.evaluate.metrics import auroc
from wildood.models.classifier import Classifier, FeatureTap, Outputs, copy_classifier, each_output, last_layer
from wildood.models.small import SmallCNN
from wildood.scores import bank, knn
from wildood.scores.perturbation import perturb
from wildood.scores.shipped import POSTHOC, scores_table

ALL = [
    wildood.MaxSoftmax(),
    wildood.MaxLogit(),
    wildood.EnergyScore(),
    wildood.EnergyScore(temperature=10.0),
    wildood.Odin(),
    wildood.Odin(epsilon=0.002),
    wildood.Odin(temperature=None, epsilon=0.0),
    wildood.Mahalanobis(),
    wildood.Mahalanobis(epsilon=0.0),
    wildood.Mahalanobis(epsilon=0.01),
    wildood.RelativeMahalanobis(),
    wildood.Knn(),
    wildood.Knn(k=None),
    wildood.ReAct(),
    wildood.ReAct(percentile=None),
    wildood.Vim(),
    wildood.Ensemble(),
    wildood.TemperatureScaling(),
    wildood.Gen(),
    wildood.Gen(gamma=None, top=None),
    wildood.KlMatching(),
    wildood.GradNorm(),
    wildood.NnGuide(),
    wildood.NnGuide(k=None),
    wildood.She(),
    wildood.Fdbd(),
    wildood.Nci(),
    wildood.Nci(norm_weight=None),
    wildood.Scale(),
    wildood.Scale(percentile=None),
    wildood.Ash(percentile=50.0),
    wildood.Ash(percentile=70.0, variant="s"),
    wildood.Ash(percentile=None, variant=None),
    wildood.Dice(),
    wildood.Dice(percentile=None),
]
NAMES = [f"{type(score).__name__}-{number}" for number, score in enumerate(ALL)]


def detector_of(separable, score, **more):
    return wildood.posthoc(
        separable.model, score, labelled=separable.labelled, holdout=separable.holdout, wild=separable.wild, **more
    )


@pytest.mark.parametrize("score", ALL, ids=NAMES)
def test_a_high_score_means_ood(separable, score):
    detector = detector_of(separable, score)
    least = 0.75 if isinstance(score, wildood.GradNorm) else 0.9  # the norm of the features says little here
    assert auroc(detector.score(separable.test[0]), detector.score(separable.ood)) > least


@pytest.mark.parametrize("score", ALL, ids=NAMES)
def test_a_saved_score_says_the_same(separable, score, tmp_path):
    detector = detector_of(separable, score)
    again = wildood.load(detector.save(tmp_path))
    np.testing.assert_array_equal(again.score(separable.ood), detector.score(separable.ood))
    assert again.scorer.settings == detector.scorer.settings
    assert again.threshold == detector.threshold


@pytest.mark.parametrize("score", ALL, ids=NAMES)
def test_a_batch_of_one_scores_as_in_a_larger_batch(separable, score):
    detector = detector_of(separable, score)
    x = separable.test[0][:3]
    one_by_one = np.concatenate([detector.score(example[None]) for example in x])
    np.testing.assert_allclose(one_by_one, detector.score(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("score", ALL, ids=NAMES)
def test_the_classes_are_those_of_the_unchanged_classifier(separable, score):
    detector = detector_of(separable, score)
    with torch.no_grad():
        expected = separable.model(torch.from_numpy(separable.test[0])).argmax(1).numpy()
    np.testing.assert_array_equal(detector.classify(separable.test[0]), expected)
    np.testing.assert_array_equal(detector.score_and_classify(separable.test[0])[1], expected)


@pytest.mark.parametrize("score", ALL, ids=NAMES)
def test_the_score_that_was_passed_stays_unfitted(separable, score):
    before = {name: value.clone() for name, value in score.state_dict().items()}
    settings = dict(score.settings)
    detector_of(separable, score)
    assert score.settings == settings
    assert all(torch.equal(before[name], value) for name, value in score.state_dict().items())


class Watched(nn.Module):
    """Logits of a linear layer; says whether a gradient has come back to the input."""

    def __init__(self):
        super().__init__()
        self.body, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.gradients = 0

    def forward(self, x):
        if x.requires_grad:
            x.register_hook(self._count)
        return self.last(self.body(x).relu())

    def _count(self, _gradient):
        type(self).seen = True

    def __deepcopy__(self, _memo):
        return self


@pytest.mark.parametrize("cls", POSTHOC, ids=lambda cls: cls.__name__)
def test_a_score_needs_what_it_says(cls, separable):
    torch.manual_seed(0)
    model, needs = Watched(), cls.needs
    type(model).seen = False
    x, y = separable.labelled
    score = cls(**({"epsilon": 0.01} if needs.gradients else {}))
    given = {"labelled": (x, y) if needs.labels else x} if needs.labelled else {}
    holdout = separable.holdout if needs.unseen and needs.labels else separable.holdout[0]
    detector = wildood.posthoc(model, score, holdout=holdout, **given)
    assert detector.promise.examples == (100 if needs.unseen else 200)
    detector.score(x[:5])
    assert type(model).seen == needs.gradients
    assert (detector.classifier.tap is not None) == needs.features
    if needs.labelled:
        with pytest.raises(wildood.InputError, match="is fitted on labelled data: give labelled="):
            wildood.posthoc(model, score, holdout=separable.holdout[0])
    if needs.labels:
        name = "holdout" if needs.unseen else "labelled"
        with pytest.raises(wildood.InputError, match=rf"give its labels, too, as in {name}=\(x, y\)"):
            wildood.posthoc(model, score, holdout=separable.holdout[0], labelled=(x, y) if needs.unseen else x)


def test_the_documentation_has_the_table_of_what_scores_need():
    from pathlib import Path  # noqa: PLC0415 - for this test alone

    page = Path(__file__).resolve().parents[2] / "docs" / "baselines.md"
    assert scores_table() in page.read_text(encoding="utf-8")


def features_of(separable, x):
    classifier, _ = copy_classifier(separable.model, unlabelled_source(x, "x"), None, None, uses_features=True)
    return each_output(classifier, unlabelled_source(x, "x"), Outputs.features_or_refuse).numpy().astype(np.float64)


def test_mahalanobis_agrees_with_scikit_learn(separable):
    x, y = separable.labelled
    features = features_of(separable, x)
    means = np.stack([features[y == c].mean(0) for c in range(3)])
    covariance = EmpiricalCovariance(assume_centered=False).fit(features - means[y])
    new = features_of(separable, separable.test[0])
    distances = np.stack([covariance.mahalanobis(new - mean) for mean in means])
    found = detector_of(separable, wildood.Mahalanobis(epsilon=0.0)).score(separable.test[0])
    np.testing.assert_allclose(found, 0.5 * distances.min(0), rtol=2e-3)


def test_the_relative_mahalanobis_distance_is_that_of_scikit_learn_less_that_to_all_data(separable):
    classifier, _ = copy_classifier(
        separable.model, labelled_source(separable.labelled, "x"), None, None, uses_features=True
    )
    take = Outputs.features_or_refuse
    x, y = separable.labelled
    features, new = (each_output(classifier, unlabelled_source(each, "x"), take).numpy() for each in (x, separable.ood))
    means = np.stack([features[y == c].mean(0) for c in np.unique(y)])
    tied = EmpiricalCovariance(assume_centered=True).fit(features - means[y])
    every = EmpiricalCovariance().fit(features)
    to_class = np.min([tied.mahalanobis(new - mean) for mean in means], axis=0)
    expected = (to_class - every.mahalanobis(new)) / 2
    found = detector_of(separable, wildood.RelativeMahalanobis()).score(separable.ood)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-2)


def test_the_ensemble_adds_its_scores_in_units_of_labelled_data(separable):
    members = [wildood.EnergyScore(), wildood.Knn(), wildood.RelativeMahalanobis()]
    expected = 0
    for member in members:
        detector = detector_of(separable, member)
        known, new = detector.score(separable.labelled[0]), detector.score(separable.ood)
        low, middle, high = np.quantile(known, [0.16, 0.5, 0.84])
        expected = expected + (new - middle) / ((high - low) / 2)
    found = detector_of(separable, wildood.Ensemble()).score(separable.ood)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-2)


def test_a_score_that_does_not_vary_has_no_part_in_the_ensemble():
    ensemble = wildood.Ensemble()
    x = torch.zeros(60, 2)
    x[:, 0] = torch.linspace(-1, 1, 60)
    classifier = Classifier(nn.Sequential(nn.Identity(), nn.Linear(2, 2)), tap=FeatureTap("1", "input"))
    nn.init.zeros_(classifier.model[1].weight)  # the same energy for all
    ensemble.fit(classifier, labelled_source((x.numpy(), (x[:, 0] > 0).long().numpy()), "x"))
    assert ensemble.scale.isinf().tolist()[0]
    assert ensemble(classifier(x)).isfinite().all()
    assert ensemble(classifier(x)).std() > 0


def test_mahalanobis_with_features_of_low_rank_is_finite_and_ignores_the_directions_without_variance(separable):
    x, y = separable.labelled
    doubled = nn.Sequential(nn.Linear(6, 12, bias=False), nn.Linear(12, 3))
    torch.manual_seed(0)
    nn.init.normal_(doubled[0].weight)  # 12 features of rank 6
    detector = wildood.posthoc(doubled, wildood.Mahalanobis(epsilon=0.0), labelled=(x, y), holdout=separable.holdout)
    means = np.stack([x[y == c].mean(0) for c in range(3)]).astype(np.float64)
    precision = np.linalg.inv(np.cov((x - means[y]).T, bias=True))
    new = separable.test[0].astype(np.float64)
    expected = np.min([np.einsum("nd,de,ne->n", new - m, precision, new - m) for m in means], axis=0) / 2
    assert detector.scorer.whitening.shape == (12, 6)
    np.testing.assert_allclose(detector.score(separable.test[0]), expected, rtol=1e-3)


def test_mahalanobis_leaves_out_a_class_without_examples(separable):
    x, y = separable.labelled
    some = y != 1
    labelled = (x[some], y[some])
    detector = wildood.posthoc(
        separable.model, wildood.Mahalanobis(epsilon=0.0), labelled=labelled, holdout=separable.holdout
    )
    assert len(detector.scorer.means) == 2
    assert np.isfinite(detector.score(separable.test[0])).all()


@pytest.mark.parametrize("k", [1, 7, 900])
def test_knn_agrees_with_scikit_learn(separable, k, monkeypatch):
    monkeypatch.setattr(bank, "_BLOCK", 64)
    stored, new = (features_of(separable, x) for x in (separable.labelled[0], separable.test[0]))
    stored, new = (array / np.linalg.norm(array, axis=1, keepdims=True) for array in (stored, new))
    expected = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(stored).kneighbors(new)[0][:, -1]
    found = detector_of(separable, wildood.Knn(k=k)).score(separable.test[0])
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_knn_never_holds_more_than_a_block_of_products(monkeypatch):
    monkeypatch.setattr(bank, "_BLOCK", 10)
    largest = []
    real = torch.Tensor.topk
    monkeypatch.setattr(torch.Tensor, "topk", lambda self, *a, **k: largest.append(self.shape[1]) or real(self, *a, **k))
    stored = torch.randn(1000, 4)
    found = knn.kth_largest_product(torch.randn(3, 4), stored, k=5)
    assert max(largest) <= 15
    assert found.shape == (3,)


def test_knn_refuses_a_k_above_the_number_of_examples(separable):
    with pytest.raises(wildood.InputError, match="k is 901, but labelled has 900 examples"):
        detector_of(separable, wildood.Knn(k=901))


def test_react_is_the_energy_of_rectified_features(separable):
    features = features_of(separable, separable.labelled[0])
    level = np.percentile(features, 80)
    classifier, _ = copy_classifier(
        separable.model, unlabelled_source(separable.test[0], "x"), None, None, uses_features=True
    )
    weight, bias = (
        value.numpy().astype(np.float64) for value in last_layer(classifier, torch.from_numpy(separable.test[0][:2]))
    )
    logits = np.minimum(features_of(separable, separable.test[0]), level) @ weight.T + bias
    expected = -np.log(np.exp(logits).sum(1))
    found = detector_of(separable, wildood.ReAct(percentile=80.0)).score(separable.test[0])
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_vim_agrees_with_its_definition(separable):
    x = separable.labelled[0]
    features, new = features_of(separable, x), features_of(separable, separable.test[0])
    classifier, _ = copy_classifier(separable.model, unlabelled_source(x, "x"), None, None, uses_features=True)
    weight, bias = (
        value.numpy().astype(np.float64) for value in last_layer(classifier, torch.from_numpy(separable.test[0][:2]))
    )
    origin = -np.linalg.pinv(weight) @ bias
    values, vectors = np.linalg.eig(np.cov((features - origin).T, bias=True) + np.outer(*2 * [(features - origin).mean(0)]))
    least = vectors[:, np.argsort(values)[:8]]  # 4 of 12 dimensions are principal
    alpha = (features @ weight.T + bias).max(1).mean() / np.linalg.norm((features - origin) @ least, axis=1).mean()
    energy = -np.log(np.exp(new @ weight.T + bias).sum(1))
    expected = alpha * np.linalg.norm((new - origin) @ least, axis=1) + energy
    found = detector_of(separable, wildood.Vim(dimensions=4)).score(separable.test[0])
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def by_hand(model, spec, raw, score_of, epsilon):
    """The step on the input from autograd, in pixels: x - epsilon sign(gradient), then normalised."""
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (spec.mean, spec.std))
    pixels = raw.permute(0, 3, 1, 2).float() / 255
    normalised = ((pixels - mean) / std).requires_grad_()
    score_of(model(normalised)).backward()
    sign = torch.where(normalised.grad >= 0, 1.0, -1.0)
    return ((pixels - epsilon * sign) - mean) / std


def test_odin_steps_as_by_hand_and_in_pixels():
    torch.manual_seed(0)
    spec = InputSpec(mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    model = SmallCNN(channels=3, classes=4, width=4, hidden=8).eval()
    raw = torch.randint(0, 256, (5, 8, 8, 3), dtype=torch.uint8)

    def cross_entropy(logits):
        return nn.functional.cross_entropy(logits / 1000, logits.argmax(1), reduction="mean")

    stepped = by_hand(model, spec, raw, cross_entropy, 0.01)
    classifier = Classifier(model, spec)
    found, outputs = perturb(classifier, raw, wildood.Odin(epsilon=0.01).lower, 0.01)
    torch.testing.assert_close(found, stepped, rtol=0, atol=1e-5)
    torch.testing.assert_close(outputs.logits, classifier(raw).logits)
    expected = -(model(stepped) / 1000).softmax(1).amax(1)
    torch.testing.assert_close(wildood.Odin(epsilon=0.01).of(classifier, raw).scores, expected, rtol=0, atol=1e-6)


def test_mahalanobis_steps_as_by_hand():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    spec = InputSpec(mean=(0.4,), std=(0.2,))
    model = SmallCNN(channels=1, classes=3, width=4, hidden=8).eval()
    images, labels = rng.integers(0, 256, (200, 8, 8, 1), dtype=np.uint8), rng.integers(0, 3, 200)
    classifier, _ = copy_classifier(model, labelled_source((images, labels), "l"), spec, None, uses_features=True)
    score = wildood.Mahalanobis(epsilon=0.005)
    score.fit(classifier, labelled_source((images, labels), "labelled"))
    precision = (score.whitening @ score.whitening.T).double()
    means = torch.stack([_features(classifier, images[labels == c]).mean(0) for c in range(3)])
    raw = torch.from_numpy(images[:4])
    normalised = classifier.prepare(raw).detach().requires_grad_()
    features = classifier.outputs(normalised).features.double()
    distance = torch.stack([((features - m) @ precision * (features - m)).sum(1) for m in means]).amin(0) / 2
    distance.sum().backward()
    stepped = normalised.detach() - 0.005 * torch.where(normalised.grad >= 0, 1.0, -1.0) / 0.2
    features = classifier.outputs(stepped).features.double()
    expected = torch.stack([((features - m) @ precision * (features - m)).sum(1) for m in means]).amin(0) / 2
    torch.testing.assert_close(score.of(classifier, raw).scores.double(), expected, rtol=1e-3, atol=1e-3)


def _features(classifier, images):
    with torch.no_grad():
        return classifier(torch.from_numpy(images)).features.double()


def test_a_zero_gradient_counts_as_positive():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    nn.init.zeros_(model[1].weight)
    stepped, _ = perturb(Classifier(model), torch.zeros(1, 1, 2, 2), wildood.Odin().lower, 0.5)
    assert stepped.flatten().tolist() == [-0.5] * 4


def test_a_step_needs_an_input_that_has_a_gradient():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, 2))
    x = np.zeros((60, 2), dtype=np.int64)
    with pytest.raises(wildood.InputError, match="whole numbers, which have no gradient"):
        wildood.posthoc(model, wildood.Odin(epsilon=0.1), holdout=x)


def test_a_model_without_gradients_of_its_own_can_be_stepped(separable):
    for parameter in separable.model.parameters():
        parameter.requires_grad_(False)
    try:
        assert np.isfinite(detector_of(separable, wildood.Odin(epsilon=0.01)).score(separable.ood)).all()
    finally:
        for parameter in separable.model.parameters():
            parameter.requires_grad_(True)


def test_features_tap_is_found_for_scores_that_need_it(separable):
    assert detector_of(separable, wildood.Knn()).classifier.tap == FeatureTap("head", "input")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: wildood.Odin(temperature=0), "temperature is 0: give a positive number, or None"),
        (lambda: wildood.Odin(temperature="hot"), "temperature is 'hot'"),
        (lambda: wildood.Odin(epsilon=-1), "epsilon is -1"),
        (lambda: wildood.Mahalanobis(epsilon=float("nan")), "epsilon is nan"),
        (lambda: wildood.EnergyScore(temperature=-1), "temperature is -1"),
        (lambda: wildood.Knn(k=0), "k is 0"),
        (lambda: wildood.ReAct(percentile=101), "percentile is 101"),
        (lambda: wildood.Vim(dimensions=0), "dimensions is 0"),
    ],
)
def test_wrong_settings_are_refused(build, message):
    with pytest.raises(wildood.InputError, match=message):
        build()


def test_without_a_holdout_the_threshold_is_set_on_examples_that_the_score_was_not_fitted_on(separable, caplog):
    detector = wildood.posthoc(separable.model, wildood.Knn(k=1), labelled=separable.labelled)
    assert len(detector.scorer.bank) == 810
    assert detector.promise.examples == 90
    assert not detector.promise.unseen
    assert "no holdout: 90 labelled examples set the threshold" in caplog.text
    assert np.mean(detector.predict(separable.test[0]) == wildood.UNKNOWN) < 0.2


def test_a_holdout_that_is_in_labelled_is_refused(separable):
    with pytest.raises(wildood.InputError, match="200 of the 200 holdout examples are in labelled, too"):
        wildood.posthoc(separable.model, wildood.Knn(), labelled=separable.labelled, holdout=separable.labelled[0][:200])


def test_a_label_that_the_model_has_no_class_for_is_refused(separable):
    x, y = separable.labelled
    with pytest.raises(wildood.InputError, match="labelled: a label is 7, but the model has 3 classes"):
        wildood.posthoc(separable.model, wildood.Mahalanobis(0.0), labelled=(x, y + 5), holdout=separable.holdout)


def test_mahalanobis_refuses_features_that_do_not_vary(separable):
    x, y = separable.labelled
    one_of_each = np.array([np.flatnonzero(y == c)[0] for c in range(3)])
    with pytest.raises(wildood.InputError, match="do not vary within their classes"):
        wildood.posthoc(
            separable.model, wildood.Mahalanobis(0.0), labelled=(x[one_of_each], y[one_of_each]), holdout=separable.holdout
        )


@pytest.mark.parametrize("score", [wildood.ReAct(), wildood.Vim(), wildood.Fdbd(), wildood.Nci()])
def test_a_last_linear_that_does_not_make_the_logits_is_refused(separable, score):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x):
            return 10 * self.linear(x) + 5

    with pytest.raises(wildood.InputError, match=r"the last nn.Linear, 'linear', does not make the model's logits"):
        wildood.posthoc(Scaled(), score, labelled=separable.labelled, holdout=separable.holdout)


def test_vim_refuses_features_that_leave_no_residual(separable):
    model = nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 32), nn.Linear(32, 3))  # 32 features of rank 3
    torch.manual_seed(0)
    for layer in model:
        nn.init.normal_(layer.weight)
    with pytest.raises(wildood.InputError, match="leave no residual space"):
        wildood.posthoc(model, wildood.Vim(), labelled=separable.labelled, holdout=separable.holdout)


def test_a_step_in_half_precision_is_refused(separable):
    x = torch.from_numpy(separable.holdout[0])
    with pytest.raises(wildood.InputError, match=r"a step of 0.01 on the input is lost in torch.bfloat16"):
        wildood.posthoc(nn.Linear(6, 3).bfloat16(), wildood.Odin(epsilon=0.01), holdout=x)


def test_an_epsilon_that_nobody_chose_is_refused():
    with pytest.raises(wildood.InputError, match="epsilon is None"):
        wildood.Odin().of(Classifier(nn.Linear(6, 3)), torch.zeros(1, 6))
