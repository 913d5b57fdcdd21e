"""The last layer in white coordinates: by what its gradient is multiplied, which layer it is, and what a step then does."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from wildood.methods.objective import Precondition
from wildood.models.classifier import Classifier
from wildood.models.moments import (
    EXAMPLES,
    FULL,
    LEAST_RIDGE,
    MEAN_SQUARE,
    WIDEST,
    logit_layer,
    moments_of,
    whitening_matrix,
)
from wildood.models.small import MLP
from wildood.train.transforms import Preconditioner

SOME = torch.linspace(-1, 1, 8).view(4, 2)


def precondition(moments, *, mean_square=MEAN_SQUARE):
    """The preconditioner of the layer itself, with a shared direction."""
    return Preconditioner(Precondition(moments.layer.weight, moments.matrix(mean_square / moments.scale**2), shared=True))


def network(last: nn.Module) -> Classifier:
    torch.manual_seed(0)
    return Classifier(nn.Sequential(nn.Linear(2, 5), nn.ReLU(), last))


def tied() -> Classifier:
    classifier = Classifier(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 3)))
    classifier.model[1].weight = classifier.model[2].weight
    return classifier


class ByName(nn.Module):
    """A last layer that is given its input by name."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(2, 3)

    def forward(self, x):
        return self.last(input=x)


class Positions(ByName):
    """A last layer that takes each position of an image."""

    def forward(self, x):
        return self.last(x[:, None, None].expand(-1, 4, 5, -1)).mean((1, 2))


class OneByOne(ByName):
    """A last layer that takes one vector at a time."""

    def forward(self, x):
        return torch.stack([self.last(each) for each in x])


class Views(ByName):
    """A last layer that takes three views of each example."""

    def forward(self, x):
        return self.last(x.repeat_interleave(3, 0)).view(-1, 3, 3).mean(1)


class Twice(ByName):
    """A last layer that takes each token, and then the mean of them."""

    def forward(self, x):
        self.tokens = self.last(x[:, None].expand(-1, 4, -1))
        return self.last(x)


class Gate(nn.Module):
    """A last layer that is not the head, though it has as many outputs."""

    def __init__(self):
        super().__init__()
        self.gate, self.head = nn.Linear(2, 3), nn.Conv1d(2, 3, 1)

    def forward(self, x):
        return self.head(x[:, :, None])[:, :, 0] * self.gate(x).sigmoid()


class Squeezing(ByName):
    """A model that fails on a batch of one."""

    def forward(self, x):
        return self.last(x[:, :, None].squeeze().flatten(1))


@pytest.mark.parametrize(
    "classifier",
    [
        Classifier(nn.Sequential(nn.Conv1d(2, 3, 1))),
        network(nn.Linear(5, 3).requires_grad_(requires_grad=False)),
        network(parametrizations.weight_norm(nn.Linear(5, 3))),
        tied(),
        Classifier(nn.Sequential(nn.Linear(2, WIDEST + 1), nn.Linear(WIDEST + 1, 3))),
        Classifier(Positions()),
        Classifier(OneByOne()),
        Classifier(Views()),
        Classifier(Twice()),
        network(nn.Sequential(nn.Linear(5, 3), nn.LogSoftmax(1))),
        Classifier(Gate()),
    ],
    ids=[
        "no linear layer",
        "not trained",
        "parametrised",
        "tied",
        "wide",
        "positions",
        "one by one",
        "views",
        "twice",
        "not the logits",
        "gate",
    ],
)
def test_a_layer_that_cannot_be_made_white_is_left_alone(classifier):
    some = SOME[:, :, None] if isinstance(next(classifier.model.children()), nn.Conv1d) else SOME
    with moments_of(classifier, some[:2]) as moments:
        classifier(some)
    assert moments is None or not moments.layer.weight.requires_grad


def test_moments_are_those_of_all_that_the_layer_has_taken():
    classifier = Classifier(Squeezing())
    with moments_of(classifier, SOME[:2]) as moments:
        classifier(SOME[:2])
        classifier(SOME[2:])
    classifier(SOME)  # which is seen no more
    assert moments.count == 4
    torch.testing.assert_close(moments.total, (SOME.T @ SOME).double())
    assert moments.layer.weight is classifier.model.last.weight


def test_layer_that_is_called_by_name_is_seen():
    with moments_of(Classifier(ByName()), SOME[:2]) as moments:
        moments.layer(input=SOME)
    torch.testing.assert_close(moments.total, (SOME.T @ SOME).double())


def test_moments_are_exact_under_autocast():
    classifier = network(nn.Linear(5, 3))
    with torch.autocast("cpu", dtype=torch.bfloat16), moments_of(classifier, SOME[:2]) as moments:
        moments.layer(300 * torch.ones(4, 5))
    torch.testing.assert_close(moments.total, torch.full((5, 5), 360_000.0, dtype=torch.float64))


def test_a_weight_of_half_precision_has_a_gradient_of_half_precision():
    layer = nn.Linear(2, 3).bfloat16()
    with moments_of(Classifier(layer), SOME[:2]) as moments:
        layer(1e-3 * SOME.bfloat16()).sum().backward()
    before = layer.weight.grad.clone()
    whiten = precondition(moments)
    whiten()
    assert layer.weight.grad.dtype == torch.bfloat16
    white = before.float() @ whiten.layer.matrix
    torch.testing.assert_close(layer.weight.grad.float(), white + white.mean(0), rtol=0.01, atol=0.0)  # √(1 + 3) times


def test_features_that_are_not_finite_are_left_as_they_are():
    classifier = Classifier(MLP(2, 3))
    with moments_of(classifier, SOME[:1]) as moments:
        classifier(SOME / 0)
    assert moments.matrix() is None


MANY = 1_000_000


def stretches(*mean_squares: float, count: int = MANY) -> list[float]:
    """By what the gradient along each of some features that do not depend on each other is multiplied."""
    root = whitening_matrix(torch.diag(torch.tensor(mean_squares).double()), count)
    matrix = root @ root
    torch.testing.assert_close(matrix, torch.diag(matrix.diag()))
    return matrix.diag().tolist()


def test_each_direction_is_divided_by_its_mean_square():
    ridge = 4 * LEAST_RIDGE
    assert stretches(1.0, 4.0, 0.25) == pytest.approx(
        [MEAN_SQUARE / (1 + ridge), MEAN_SQUARE / (4 + ridge), MEAN_SQUARE / (0.25 + ridge)]
    )


def test_many_features_move_less_each():
    assert stretches(*[2.0] * 256) == pytest.approx([MEAN_SQUARE * FULL / 256 / 2] * 256)


def test_features_that_are_never_there_change_nothing():
    assert stretches(*[2.0] * 60, *[0.0] * 200)[:60] == pytest.approx([MEAN_SQUARE / 2 / (1 + LEAST_RIDGE)] * 60)


def test_short_directions_are_stretched_no_further_than_the_least():
    assert stretches(1.0, 0.0)[1] == pytest.approx(MEAN_SQUARE / LEAST_RIDGE)


def test_features_that_are_all_zero_have_a_matrix():
    assert stretches(0.0, 0.0) == pytest.approx([MEAN_SQUARE] * 2)


def test_matrix_is_the_inverse_of_the_second_moment():
    features = torch.randn(500, 6, generator=torch.Generator().manual_seed(0)).double()
    moment = features.T @ features / 500
    ridge = LEAST_RIDGE * torch.linalg.eigvalsh(moment)[-1] * torch.eye(6)
    root = whitening_matrix(moment, MANY)
    torch.testing.assert_close(root, root.T)
    torch.testing.assert_close(root @ root, MEAN_SQUARE * torch.linalg.inv(moment + ridge))


@pytest.mark.parametrize(("count", "directions"), [(10 * EXAMPLES, 10), (2 * EXAMPLES, 2), (EXAMPLES // 10, 1)])
def test_few_examples_bear_few_directions(count, directions):
    squares = 2.0 ** -torch.arange(20)
    found = torch.tensor(stretches(*squares.tolist(), count=count))
    ridge = (found[1] * squares[1] - found[0] * squares[0]) / (found[0] - found[1])  # found is a scale / (squares + ridge)
    assert directions / 1.2 < float((squares / (squares + ridge)).sum()) <= directions + 1e-4


def test_steps_do_not_depend_on_the_scale_of_the_features():
    features = torch.randn(2000, 5, generator=torch.Generator().manual_seed(0))

    def logits(scale):
        torch.manual_seed(1)
        layer = nn.Linear(5, 3)
        with torch.no_grad():
            layer.weight.div_(scale)
        with moments_of(Classifier(layer), features[:1]) as moments:
            layer(scale * features)
        whiten = precondition(moments)
        optimiser = torch.optim.SGD(layer.parameters(), lr=0.01, momentum=0.9)
        for _ in range(5):
            optimiser.zero_grad()
            layer(scale * features).logsumexp(1).mean().backward()
            whiten()
            whiten()
            optimiser.step()
        return layer(scale * features).detach()

    torch.testing.assert_close(logits(8.0), logits(0.125), rtol=1e-4, atol=1e-4)


class Calibrated(nn.Sequential):
    """Logits that are divided by a temperature."""

    temperature = 2.5

    def forward(self, x):
        return super().forward(x) / self.temperature


class InPlace(Calibrated):
    """Logits that take the place of what the layer made."""

    def forward(self, x):
        return nn.Sequential.forward(self, x).div_(self.temperature)


@pytest.mark.parametrize("model", [Calibrated, InPlace])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_temperature_of_a_model_is_found(model, dtype):
    torch.manual_seed(0)
    classifier = Classifier(model(nn.Linear(2, 3)).to(dtype))
    with moments_of(classifier, SOME[:2]) as moments:
        classifier(SOME)
    assert moments.scale == pytest.approx(0.4, rel=torch.finfo(dtype).eps + 1e-6)


def test_steps_of_the_weight_do_not_depend_on_a_temperature():
    features = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))

    def logits(model, scale):
        with torch.no_grad():
            for parameter, start in zip(model[0].parameters(), nn.Linear(5, 3).parameters(), strict=True):
                parameter.copy_(scale * start)
        with moments_of(Classifier(model), features[:2]) as moments:
            model(features)
        assert moments.scale == pytest.approx(1 / scale)
        whiten = precondition(moments)
        optimiser = torch.optim.SGD([model[0].weight], lr=0.01)
        model(features).logsumexp(1).square().mean().backward()
        whiten()
        whiten()
        optimiser.step()
        return model(features).detach()

    torch.manual_seed(1)
    plain = logits(nn.Sequential(nn.Linear(5, 3)), 1.0)
    torch.manual_seed(1)
    divided = logits(Calibrated(nn.Linear(5, 3)), Calibrated.temperature)
    torch.testing.assert_close(divided, plain)


class WithNothing(nn.Linear):
    """A linear layer that returns a tuple."""

    def forward(self, x):
        return super().forward(x), None


class Cosine(nn.Linear):
    """A layer whose rows have the length 1 before they multiply features."""

    def forward(self, x):
        return nn.functional.linear(x, nn.functional.normalize(self.weight), self.bias)


def test_a_layer_makes_logits_if_its_weight_and_bias_do_whatever_it_returns():
    assert logit_layer(network(WithNothing(5, 3)), SOME) == ("2", 1.0)
    assert logit_layer(network(Cosine(5, 3)), SOME) is None


def test_a_layer_of_zeros_makes_logits():
    layer = nn.Linear(2, 3)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    with moments_of(Classifier(layer), SOME[:2]) as moments:
        layer(SOME)
    assert moments.scale == 1.0
    assert moments.matrix() is not None


def test_a_step_is_that_of_the_rows_and_of_a_vector_that_they_share():
    features = torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    layer = nn.Linear(5, 4)
    with moments_of(Classifier(layer), features[:1]) as moments:
        layer(features)
    whiten = precondition(moments)
    start = layer.weight.detach().clone()
    rows, shared = torch.zeros(4, 5, requires_grad=True), torch.zeros(5, requires_grad=True)
    weight = start + (rows + shared) @ whiten.layer.matrix
    (features @ weight.T + layer.bias.detach()).logsumexp(1).square().mean().backward()
    with torch.no_grad():
        expected = start - 0.01 * (rows.grad + shared.grad) @ whiten.layer.matrix
    optimiser = torch.optim.SGD([layer.weight], lr=0.01)
    layer(features).logsumexp(1).square().mean().backward()
    whiten()
    whiten()
    optimiser.step()
    torch.testing.assert_close(layer.weight.detach(), expected)


def test_a_layer_without_a_gradient_is_passed_over():
    layer = nn.Linear(2, 3)
    with moments_of(Classifier(layer), SOME[:1]) as moments:
        layer(SOME)
    precondition(moments)()
    assert layer.weight.grad is None
