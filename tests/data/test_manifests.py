"""A manifest gives what it says, in its order, or the line that is wrong."""

import json
import os

import pytest

from wildood.data.folders import Manifest
from wildood.errors import InputError


def manifest(place, text, name="set.csv"):
    (place / "a.png").write_bytes(b"aa")
    (place / "b c.png").write_bytes(b"b")
    (place / name).write_text(text, encoding="utf-8")
    return Manifest(place / name)


def pairs(given):
    return [(file.name, file.label) for file in given]


@pytest.mark.parametrize("header", ["path,label", "file,class", "image,label", " Path , LABEL ", "\ufeffpath,label"])
def test_header_names_the_columns(tmp_path, header):
    given = manifest(tmp_path, f"{header}\nb c.png,7\na.png,0\n")
    assert pairs(given) == [("b c.png", 7), ("a.png", 0)]
    assert given.classes == ()
    assert given.unlabelled == ""


def test_columns_may_stand_anywhere_beside_others(tmp_path):
    given = manifest(tmp_path, 'id,label,path,note\n1,x,a.png,"one, two"\n2,y,b c.png,\n')
    assert pairs(given) == [("a.png", 0), ("b c.png", 1)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.png\nb c.png\n", [("a.png", None), ("b c.png", None)]),
        ("a.png,3\r\n\r\nb c.png,4\r\n", [("a.png", 3), ("b c.png", 4)]),
    ],
)
def test_header_may_be_missing_if_the_first_line_names_a_file(tmp_path, text, expected):
    assert pairs(manifest(tmp_path, text)) == expected


def test_names_of_classes_are_numbered_in_their_order(tmp_path):
    given = manifest(tmp_path, "path,label\na.png,zebra\nb c.png,ant\na.png,10\na.png,2\n")
    assert given.classes == ("10", "2", "ant", "zebra")
    assert pairs(given) == [("a.png", 3), ("b c.png", 2), ("a.png", 0), ("a.png", 1)]


def test_labels_with_leading_zeros_and_integers_count_as_they_are(tmp_path):
    assert pairs(manifest(tmp_path, "path,label\na.png,01\na.png,12\n")) == [("a.png", 1), ("a.png", 12)]


def test_json_lines(tmp_path):
    lines = [{"path": "b c.png", "label": 1}, {"file": "a.png", "class": 0}, {"image": "a.png", "label": 1, "more": []}]
    given = manifest(tmp_path, "\n\n".join(map(json.dumps, lines)), "set.JSONL")
    assert pairs(given) == [("b c.png", 1), ("a.png", 0), ("a.png", 1)]


def test_json_lines_with_names_and_without_labels(tmp_path):
    given = manifest(tmp_path, '{"path": "a.png", "label": "dog"}\n{"path": "a.png", "label": "cat"}\n', "a.jsonl")
    assert (given.classes, pairs(given)) == (("cat", "dog"), [("a.png", 1), ("a.png", 0)])
    given = manifest(tmp_path, '{"path": "a.png"}\n{"path": "a.png", "label": null}\n', "b.jsonl")
    assert pairs(given) == [("a.png", None), ("a.png", None)]
    assert given.unlabelled == "add a column label to it, with an integer or a name for each picture"


def test_paths_are_relative_to_the_manifest_or_absolute(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    given = manifest(tmp_path, f"path\na.png\n{tmp_path}/b c.png\n../{tmp_path.name}/a.png\n")
    assert [file.size for file in given] == [2, 1, 2]


def test_file_that_is_not_there_is_listed_as_such(tmp_path):
    assert [file.size for file in manifest(tmp_path, "path\na.png\ngone.png\n.\n")] == [2, -1, -1]


WRONG = {
    "empty": ("", "set.csv: line 1 is '': begin with a header path or path,label, or with a picture's path"),
    "header only": ("path,label\n", "names no pictures: write a path on each line, below a header path or path,label"),
    "unknown header": ("name;label\na.png;1\n", "line 1 is 'name;label': begin with a header path or path,label"),
    "label missing": ("path,label\na.png,1\nb c.png,\n", "line 3 has no label where lines before have one: label"),
    "label too many": ("path,label\na.png,\nb c.png,1\n", "line 3 has a label where lines before have none: label"),
    "no path": ("path,label\na.png,1\n,1\n", "line 3 has no path: give each row that of a picture"),
    "NUL": ("path\na.png\nb\0.png\n", "line 3"),
    "negative": ("path,label\na.png,-1\n", "line 2 has label -1: give integers from 0, or names"),
    "fraction": ("path,label\na.png,1.0\n", "line 2 has label 1.0: give integers from 0, or names"),
    "comma": ("path,label\na.png,1\nb, c.png,1\n", "line 3 has 3 cells, line 1 has 2: quote a path that holds a comma"),
    "too few": ("path,label\na.png,1\nb c.png\n", "line 3 has 1 cells, line 1 has 2"),
    "three without header": ("a.png,1,2\n", "line 1 is 'a.png,1,2'"),
    "open quote": ('path\n"' + "x" * 200_000, "is not CSV"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_wrong_table_is_refused_with_its_line(tmp_path, text, message):
    with pytest.raises(InputError) as refused:
        manifest(tmp_path, text)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("line", ["{", "[]", "3", "{}", '{"path": 3}', '{"path": "a.png", "label": [1]}', "[" * 5000])
def test_wrong_json_line_is_refused_with_its_number(tmp_path, line):
    with pytest.raises(InputError, match=r'line 2 is not as {"path": "a.png", "label": 0}: write one on each line'):
        manifest(tmp_path, f'{{"path": "a.png"}}\n{line}\n', "set.jsonl")


@pytest.mark.parametrize("path", [r"a\u0000.png", r"\ud800.png", ""])
def test_json_path_that_no_file_can_have_is_refused(tmp_path, path):
    with pytest.raises(InputError, match="line 1 has no path"):
        manifest(tmp_path, f'{{"path": "{path}"}}\n', "set.jsonl")


@pytest.mark.parametrize("name", ["set.csv", "set.jsonl"])
def test_manifest_that_is_no_text_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"path\n\xff\xfe.png\n" if name == "set.csv" else b'{"path": "\xff"}')
    with pytest.raises(InputError, match="is not UTF-8 text: save it as UTF-8"):
        Manifest(tmp_path / name)


def test_label_that_appears_while_reading_is_refused(tmp_path):
    given = manifest(tmp_path, "path,label\na.png,cat\n")
    (tmp_path / "set.csv").write_text("path,label\na.png,dog\n")
    with pytest.raises(InputError, match="changed while it was read: open it again"):
        list(given)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_pipe_is_refused_instead_of_waiting_for_its_other_end(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="is a pipe, a socket or a device: give a plain file"):
        Manifest(tmp_path / name)


def test_a_label_that_is_half_a_character_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"path": "a.png", "label": "\\ud800"}\n')
    with pytest.raises(InputError, match="line 1 has a label that is no text: give a name"):
        Manifest(path)
