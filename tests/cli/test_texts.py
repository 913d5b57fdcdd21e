"""Texts in .jsonl and .csv files with a tokenizer: fit, score, evaluate, inspect; what is refused."""

import csv
import json
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("tokenizers")
from tokenizers import Tokenizer, models, pre_tokenizers

import wildood

TOPICS = {"bank": "money card pay loan", "music": "song play band note", "": "cook salt oven recipe"}
SHORT = ("--steps", "2", "--batch", "32", "--augment", "False")
MODEL = """
import torch

class Texts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.last = torch.nn.Embedding(16, 8), torch.nn.Linear(8, 2)
        with torch.no_grad():
            self.embedding.weight.copy_(3 * torch.eye(16, 8).roll(2, 0))
            for topic in range(2):
                self.last.weight[topic] = torch.eye(8)[4 * topic : 4 * topic + 4].sum(0)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask[..., None]
        return self.last((self.embedding(input_ids) * mask).sum(1) / mask.sum(1))

def build():
    return Texts()
"""


def texts():
    """The module of the model."""
    module = ModuleType("texts")
    exec(MODEL, module.__dict__)  # noqa: S102 - the text above
    return module


def rows(rng, counts, length=4):
    topics = rng.permutation(np.repeat(list(counts), list(counts.values())))
    return [{"query": " ".join(rng.choice(TOPICS[topic].split(), length)), "intent": topic} for topic in topics.tolist()]


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@pytest.fixture(scope="module")
def place(arrays):
    """Files of texts, a tokenizer and a model of one's own, in the directory of the other tests."""
    rng = np.random.default_rng(0)
    words = [word for topic in TOPICS.values() for word in topic.split()]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(["[PAD]", "[UNK]", *words])}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (arrays / "words").mkdir()
    tokenizer.save(str(arrays / "words" / "tokenizer.json"))
    (arrays / "texts.py").write_text(MODEL)
    write(arrays / "train.jsonl", rows(rng, {"bank": 100, "music": 100}))
    write(arrays / "fresh.jsonl", rows(rng, {"bank": 50, "music": 50}))
    write(arrays / "odd.jsonl", rows(rng, {"": 40}))
    write(arrays / "later.jsonl", rows(rng, {"bank": 60, "music": 60, "": 40}))
    traffic = [{"query": row["query"]} for row in rows(rng, {"bank": 60, "music": 60, "": 40})]
    write(arrays / "traffic.jsonl", [*traffic, {"query": "pay " * 9}])
    with (arrays / "new.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["id", "query"], ["a", "money card\npay loan"], ["b", "salt oven cook"]])
    return arrays


@pytest.fixture(scope="module")
def words():
    files = ["--labelled", "train.jsonl", "--wild", "traffic.jsonl", "--holdout", "fresh.jsonl"]
    texts = ["--tokenizer", "words", "--text-column", "query", "--label-column", "intent"]
    more = ["--model", "texts:build", "--steps", "60", "--batch", "32", "--keep", "last", "--allow-duplicates"]
    return ["fit", *files, *texts, *more]


@pytest.fixture(scope="module")
def messages(place, words, run_in):
    """What a fit says whose detector is in `t`."""
    result = run_in(place, *words, "--out", "t")
    assert result.code == 0, result.err
    return result.err


@pytest.mark.slow
def test_fit_says_what_it_read_and_how_long_texts_are(messages):
    assert messages.splitlines()[:5] == [
        "texts are padded to 4 tokens (--tokens)",
        "labelled: 200 examples of 2 classes from train.jsonl",
        "wild: 1 of 161 texts have more than 4 tokens and are cut",
        "wild: 161 examples from traffic.jsonl",
        "holdout: 100 examples of 2 classes from fresh.jsonl",
    ]


@pytest.mark.slow
def test_the_tokenizer_is_kept_beside_the_detector_and_its_page(messages, place):
    record = json.loads((place / "t" / "detector.json").read_text())["record"]
    assert record["classes"] == ["bank", "music"]
    assert (record["text"]["column"], record["text"]["label_column"]) == ("query", "intent")
    kept = json.loads((place / "t" / "tokenizer.json").read_text())
    assert (kept["padding"]["strategy"], kept["truncation"]["max_length"]) == ({"Fixed": 4}, 4)
    assert "A classifier that says “unknown”" in (place / "t" / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_score_reads_texts_with_the_saved_tokenizer(messages, cli):
    result = cli("score", "t", "new.csv", "--model", "texts:build", "--format", "jsonl")
    assert result.code == 0, result.err
    first, second = map(json.loads, result.out.splitlines())
    assert (first["example"], first["decision"], first["class"]) == (0, "known", "bank")
    assert (second["example"], second["decision"]) == (1, "unknown")
    result = cli("score", "t", "traffic.jsonl", "--model", "texts:build", "--out", "scores.csv")
    assert "traffic.jsonl: 1 of 161 texts have more than 4 tokens and are cut" in result.err


@pytest.mark.slow
def test_evaluate_and_inspect_read_texts(messages, cli, place):
    result = cli("evaluate", "t", "--id", "fresh.jsonl", "--ood", "odd.jsonl", "--model", "texts:build", "--resamples", "50")
    assert result.code == 0, result.err
    metrics = json.loads((place / "t" / "evaluation" / "metrics.json").read_text())
    assert metrics["ood"][0]["auroc"]["value"] == 1.0
    result = cli("inspect", "t", "--wild", "later.jsonl", "--model", "texts:build")
    assert result.code == 3, result.err


@pytest.mark.slow
def test_a_detector_of_texts_is_retrained_with_its_tokenizer(messages, cli, place, assert_mistake):
    *lines, _ = (place / "train.jsonl").read_text().splitlines()  # not the set that the detector was made from
    (place / "unseen.jsonl").write_text("\n".join(lines))
    data = ["--labelled", "fresh.jsonl", "--wild", "later.jsonl", "--holdout", "unseen.jsonl", "--allow-duplicates"]
    words = ["fit", "--weights", "t", "--model", "texts:build", *data, *SHORT[:4], "--keep", "last", "--out", "t2"]
    result = cli(*words, "--tokenizer", "words")
    assert result.code == 0, result.err
    assert "texts are read as for the training of t" in result.err
    assert (place / "t2" / "tokenizer.json").read_text() == (place / "t" / "tokenizer.json").read_text()
    records = [json.loads((place / name / "detector.json").read_text())["record"] for name in ("t", "t2")]
    assert records[0]["text"] == records[1]["text"]
    for option, value in (("--tokens", "5"), ("--text-column", "intent"), ("--label-column", "query")):
        assert_mistake([*words, option, value], f"{option} is not that of the training of t: leave it out")
    other = (place / "words" / "tokenizer.json").read_text().replace("money", "honey")
    (place / "other.json").write_text(other)
    assert_mistake([*words, "--tokenizer", "other.json"], "--tokenizer is not that of the training of t: leave it out")


@pytest.mark.slow
def test_a_detector_that_is_loaded_and_saved_again_keeps_its_tokenizer(messages, cli, place):
    again = wildood.load(place / "t", model=texts().build)
    again.save(place / "t3")
    assert (place / "t3" / "tokenizer.json").read_bytes() == (place / "t" / "tokenizer.json").read_bytes() == again.tokenizer
    results = [cli("score", name, "new.csv", "--model", "texts:build") for name in ("t", "t3")]
    assert results[1].out == results[0].out != ""


@pytest.mark.slow
def test_another_tokenizer_beside_the_detector_is_refused(messages, cli, place):
    kept = (place / "t" / "tokenizer.json").read_text()
    (place / "t" / "tokenizer.json").write_text(kept.replace("money", "honey"))
    try:
        result = cli("score", "t", "new.csv", "--model", "texts:build")
        assert result.code == 2
        assert "t/tokenizer.json is not the tokenizer that the detector was made with" in result.err
        (place / "t" / "tokenizer.json").unlink()
        assert (
            "the detector reads texts with it, copy it there" in cli("score", "t", "new.csv", "--model", "texts:build").err
        )
    finally:
        (place / "t" / "tokenizer.json").write_text(kept)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--text-column", "text"], "line 1 has no 'text', but 'query', 'intent': name one with --text-column"),
        (
            ["--label-column", "label", "--tokens", "4"],
            "train.jsonl has no labels: name the column of the classes with",
        ),
        (["--tokenizer", "nowhere"], "--tokenizer nowhere: nowhere cannot be read (No such file or directory): give a"),
        (["--tokenizer", "model.txt"], "model.txt is no tokenizer.json of the tokenizers library"),
        (["--labelled", "labelled.npz"], "labelled.npz is no file of texts: give a .csv file with a header, or a .jsonl"),
        (["--mean", "0.5", "--std", "0.5"], "--mean is for images, not for texts: leave it out"),
        (["--ignore", "id"], "--ignore is for tables, not for texts: leave it out"),
        (["--tokens", "0"], "--tokens is 0: give a number of tokens"),
    ],
)
def test_what_cannot_be_read_is_refused(place, assert_mistake, words, more, message):
    assert_mistake([*words, *more, "--out", "refused"], message)


def test_options_of_texts_without_a_tokenizer_are_refused(place, assert_mistake, fit_words):
    for option, value in (("--text-column", "query"), ("--tokens", "4")):
        message = f"{option} is for texts: give --tokenizer, too"
        assert_mistake([*fit_words, option, value, "--out", "refused"], message)


def test_pretrain_reads_texts(place, cli):
    texts = ["--labelled", "train.jsonl", "--tokenizer", "words", "--text-column", "query", "--label-column", "intent"]
    result = cli("pretrain", *texts, "--model", "texts:build", *SHORT, "--out", "texts-p")
    assert result.code == 0, result.err
    assert "accuracy 100.0 %" in result.out
    refused = cli("pretrain", *texts, "--model", "texts:build", *SHORT, "--set-aside", "0.1", "--out", "texts-p2")
    assert "--set-aside is not for texts" in refused.err
