"""What scores cost beside the passes through the network that they cannot do without, side by side in one run.

Run: python benchmarks/score_speed.py
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from cifar10 import SPEC

import wildood
from wildood.data.sources import Source
from wildood.data.structures import one_tensor
from wildood.data.validation import labelled_source, unlabelled_source
from wildood.models.classifier import EVAL_BATCH, Classifier, Outputs, evaluating, forward_all, raw_batches
from wildood.models.features import FeatureTap
from wildood.models.resnet import ResNet20
from wildood.scores.bank import BankScore
from wildood.scores.knn import kth_largest_product
from wildood.scores.score import Score, score_all
from wildood.scores.shipped import NAMES

ROUNDS = 7
REPEATED = 10  # a score alone takes milliseconds


def ratio(name: str, first: Callable[[], object], second: Callable[[], object], goal: float) -> None:
    """Print the median over rounds of seconds of the first over seconds of the second, measured in turn."""
    found = []
    for _ in range(ROUNDS):
        seconds = []
        for task in (first, second):
            began = time.perf_counter()
            task()
            seconds.append(time.perf_counter() - began)
        found.append(seconds[0] / seconds[1])
    low, median, high = np.quantile(found, [0.1, 0.5, 0.9])
    print(f"{name:44} {median:.3f}  ({low:.3f} to {high:.3f}, goal {goal})", flush=True)


def shares(classifier: Classifier, labelled: Source) -> None:
    """Print what each score costs, from ready outputs, as a share of the forward pass that makes them.

    The settings are the default ones, without a step on the input. Banks have 10 rows for each labelled example.
    """
    scores = {name: cls(epsilon=0.0) if cls.needs.gradients else cls() for name, cls in NAMES.items()}
    for score in scores.values():
        score.fit(classifier, labelled)
        for part in score.modules():
            if isinstance(part, BankScore):
                part.bank = part.bank.repeat(10, 1)
    found: dict[str, list[float]] = {name: [] for name in scores}
    with evaluating(classifier):
        for _ in range(ROUNDS):
            began = time.process_time()
            outputs = [each for each, _ in forward_all(classifier, labelled)]
            forward = time.process_time() - began
            for name, score in scores.items():
                began = time.process_time()
                for _ in range(REPEATED):
                    for each in outputs:
                        score(each)
                found[name].append((time.process_time() - began) / REPEATED / forward)
    print(f"processor time of the score alone, in % of a forward pass of ResNet-20, {len(labelled)} images")
    for name, values in found.items():
        low, median, high = 100 * np.quantile(values, [0.1, 0.5, 0.9])
        print(f"{name:24} {median:.2f} %  ({low:.2f} to {high:.2f})", flush=True)


def main() -> None:
    """Scores beside a forward pass; those with a step over their passes; neighbours over the matrix product alone."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (4 * EVAL_BATCH, 32, 32, 3), dtype=np.uint8)
    source = unlabelled_source(images, "x")
    labelled = labelled_source((images, rng.integers(0, 10, len(images))), "labelled")
    network = ResNet20().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    classifier = Classifier(network, SPEC, FeatureTap("linear", "input")).eval()
    plain = Classifier(network, SPEC).eval()

    def there_and_back(loss: Callable[[Outputs], torch.Tensor]) -> None:
        """Forward, backward to the input, forward."""
        with evaluating(classifier):
            for raw, _ in raw_batches(source):
                with torch.enable_grad():
                    batch = one_tensor(classifier.prepare(raw), "this").requires_grad_()
                    torch.autograd.grad(loss(classifier.outputs(batch)).sum(), batch)
                classifier.outputs(batch.detach())

    def scored(score: Score, on: Classifier) -> Callable[[], object]:
        return lambda: score_all(on, source, score)

    shares(classifier, labelled)
    mahalanobis = wildood.Mahalanobis(epsilon=0.002)
    mahalanobis.fit(classifier, labelled)
    print("seconds of a score with a step on the input over seconds of its passes; lower is better")
    odin = wildood.Odin(epsilon=0.002)
    ratio("ODIN / forward + backward + forward", scored(odin, plain), lambda: there_and_back(odin.lower), 1.15)
    ratio(
        "Mahalanobis / forward + backward + forward",
        scored(mahalanobis, classifier),
        lambda: there_and_back(lambda outputs: outputs.features_or_refuse().square().sum(1)),
        1.15,
    )
    print("speed of the k-th neighbour over speed of the matrix product alone, d = 512, 256 queries; higher is better")
    for size in (10_000, 50_000, 200_000):
        bank = torch.nn.functional.normalize(torch.randn(size, 512), dim=1)
        queries = torch.nn.functional.normalize(torch.randn(256, 512), dim=1)

        def product(bank: torch.Tensor = bank, queries: torch.Tensor = queries) -> None:
            for block in torch.split(bank, 8192):
                _ = queries @ block.T

        def neighbours(bank: torch.Tensor = bank, queries: torch.Tensor = queries) -> None:
            kth_largest_product(queries, bank, 50)

        ratio(f"bank of {size}, k = 50", product, neighbours, 0.6)


if __name__ == "__main__":
    main()
