import pytest
import torch
from torch import nn

from wildood.data.augmentation import rotations
from wildood.data.inputs import InputSpec
from wildood.models.classifier import Classifier
from wildood.models.features import FeatureTap
from wildood.models.heads import DeConfHead, JointHead


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 2))


def test_joint_logits_are_marginalised_over_the_rotations_by_hand():
    head = JointHead(features=5, classes=3)
    features = torch.randn(4 * 6, 5)
    logits = head(features)
    assert logits.shape == (6, 3)
    for image in range(6):
        for k in range(3):
            # The logit of "class k, turned r times" of the image that is turned r times.
            rows = [head.joint.weight[3 * r + k] @ features[6 * r + image] + head.joint.bias[3 * r + k] for r in range(4)]
            assert logits[image, k].item() == pytest.approx(sum(rows).item() / 4, abs=1e-5)


def test_a_classifier_with_a_joint_head_turns_its_images_in_one_pass():
    calls = []
    model = network()
    model.register_forward_pre_hook(lambda _module, inputs: calls.append(inputs[0].shape))
    classifier = Classifier(model, InputSpec(mean=(0.5,), std=(0.5,)), FeatureTap("4", "input")).eval()
    classifier.head = JointHead(features=12, classes=2)
    raw = torch.randint(0, 256, (5, 8, 8, 1), dtype=torch.uint8)
    logits, features = classifier(raw)
    assert calls == [(20, 1, 8, 8)]
    turned = model[:4](rotations(classifier.prepare(raw)))
    torch.testing.assert_close(logits, classifier.head(turned))
    torch.testing.assert_close(features, model[:4](classifier.prepare(raw)))  # of the images as they are


def test_a_turned_image_has_the_same_features_in_another_place():
    """What a classifier says of an image that is turned once is what the joint layer says one block further."""
    classifier = Classifier(network(), tap=FeatureTap("4", "input")).eval()
    classifier.head = head = JointHead(features=12, classes=2)
    images = torch.rand(3, 1, 8, 8)
    before = classifier(images).logits
    with torch.no_grad():
        head.joint.weight.copy_(head.joint.weight.roll(2, 0))
        head.joint.bias.copy_(head.joint.bias.roll(2, 0))
    torch.testing.assert_close(classifier(torch.rot90(images, -1, (2, 3))).logits, before)


def test_other_heads_see_each_image_once():
    calls = []
    model = network()
    model.register_forward_pre_hook(lambda _module, inputs: calls.append(len(inputs[0])))
    classifier = Classifier(model, tap=FeatureTap("4", "input")).eval()
    classifier.head = DeConfHead(features=12, classes=2)
    assert classifier(torch.rand(3, 1, 8, 8)).logits.shape == (3, 2)
    assert calls == [3]


def test_features_need_a_tap():
    with pytest.raises(ValueError, match="no features"):
        Classifier(network()).features(torch.rand(1, 1, 8, 8))
