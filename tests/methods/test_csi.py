"""CSI: its two losses against their definitions, what each stage changes and what not, and the whole through `fit`."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wildood
from wildood.data.files import load_state
from wildood.data.sources import ArraySource
from wildood.detect.detector import NOT_COMPARED, Promise
from wildood.methods import csi
from wildood.methods.csi import ContrastiveObjective, JointObjective, Lars, joint_labels, shifted, supervised_contrastive
from wildood.methods.objective import Batch, Start, stages_of
from wildood.models.classifier import Classifier
from wildood.models.features import FeatureTap
from wildood.models.heads import JointHead
from wildood.models.small import MLP, SmallCNN
from wildood.train.history import read_rows

SPEC = wildood.InputSpec(mean=(0.5,), std=(0.25,))
FEW = wildood.Schedule(epochs=2, batch=16, lr=1.0, decay="cosine", weight_decay=1e-6)


def backbone(seed=0):
    """With BatchNorm, a layer of its own at the end, and no home among wildood's models."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 2)
        )


def known(count, seed=0):
    """Red or blue, which no rotation, crop or flip turns into the other; brighter from left to right."""
    rng, labels = np.random.default_rng(seed), np.arange(count) % 2
    images = rng.normal(np.linspace(60, 200, 8)[:, None], 15, (count, 8, 8, 3))
    images[np.arange(count), :, :, 2 * (1 - labels)] *= 0.3
    return np.clip(images, 0, 255).astype(np.uint8), labels


def classifier():
    return Classifier(backbone(), SPEC, FeatureTap("5", "input"))


def start(classes=2):
    return Start(0.5, 0.5, torch.zeros(4), classes, features=24, seed=0, labelled=ArraySource(*known(4)))


def batch(count=6):
    images, labels = known(count)
    return Batch(torch.from_numpy(images), torch.from_numpy(labels))


@pytest.fixture
def plain_views(monkeypatch):
    """Neither flips nor colours nor crops: rotations alone."""
    monkeypatch.setattr(csi, "random_flip", lambda images, rng: images)
    monkeypatch.setattr(csi, "random_view", lambda images, rng, flip: images)


def test_labels_count_class_and_rotation_together():
    labels = torch.tensor([1, 0, 2])
    assert joint_labels(labels, classes=3).tolist() == [1, 0, 2, 4, 3, 5, 7, 6, 8, 10, 9, 11]


def test_an_image_is_turned_as_often_as_its_label_says(plain_views):
    raw, labels = batch().labelled, batch().labels
    images = SPEC(raw)
    for image, label, number in zip(shifted(SPEC, raw), joint_labels(labels, 2), 4 * list(range(6)), strict=True):
        turns, kind = divmod(int(label), 2)
        assert kind == labels[number]
        assert torch.equal(image, torch.rot90(images[number], turns, (1, 2)))


def test_images_are_flipped_before_they_are_turned_so_that_the_label_of_the_turn_holds(monkeypatch):
    monkeypatch.setattr(csi, "random_view", lambda images, rng, flip: images)
    images = SPEC(batch(20).labelled)
    torch.manual_seed(0)
    each = shifted(SPEC, batch(20).labelled).view(4, 20, 3, 8, 8)
    back = torch.stack([torch.rot90(turned, -turns, (2, 3)) for turns, turned in enumerate(each)])
    mirrored = (back[0] == images.flip(3)).flatten(1).all(1)
    assert 0 < mirrored.sum() < 20
    assert torch.equal(back[0], torch.where(mirrored[:, None, None, None], images.flip(3), images))
    assert all(torch.equal(back[turns], back[0]) for turns in range(4))


def test_turned_images_get_views_that_do_not_flip_them_again(monkeypatch):
    given = []

    def seen(images, rng, *, flip=True):
        given.append((tuple(images.shape), flip))
        return images

    monkeypatch.setattr(csi, "random_view", seen)
    shifted(SPEC, batch(5).labelled)
    assert given == [((20, 3, 8, 8), False)]


def test_each_of_the_eight_images_has_a_view_of_its_own():
    torch.manual_seed(0)
    same = batch(2).labelled[:1].repeat(2, 1, 1, 1)  # one image twice, as in the first stage
    assert len({image.numpy().tobytes() for image in shifted(SPEC, same)}) == 8


def test_white_images_that_resizing_makes_whiter_than_white_are_taken_as_white(plain_views):
    spec, white = replace(SPEC, size=8), torch.full((3, 24, 24, 3), 255, dtype=torch.uint8)
    assert torch.equal(shifted(spec, white), spec.normalised(torch.ones(12, 3, 8, 8)))


def test_the_first_stage_is_the_contrastive_loss_of_eight_images_for_each_example(plain_views):
    objective = wildood.Csi(temperature=0.2, projection=7).objective(classifier(), start())
    assert isinstance(objective, ContrastiveObjective)
    loss, constraints = objective(batch())
    twice = torch.cat([batch().labelled, batch().labelled])
    images = torch.cat([torch.rot90(SPEC(twice), turns, (2, 3)) for turns in range(4)])
    projected = objective.projection(objective.classifier.model[:5](images))
    assert projected.shape == (48, 7)
    labels = torch.tensor([int(y) + 2 * turns for turns in range(4) for y in batch().labels.tolist() * 2])
    torch.testing.assert_close(loss, supervised_contrastive(projected, labels, 0.2), rtol=1e-4, atol=1e-5)
    assert constraints == {}


def test_the_projection_is_one_hidden_layer_as_wide_as_the_features():
    layers = wildood.Csi().objective(classifier(), start()).projection
    assert [(layer.in_features, layer.out_features) for layer in layers if isinstance(layer, nn.Linear)] == [
        (24, 24),
        (24, 128),
    ]


def test_the_second_stage_is_three_cross_entropies_on_features_that_stay(plain_views):
    network = classifier()
    (stage,) = wildood.Csi().later_stages()
    objective = stage.objective(network, start()).train()
    assert isinstance(objective, JointObjective)
    head = network.head
    assert isinstance(head, JointHead)
    loss, _ = objective(batch())
    features = network.eval().features(torch.cat([torch.rot90(SPEC(batch().labelled), r, (2, 3)) for r in range(4)]))
    expected = (
        F.cross_entropy(head.linear(features[:6]), batch().labels)
        + F.cross_entropy(head.rotation(features), torch.arange(4).repeat_interleave(6))
        + F.cross_entropy(head.joint(features), joint_labels(batch().labels, 2))
    )
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert all(parameter.grad is None for parameter in network.model.parameters())
    assert all(parameter.grad is not None for parameter in head.parameters())


def test_the_network_is_evaluated_while_the_heads_are_trained():
    (stage,) = wildood.Csi().later_stages()
    objective = stage.objective(classifier(), start()).train()
    assert objective.training
    assert not any(part.training for part in objective.classifier.model.modules())
    assert objective.classifier.head.training


def test_schedules_are_the_published_ones():
    first, second = (stage.schedule() for stage in stages_of(wildood.Csi()))
    assert (first.epochs, first.batch, first.lr, first.decay, first.weight_decay) == (700, 128, 1.0, "cosine", 1e-6)
    assert first.warmup * 700 == pytest.approx(10)
    assert (second.epochs, second.batch, second.momentum, second.weight_decay) == (100, 32, 0.0, 1e-6)
    rates = [second.lr_at(epoch, per_epoch=1, total=100) for epoch in (0, 59, 60, 74, 75, 89, 90, 99)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001, 0.0001, 0.0001])
    assert not any(schedule.averaging or schedule.clip or schedule.minutes for schedule in (first, second))


def test_lars_trains_the_network_and_plain_sgd_the_heads():
    made = [stage.objective(classifier(), start()).optimiser(stage.schedule()) for stage in stages_of(wildood.Csi())]
    assert list(map(type, made)) == [Lars, torch.optim.SGD]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    model, run, seen = backbone(), tmp_path_factory.mktemp("csi") / "run", []
    before = {name: value.clone() for name, value in model.state_dict().items()}
    detector = wildood.fit(
        model,
        known(64),
        holdout=known(80, seed=1),
        method=wildood.Csi(head_epochs=8),
        schedule=FEW,
        input=SPEC,
        run_dir=run,
        verbose=False,
        on_epoch=seen.append,
    )
    return detector, model, before, run, seen


def test_fit_trains_both_stages_and_classifies_by_the_joint_head(fitted):
    detector, *_ = fitted
    images, labels = known(100, seed=2)
    assert np.mean(detector.classify(images) == labels) > 0.9
    with torch.no_grad():
        head = detector.classifier.head
        each = [detector.classifier.features(torch.rot90(SPEC(torch.from_numpy(images)), r, (2, 3))) for r in range(4)]
        logits = sum(head.joint(features)[:, 2 * r : 2 * r + 2] for r, features in enumerate(each)) / 4
    np.testing.assert_allclose(detector.score(images), -logits.softmax(1).amax(1).numpy(), atol=1e-6)
    np.testing.assert_allclose(detector.predict_proba(images), logits.softmax(1).numpy(), atol=1e-6)
    assert np.mean(detector.predict(known(80, seed=1)[0]) == wildood.UNKNOWN) < 0.2


def test_nothing_is_chosen_so_the_whole_holdout_sets_the_threshold(fitted, tmp_path):
    detector, *_ = fitted
    assert detector.promise == Promise(alpha=0.05, examples=80, unseen=True)
    assert "chosen_by" not in detector.record
    again = wildood.load(detector.save(tmp_path), model=backbone())
    promise = Promise(alpha=0.1, examples=80, unseen=True, caveat=NOT_COMPARED)
    assert again.calibrate(known(80, seed=1)[0], alpha=0.1).promise == promise


def test_history_has_the_rows_of_both_stages_and_says_which(fitted):
    detector, _, _, run, seen = fitted
    assert [(row["stage"], row["epoch"]) for row in detector.history] == [
        *((1, epoch) for epoch in range(3)),
        *((2, epoch) for epoch in range(9)),
    ]
    assert detector.history == seen
    assert detector.record["kept_epoch"] == 11
    assert [row["lr"] for row in detector.history[-1:]] == pytest.approx([0.0001])
    files = [read_rows(run / f"stage-{stage}" / "history.jsonl") for stage in (1, 2)]
    assert [*files[0], *files[1]] == detector.history


def test_accuracy_is_told_where_the_classifier_has_learned_to_classify(fitted):
    detector, *_ = fitted
    # At the start it is the given classifier's; the first stage does not train the layer that would say it.
    assert [number for number, row in enumerate(detector.history) if "accuracy" in row] == [0, *range(3, 12)]


def test_the_second_stage_changes_neither_the_weights_nor_the_batchnorm_statistics_of_the_network(fitted):
    detector, _, before, run, _ = fitted
    state = load_state((run / "stage-1" / "checkpoint.safetensors").read_bytes())["state"]["objective"]
    after = detector.classifier.model.state_dict()
    for name, value in after.items():
        assert torch.equal(value, state[f"classifier.model.{name}"]), name
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed == set(before) - {"5.weight", "5.bias"}  # the first one changed all but the layer that it does not use


def test_the_given_model_is_not_changed_and_the_detectors_can_be_trained_further(fitted):
    detector, model, before, *_ = fitted
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in detector.classifier.parameters())


def test_a_saved_detector_of_an_own_backbone_says_the_same(fitted, tmp_path):
    detector, *_ = fitted
    again = wildood.load(detector.save(tmp_path), model=backbone(seed=5))
    images = known(30, seed=3)[0]
    assert isinstance(again.classifier.head, JointHead)
    np.testing.assert_array_equal(again.score(images), detector.score(images))
    np.testing.assert_array_equal(again.predict(images), detector.predict(images))
    np.testing.assert_array_equal(again.predict_proba(images), detector.predict_proba(images))
    assert again.history == detector.history


def test_same_seed_same_bits_and_another_seed_others():
    def made(seed):
        settings = {"method": wildood.Csi(head_epochs=1), "schedule": FEW, "input": SPEC, "verbose": False}
        return wildood.fit(backbone(), known(32), None, known(80, seed=1), seed=seed, **settings)

    first, again, other = made(0), made(0), made(1)
    assert np.array_equal(first.holdout_scores, again.holdout_scores)
    for name, value in first.classifier.state_dict().items():
        assert torch.equal(value, again.classifier.state_dict()[name])
    assert not np.array_equal(first.holdout_scores, other.holdout_scores)


def test_a_shipped_model_with_wild_data_and_colours(tmp_path, caplog):
    """Wild data is not used, which is said; the detector is loaded without the model."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (120, 8, 8, 3)).astype(np.uint8), np.arange(120) % 2
    wild = rng.integers(0, 256, (30, 8, 8, 3)).astype(np.uint8)
    settings = {"method": wildood.Csi(head_epochs=1), "schedule": FEW, "input": SPEC, "keep": "last", "verbose": False}
    model = SmallCNN(2, channels=3, width=4, hidden=8)
    with caplog.at_level(logging.WARNING, logger="wildood"):
        detector = wildood.fit(model, (images[:60], labels[:60]), wild, (images[60:], labels[60:]), **settings)
        known = {**settings, "ood": wild}
        wildood.fit(model, (images[:60], labels[:60]), None, (images[60:], labels[60:]), **known)
    assert caplog.messages == [
        "Csi does not use wild data: it trains on labelled data alone",
        "ood has chosen nothing: there was no epoch and no setting to choose",
    ]
    again = wildood.load(detector.save(tmp_path))
    np.testing.assert_array_equal(again.score(wild), detector.score(wild))
    assert "acceptance" not in detector.history[-1]


FLOATS = np.random.default_rng(0).random((120, 8, 8, 3)).astype("float32")


@pytest.mark.parametrize(
    ("images", "model", "spec", "message"),
    [
        (FLOATS.reshape(120, 192), MLP(192, 2), None, "Csi turns and crops images: give input=InputSpec"),
        (FLOATS[:, :, :6], backbone(), SPEC, "Csi turns images, but they are 8 x 6: give an input spec with size=8"),
        (4 * FLOATS - 2, backbone(), SPEC, "Csi: images reach from -1.* to 1.*: give uint8, or floats from 0 to 1"),
    ],
    ids=["no images", "not square", "normalised already"],
)
def test_what_cannot_be_turned_and_cropped_is_refused_in_one_line(images, model, spec, message):
    labels = np.arange(120) % 2
    settings = {"method": wildood.Csi(head_epochs=1), "schedule": FEW, "input": spec, "verbose": False}
    with pytest.raises(wildood.InputError, match=message) as refused:
        wildood.fit(model, (images[:60], labels[:60]), None, (images[60:], labels[60:]), **settings)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("images", [FLOATS[:, :, :6], 4 * FLOATS - 2], ids=["not square", "normalised already"])
def test_a_refused_call_leaves_no_run_behind(images, tmp_path):
    labels = np.arange(120) % 2
    data = {"labelled": (images[:60], labels[:60]), "holdout": (images[60:], labels[60:])}
    with pytest.raises(wildood.InputError):
        wildood.fit(backbone(), **data, method=wildood.Csi(), schedule=FEW, input=SPEC, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0}, "Csi: temperature is 0: give a positive number"),
        ({"projection": 2.5}, "Csi: projection is 2.5: give a positive whole number"),
        ({"head_epochs": 0}, "Csi: head_epochs is 0: give a positive whole number"),
        ({"head_epochs": True}, "Csi: head_epochs is True: give a positive whole number"),
        ({"head_lr": "0.1"}, "Csi: head_lr is '0.1': give a positive number"),
        ({"alpha": 2}, "alpha is 2"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(wildood.InputError, match=message):
        wildood.Csi(**settings)
