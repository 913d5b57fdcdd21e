"""A transformer built from its configuration, a tokenizer made here, and Hugging Face datasets, through all of `fit`."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import wildood

datasets = pytest.importorskip("datasets")
tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow
TOPICS = (
    "weather rain sun wind",
    "bank money card pay",
    "music song play band",
    "recipe cook salt oven",
)  # the last unknown
RNG = np.random.default_rng(0)
SHORT = wildood.Schedule(steps=80, batch=64, lr=0.1)


def texts(topics):
    return [" ".join(RNG.choice(TOPICS[topic].split(), 4)) for topic in topics]


@pytest.fixture(scope="module")
def tokenizer():
    words = sorted({word for topic in TOPICS for word in topic.split()})
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *words])}
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106 - no password
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=own, pad_token="[PAD]", unk_token="[UNK]")  # noqa: S106


@pytest.fixture(scope="module")
def data(tokenizer):
    datasets.disable_progress_bars()

    def dataset(topics):
        rows = datasets.Dataset.from_dict({"text": texts(topics), "label": [min(topic, 2) for topic in topics]})
        rows = rows.cast_column("label", datasets.ClassLabel(names=["weather", "bank", "music"]))
        return rows.map(lambda batch: tokenizer(batch["text"], padding="max_length", max_length=6), batched=True)

    known = [dataset(RNG.integers(0, 3, count)) for count in (600, 200)]
    wild = dataset(np.concatenate([RNG.integers(0, 3, 450), np.full(150, 3)]))
    return known[0], wild, known[1], dataset(np.full(100, 3))


@pytest.fixture(scope="module")
def model(data):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.BertConfig(
            vocab_size=40,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=8,
            num_labels=3,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        network = transformers.BertForSequenceClassification(config)
        columns = data[0].with_format("torch")[:]
        inputs = {name: columns[name] for name in ("input_ids", "attention_mask")}
        optimiser = torch.optim.Adam(network.parameters(), 1e-2)
        for _ in range(30):
            optimiser.zero_grad()
            network(**inputs, labels=columns["label"]).loss.backward()
            optimiser.step()
    return network.eval()


@pytest.fixture(scope="module")
def detector(model, data):
    return wildood.fit(model, *data[:3], schedule=SHORT, keep="last", allow_duplicates=True, verbose=False, run_dir=None)


def test_datasets_are_fitted_by_their_columns_and_unknowns_are_caught(detector, data):
    unknown, known = data[3], data[2]
    assert np.mean(detector.predict(unknown) == wildood.UNKNOWN) > 0.8
    assert np.mean(detector.predict(known) == wildood.UNKNOWN) < 0.1
    assert detector.record["classes"] == ["weather", "bank", "music"]
    assert detector.class_name(1) == "bank"


def test_columns_as_arrays_give_the_same_detector(detector, model, data):
    def arrays(rows):
        columns = rows.with_format("numpy")[:]
        inputs = [name for name in rows.column_names if name not in {"text", "label"}]
        return {name: columns[name] for name in inputs}, columns["label"]

    labelled, wild, holdout = map(arrays, data[:3])
    again = wildood.fit(model, labelled, wild[0], holdout, schedule=SHORT, keep="last", allow_duplicates=True, verbose=False)
    assert np.array_equal(again.score(arrays(data[3])[0]), detector.score(data[3]))


def test_it_is_saved_loaded_and_evaluated(detector, model, data, tmp_path):
    again = wildood.load(detector.save(tmp_path), model=model)
    assert np.array_equal(again.score(data[3]), detector.score(data[3]))
    report = wildood.evaluate(again, id=data[2], ood={"cooking": data[3]}, resamples=100)
    assert report.ood[0].auroc.value > 0.9
    named = data[2].cast_column("label", datasets.ClassLabel(names=["bank", "weather", "music"]))
    with pytest.raises(wildood.InputError, match="id: class 0 is 'bank', but 'weather' in the detector"):
        wildood.evaluate(again, id=named, ood=data[3])


def test_files_for_other_runtimes_answer_as_the_detector_of_a_transformer(model, data, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    detector = wildood.posthoc(model, wildood.Knn(k=5), labelled=data[0], holdout=data[2], allow_duplicates=True)
    columns = data[3].with_format("numpy")[:9]
    x = {name: columns[name] for name in detector.example.parts}
    session = onnxruntime.InferenceSession(detector.export(tmp_path / "model.onnx", examples=data[3]))
    program = torch.export.load(detector.export(tmp_path / "model.pt2", examples=data[3])).module()
    tensors = {name: torch.from_numpy(part) for name, part in x.items()}
    for classes, scores in (session.run(["class", "score"], x), [each.numpy() for each in program(tensors)[:2]]):
        np.testing.assert_allclose(scores, detector.score(x), rtol=1e-4, atol=1e-4 * max(1, detector.score(x).std()))
        assert classes.tolist() == detector.predict(x).tolist()


def test_frozen_features_and_post_hoc_scores_take_datasets(model, data):
    frozen = wildood.fit(model, *data[:3], schedule=SHORT, keep="last", frozen=True, allow_duplicates=True, verbose=False)
    assert np.mean(frozen.predict(data[3]) == wildood.UNKNOWN) > 0.5
    scored = wildood.posthoc(model, wildood.Knn(k=5), labelled=data[0], holdout=data[2], allow_duplicates=True)
    assert np.isfinite(scored.score(data[3])).all()


def test_a_loader_with_the_collator_of_transformers_pads(model, data, tokenizer):
    collator = transformers.DataCollatorWithPadding(tokenizer)

    def loader(rows):
        ragged = rows.select_columns(["text", "label"])
        ragged = ragged.map(lambda batch: tokenizer(batch["text"]), batched=True, remove_columns=["text"])
        return DataLoader(ragged, collate_fn=collator)

    found = wildood.fit(model, *map(loader, data[:3]), schedule=SHORT, keep="last", allow_duplicates=True, verbose=False)
    assert np.mean(found.predict(loader(data[3])) == wildood.UNKNOWN) > 0.5
