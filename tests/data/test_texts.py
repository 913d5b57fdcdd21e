"""Files of texts: their rows, their classes, and the numbers that a tokenizer makes of them."""

import json

import numpy as np
import pytest

from wildood.data.texts import FILE, Row, TextColumns, TextReader, TextTokenizer
from wildood.data.validation import align_classes, labelled_source
from wildood.errors import InputError

WORDS = ["[PAD]", "[UNK]", "red", "green", "blue"]


@pytest.fixture
def tokenizer(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(WORDS)}, "[UNK]"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    own.save(str(tmp_path / FILE))
    return TextTokenizer.open(tmp_path)


def file_of(tmp_path, lines, name="a.jsonl"):
    path = tmp_path / name
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def test_both_kinds_of_file_give_the_same_rows(tmp_path):
    objects = [{"q": "a, b", "y": "dog"}, {"q": "Grüße\n", "y": 3}, {"q": "", "y": None}]
    table = '\ufeffq,y\n"a, b",dog\n"Grüße\n",3\n,\n'
    columns = TextColumns("q", "y")
    texts = [(row.text, row.label) for row in columns.rows(file_of(tmp_path, objects))]
    assert texts == [("a, b", "dog"), ("Grüße\n", "3"), ("", None)]
    assert [(row.text, row.label) for row in columns.rows(file_of(tmp_path, [table], "a.csv"))] == texts


def test_halves_of_characters_are_spelt_out(tokenizer, tmp_path):
    path = file_of(tmp_path, ['{"text": "\\ud800 a"}\n'])
    assert [row.text for row in TextColumns().rows(path)] == ["\\ud800 a"]
    tokenizer.set_length(4)
    assert len(TextReader(TextColumns(), tokenizer).read(path, "wild")) == 1


def test_the_class_is_by_default_label_or_class(tmp_path):
    lines = [{"text": "a", "label": "x"}, {"text": "b", "class": "y"}, {"text": "c", "intent": "z"}]
    assert list(TextColumns().rows(file_of(tmp_path, lines))) == [Row(1, "a", "x"), Row(2, "b", "y"), Row(3, "c", None)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"query": "a"}], "line 1 has no 'text', but 'query': name one with --text-column"),
        ([{"text": "a"}, {"text": 5}], "line 2 has 5 as 'text': give text"),
        ([{"text": "a", "label": 0.5}], "line 1 has 0.5 as its class: give an integer or a name"),
        (["nonsense\n"], "line 1 is not JSON: write one object on each line"),
        (["[1]\n"], "line 1 is no object"),
    ],
)
def test_lines_that_cannot_be_used_are_refused(tmp_path, lines, message):
    with pytest.raises(InputError, match=message):
        list(TextColumns().rows(file_of(tmp_path, lines)))


def test_rows_of_a_table_must_have_as_many_cells_as_its_header(tmp_path):
    with pytest.raises(InputError, match=r"line 2 has 3 cells, line 1 has 2: quote a text that holds a comma"):
        list(TextColumns().rows(file_of(tmp_path, ["text,label\na,b,c\n"], "a.csv")))


@pytest.mark.parametrize(("name", "message"), [("a.txt", "is no file of texts"), ("none.csv", "cannot be read")])
def test_other_files_are_refused(tmp_path, name, message):
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(InputError, match=message):
        list(TextColumns().rows(tmp_path / name))


def test_text_that_is_not_utf_8_is_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes("text\ncafé\n".encode("latin-1"))
    with pytest.raises(InputError, match="is not UTF-8 text: save it as UTF-8"):
        list(TextColumns().rows(tmp_path / "a.csv"))


def test_texts_are_padded_and_cut_to_one_length(tokenizer):
    assert tokenizer.longest(["red", "red green blue"]) == 3
    assert tokenizer.longest(["red green blue"], most=2) == 2
    tokenizer.set_length(2)
    parts, cut = tokenizer.encode(["red", "blue green red", "mauve"])
    assert parts["input_ids"].tolist() == [[2, 0], [4, 3], [1, 0]]
    assert parts["attention_mask"].tolist() == [[1, 0], [1, 1], [1, 0]]
    assert cut == 1


def test_a_tokenizer_keeps_its_length(tokenizer):
    tokenizer.set_length(5)
    assert TextTokenizer(tokenizer.content, "it").encode(["red"])[0]["input_ids"].shape == (1, 5)


def test_named_classes_are_numbered_in_order_and_aligned(tokenizer, tmp_path):
    tokenizer.set_length(2)
    reader = TextReader(TextColumns(), tokenizer)
    labelled = reader.read(
        file_of(tmp_path, [{"text": t, "label": c} for t, c in zip("abc", "zxy", strict=True)]), "labelled"
    )
    assert (labelled.classes, np.asarray(labelled.labels).tolist()) == (("x", "y", "z"), [2, 0, 1])
    holdout = reader.read(file_of(tmp_path, [{"text": "a", "label": "z"}]), "holdout")
    assert np.asarray(holdout.labels).tolist() == [0]
    aligned = align_classes(labelled, holdout, "holdout")
    assert np.asarray(aligned.labels).tolist() == [2]
    assert labelled_source(aligned, "holdout") is aligned
    other = reader.read(file_of(tmp_path, [{"text": "a", "label": "w"}]), "holdout")
    with pytest.raises(InputError, match=r"has a class 'w' that .* has not"):
        align_classes(labelled, other, "holdout")


def test_integer_classes_are_taken_as_they_are_and_all_or_none_have_one(tokenizer, tmp_path):
    tokenizer.set_length(2)
    reader = TextReader(TextColumns(), tokenizer)
    numbered = reader.read(file_of(tmp_path, [{"text": "a", "label": 5}, {"text": "b", "label": "2"}]), "labelled")
    assert (numbered.classes, np.asarray(numbered.labels).tolist()) == ((), [5, 2])
    assert reader.read(file_of(tmp_path, [{"text": "a"}]), "wild").labels is None
    half = file_of(tmp_path, [{"text": "a", "label": 5}, {"text": "b"}])
    assert reader.read(half, "wild", with_labels=False).labels is None
    with pytest.raises(InputError, match="line 2 has no class, others have one: label all or none"):
        reader.read(half, "labelled")
    with pytest.raises(InputError, match="is empty: give at least one text"):
        reader.read(file_of(tmp_path, []), "wild")


def test_an_archive_gives_the_texts_in_shards(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("wildood.data.texts._SHARD", 2)
    tokenizer.set_length(1)
    shards = list(TextReader(TextColumns(), tokenizer).archive(file_of(tmp_path, [{"text": w} for w in WORDS[2:]])).shards)
    assert [(shard.first, shard.count, shard.read(1).examples["input_ids"].tolist()) for shard in shards] == [
        (0, 2, [[2], [3]]),
        (2, 1, [[4]]),
    ]
