"""`as_published` against a plain transcription of what the released training script computes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from wildood import EnergyLogistic, OutlierExposure, Schedule, WildMixture, Woods, WoodsAlt
from wildood.data.sampling import ShuffledCycle, generator
from wildood.data.sources import ArraySource
from wildood.models.classifier import Classifier
from wildood.models.features import FeatureTap
from wildood.train.loop import Training
from wildood.train.monitor import measure_start

SEED, BATCH, EPOCHS = 5, 16, 4
RNG = np.random.default_rng(0)
X = torch.from_numpy(RNG.normal(size=(64, 6)).astype("float32"))
Y = torch.from_numpy(RNG.integers(0, 3, 64))
ID, OOD = RNG.normal(size=(48, 6)).astype("float32"), RNG.normal(size=(40, 6)).astype("float32") + 2
WILD = WildMixture(id=ID, ood=OOD, pi=0.3)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()), nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(self.body(x))


def new_net() -> Net:
    torch.manual_seed(1)
    return Net()


def epochs(net: Net, extra: list[nn.Parameter]):
    """The released optimiser, and the batches of each epoch: labelled numbers, and labelled with wild examples."""
    labelled, coins = ShuffledCycle(64, generator(SEED, "labelled")), generator(SEED, "wild-coins")
    pools = [ShuffledCycle(48, generator(SEED, "wild-0")), ShuffledCycle(40, generator(SEED, "wild-1"))]
    optimiser = torch.optim.SGD([*net.parameters(), *extra], 1e-3, momentum=0.9, weight_decay=5e-4, nesterov=True)

    def batches():
        for _ in range(40 // BATCH):
            chosen = labelled.take(BATCH)
            ood = int((torch.rand(BATCH, generator=coins, dtype=torch.float64) < 0.3).sum())
            wild = torch.cat([torch.from_numpy(ID)[pools[0].take(BATCH - ood)], torch.from_numpy(OOD)[pools[1].take(ood)]])
            net.train()
            yield chosen, torch.cat([X[chosen], wild])

    for epoch in range(EPOCHS):
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * 0.5 ** sum(epoch >= int(share * EPOCHS) for share in (0.5, 0.75, 0.9))
        yield optimiser, batches()


def released(net: Net, ood_losses, extra: list[nn.Parameter], lr_lam: float, penalty_mult: float, tau: float):
    """The released loop: one shared multiplier, the two-branch loss, updates after a full pass without augmentation."""
    lam, beta1, beta2 = 0.0, 1.0, 1.0

    def penalty(c, weight):
        return c * lam + weight / 2 * c**2 if weight * c + lam >= 0 else -(torch.tensor(lam) ** 2) * 0.5 / weight

    for optimiser, batches in epochs(net, extra):
        for chosen, x in batches:
            loss_out, loss_in, logits = ood_losses(net, x, BATCH)
            c1, c2 = loss_in - 0.05, F.cross_entropy(logits, Y[chosen]) - tau
            optimiser.zero_grad()
            (penalty(c2, beta2) + loss_out + penalty(c1, beta1)).backward()
            optimiser.step()
        net.eval()
        with torch.no_grad():
            _, loss_in, logits = ood_losses(net, X, 64)
            c1, c2 = loss_in.item() - 0.05, F.cross_entropy(logits, Y).item() - tau
        lam += lr_lam * c1 if beta1 * c1 + lam >= 0 else -lr_lam * lam / beta1
        lam += lr_lam * c2 if beta2 * c2 + lam >= 0 else -lr_lam * lam / beta2
        beta1, beta2 = beta1 * (penalty_mult if c1 > 0.05 else 1), beta2 * (penalty_mult if c2 > 0.05 else 1)
    return lam, beta1, beta2


@pytest.mark.parametrize("lr_lam", [0.1, 1.0, 2.0])
@pytest.mark.parametrize("penalty_mult", [1.1, 1.5])
def test_woods_as_published_follows_the_released_code(lr_lam, penalty_mult):
    ours = Classifier(new_net())
    start = measure_start(ours, ArraySource(X, Y), SEED)
    objective = Woods.as_published(gamma=penalty_mult, mu2=lr_lam).objective(ours, start)
    net = new_net()
    w, b = (nn.Parameter(value.detach().clone()) for value in objective.logit.parameters())

    def ood_losses(net, x, count):
        logits = net(x)
        z = w * torch.logsumexp(logits, 1) + b
        return torch.sigmoid(-z[count:]).mean(), torch.sigmoid(z[:count]).mean(), logits[:count]

    expected = released(net, ood_losses, [w, b], lr_lam, penalty_mult, tau=2 * start.cross_entropy)
    compare(objective, net, expected)
    assert objective.watch() == pytest.approx({"w": w.item(), "b": b.item()}, abs=1e-6)


def test_woods_alt_as_published_follows_the_released_code():
    ours = Classifier(new_net(), tap=FeatureTap("fc", side="input"))
    start = measure_start(ours, ArraySource(X, Y), SEED)
    objective = WoodsAlt.as_published().objective(ours, start)
    net = new_net()
    head = nn.Sequential(nn.Linear(8, 300), nn.ReLU(), nn.Linear(300, 1))
    head.load_state_dict(objective.score.head.layers.state_dict())

    def ood_losses(net, x, count):
        features = net.body(x)
        g = head(features)[:, 0]
        return F.relu(1 - g[count:]).mean(), F.relu(1 + g[:count]).mean(), net.fc(features)[:count]

    expected = released(net, ood_losses, list(head.parameters()), 1.0, 1.5, tau=2 * start.cross_entropy)
    compare(objective, net, expected)


def released_baseline(net: Net, ood_loss, extra: list[nn.Parameter], weight: float) -> None:
    """The released loop of the baselines: cross-entropy, and a weighted loss of all logits; no constraints."""
    for optimiser, batches in epochs(net, extra):
        for chosen, x in batches:
            logits = net(x)
            optimiser.zero_grad()
            (F.cross_entropy(logits[:BATCH], Y[chosen]) + weight * ood_loss(logits)).backward()
            optimiser.step()


@pytest.mark.parametrize("weight", [0.1, 1.0, 5.0])
def test_energy_logistic_as_published_follows_the_released_code(weight):
    """There, w S + b is the logit of ID; w and b come from nn.Linear(1, 1), with either sign, and decay."""
    ours = Classifier(new_net())
    start = measure_start(ours, ArraySource(X, Y), SEED)
    objective = EnergyLogistic.as_published(weight).objective(ours, start)
    woods = Woods.as_published().objective(Classifier(new_net()), start)  # the released code draws the same for both
    w, b = (nn.Parameter(value.detach().clone()) for value in woods.logit.parameters())
    net, target = new_net(), torch.tensor([1.0] * BATCH + [0.0] * BATCH)

    def ood_loss(logits):
        return F.binary_cross_entropy_with_logits(w * torch.logsumexp(logits, 1) + b, target)

    released_baseline(net, ood_loss, [w, b], weight)
    compare_weights(trained(objective), net)
    assert objective.watch() == pytest.approx({"w": -w.item(), "b": -b.item()}, abs=1e-6)


@pytest.mark.parametrize("weight", [0.1, 0.5, 1.0])
def test_outlier_exposure_as_published_follows_the_released_code(weight):
    ours, net = Classifier(new_net()), new_net()
    objective = OutlierExposure(weight).objective(ours, measure_start(ours, ArraySource(X, Y), SEED))

    def ood_loss(logits):
        return -(logits[BATCH:].mean(1) - torch.logsumexp(logits[BATCH:], dim=1)).mean()

    released_baseline(net, ood_loss, [], weight)
    compare_weights(trained(objective), net)


def trained(objective) -> Training:
    """Our run of the same length, whose other settings are those that it calls published."""
    schedule = replace(Schedule.as_published("stationary"), epochs=EPOCHS, batch=BATCH)
    run = Training(objective, ArraySource(X, Y), WILD, schedule, SEED)
    run.train()
    assert run.steps == EPOCHS * (40 // BATCH)
    return run


def compare_weights(run: Training, net: Net) -> None:
    for ours, theirs in zip(run.objective.classifier.model.parameters(), net.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def compare(objective, net: Net, expected: tuple[float, float, float]) -> None:
    run = trained(objective)
    compare_weights(run, net)
    watched = run.lagrangian.watch()
    found = watched["lambda_false_alarm"], watched["beta_false_alarm"], watched["beta_classification"]
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert watched["lambda_classification"] == watched["lambda_false_alarm"]
