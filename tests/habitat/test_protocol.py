"""Requests become the examples that they hold, or are refused in one line; answers are what the protocol says."""

import json
import struct

import numpy as np
import pytest
import torch

import wildood
from wildood.data.inputs import InputSpec
from wildood.data.tables import TableSpec
from wildood.errors import InputError
from wildood.habitat.examples import ExampleReader, Limits, array_of
from wildood.habitat.protocol import (
    LARGE,
    Decisions,
    Request,
    check_identifier,
    collected_request,
    infer_request,
    infer_response,
    parse_json,
    predict_response,
    read_event,
    read_events,
)

RNG = np.random.default_rng(0)


class Flat(torch.nn.Module):
    """A classifier of anything of a fixed size."""

    def __init__(self, inputs):
        super().__init__()
        self.layer = torch.nn.Linear(inputs, 3)

    def forward(self, x):
        return self.layer(x.flatten(1))


class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 4)
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, ids, mask):
        return self.layer((self.embedding(ids) * mask[..., None]).sum(1))


def reader_of(model, holdout, spec=None, **limits):
    detector = wildood.posthoc(model, wildood.EnergyScore(), holdout=holdout, input=spec)
    return ExampleReader(detector, Limits(**limits))


@pytest.fixture(scope="module")
def vectors():
    return reader_of(torch.nn.Linear(2, 3), RNG.normal(size=(40, 2)).astype("float32"), examples=5)


@pytest.fixture(scope="module")
def images():
    return reader_of(Flat(48), RNG.integers(0, 256, (40, 4, 4, 3), dtype=np.uint8), InputSpec(mean=(0.5,), std=(0.5,)))


@pytest.fixture(scope="module")
def words():
    ids = RNG.integers(0, 50, (40, 6))
    return reader_of(Words(), {"ids": ids, "mask": np.ones_like(ids)})


@pytest.fixture(scope="module")
def table():
    rows = {"age": RNG.normal(40, 9, 60), "job": np.array(["cook", "nurse"] * 30), "y": np.arange(60) % 3}
    spec = TableSpec.fit(rows, label="y")
    return reader_of(torch.nn.Linear(spec.width, 3), rows, spec), spec


def v2(*inputs, **more):
    return bytearray(json.dumps({"inputs": inputs, **more}).encode())


def tensor(data=None, shape=(1, 2), datatype="FP32", name="x", **more):
    return {"name": name, "shape": list(shape), "datatype": datatype} | ({} if data is None else {"data": data}) | more


def test_json_tensors_flat_or_nested_are_the_same_examples(vectors):
    flat = infer_request(v2(tensor([1, 2.5, 3, 4], (2, 2)), id="a b"), None, vectors)
    nested = infer_request(v2(tensor([[1, 2.5], [3, 4]], (2, 2))), None, vectors)
    assert flat.examples.tolist() == nested.examples.tolist() == [[1.0, 2.5], [3.0, 4.0]]
    assert (flat.id, nested.id) == ("a b", "")
    assert flat.examples.dtype == torch.float32


@pytest.mark.parametrize(("datatype", "code"), [("FP32", "f"), ("FP64", "d"), ("FP16", "e")])
def test_binary_tensors_are_little_endian_after_the_json(vectors, datatype, code):
    content = struct.pack(f"<4{code}", 1, 2.5, -3, 4)
    header = v2(tensor(None, (2, 2), datatype, parameters={"binary_data_size": len(content)}))
    request = infer_request(header + content, str(len(header)), vectors)
    assert request.examples.tolist() == [[1.0, 2.5], [-3.0, 4.0]]
    assert request.examples.dtype == torch.float32


def test_binary_images_at_an_odd_offset_are_their_bytes(images):
    pixels = RNG.integers(0, 256, (2, 4, 4, 3), dtype=np.uint8)
    header = v2(tensor(None, pixels.shape, "UINT8", parameters={"binary_data_size": pixels.nbytes})) + b" "
    request = infer_request(header + pixels.tobytes(), str(len(header)), images)
    assert np.array_equal(request.examples.numpy(), pixels)


def test_tensors_of_several_parts_are_found_by_their_names(words):
    ids, mask = tensor([3, 4], (1, 2), "INT32", "ids"), tensor([1, 0], (1, 2), "INT64", "mask")
    examples = infer_request(v2(mask, ids), None, words).examples
    assert {name: part.tolist() for name, part in examples.items()} == {"ids": [[3, 4]], "mask": [[1, 0]]}
    assert examples["ids"].dtype == torch.int64
    assert [(each.name, each.datatype, each.shape) for each in words.fields] == [
        ("ids", "INT64", (-1, -1)),
        ("mask", "INT64", (-1, -1)),
    ]


def test_rows_of_a_table_are_encoded_by_its_spec(table):
    reader, spec = table
    rows = {"age": [30, None], "job": ["cook", "nurse"]}
    expected = spec(rows).tolist()
    assert reader.values(rows).tolist() == expected
    assert reader.values([{"age": 30, "job": "cook"}, {"age": None, "job": "nurse"}]).tolist() == expected
    columns = [tensor([30.0], (1,), "FP64", "age"), tensor(["cook"], (1,), "BYTES", "job")]
    assert infer_request(v2(*columns), None, reader).examples.tolist() == expected[:1]
    binary = struct.pack("<I", 4) + b"cook"
    header = v2(columns[0], tensor(None, (1,), "BYTES", "job", parameters={"binary_data_size": len(binary)}))
    assert infer_request(header + binary, str(len(header)), reader).examples.tolist() == expected[:1]
    for wrong in (
        {"age": [30]},
        {"age": [30], "job": ["cook"], "pay": [1]},
        {"age": [{}], "job": ["cook"]},
        {"age": [10**400], "job": ["cook"]},
        {"age": [1, 2], "job": ["cook"]},
        {"age": [], "job": []},
    ):
        with pytest.raises(InputError):
            reader.values(wrong)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1, 2], "shape ()"),
        ([[1, 2], [3]], "different lengths"),
        ([[1, "2"]], "holds text"),
        ([[1, True]], "holds true or false"),
        ([[1, None]], "holds null"),
        ([[1, 10**400]], "cannot hold"),
        ([[1, 1e39]], "finite"),
        ([], "there are 0 examples"),
        ([[1, 2]] * 6, "there are 6 examples"),
        ({"x": [[1, 2]]}, "an object"),
        ("x", "is text"),
        ([[[[[[[[[[1]]]]]]]]]], "more than 8 deep"),
    ],
)
def test_other_values_are_refused(vectors, value, said):
    with pytest.raises(InputError, match=said.replace("(", r"\(").replace(")", r"\)")):
        vectors.values(value)


@pytest.mark.parametrize("value", [[[256, 0]], [[-1, 0]], [[0.5, 0]]])
def test_numbers_that_are_no_bytes_are_refused(value):
    with pytest.raises(InputError, match="x holds"):
        array_of(value, np.uint8, "x")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (b"[1e400", "not JSON"),
        (b"[NaN]", "NaN is no number"),
        (b"[-Infinity]", "no number"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[" + b"9" * 5000 + b"]", "not JSON"),
        (b'"\xff"', "not JSON"),
        ('["a"]'.encode("utf-16"), "not JSON"),
    ],
)
def test_what_is_not_strict_json_is_refused(content, said):
    with pytest.raises(InputError, match=said):
        parse_json(content)


@pytest.mark.parametrize(
    "body",
    [
        v2(),
        bytearray(b"[]"),
        v2(tensor([1, 2], datatype="INT64")),
        v2(tensor([1, 2], datatype="BYTES")),
        v2(tensor([1, 2], datatype="BF16")),
        v2(tensor([1, 2], datatype=["FP32"])),
        v2(tensor([1, 2], (2, 2))),
        v2(tensor([1, 2], (-1, 2))),
        v2(tensor([1, 2], (True, 2))),
        v2(tensor([1, 2], (2**62, 2**62))),
        v2(tensor([], (0, 2))),
        v2(tensor([1, 2], ())),
        v2(tensor([[1], [2]], (1, 2))),
        v2(tensor([1, 2]), tensor([1, 2])),
        v2(tensor([1, 2], name=7)),
        v2(tensor([1, 2], parameters=[])),
        v2(tensor([1, 2], parameters={"binary_data_size": 8})),
        v2(tensor(parameters={"binary_data_size": 8})),
        v2(tensor(parameters={"binary_data_size": -1})),
        v2(tensor()),
        v2(tensor([1, 2], more=1)),
        v2(tensor([1, 2]), id="a\n"),
        v2(tensor([1, 2]), id="x" * 129),
        v2(tensor([1, 2]), id=5),
        v2(tensor([1, 2]), outputs=[{"name": "logits"}]),
        v2(tensor([1, 2]), outputs=[{"name": "class"}] * 2),
        v2(tensor([1, 2]), outputs=[{"name": "class", "parameters": {"binary_data": 1}}]),
        v2(tensor([1, 2]), outputs={"name": "class"}),
        v2(tensor([1, 2]), parameters={"binary_data_output": "yes"}),
        v2(tensor([1, 2])) + b"  {}",
    ],
)
def test_other_requests_of_the_protocol_are_refused(vectors, body):
    with pytest.raises(InputError):
        infer_request(body, None, vectors)


@pytest.mark.parametrize("length", ["x", "-1", "999999", "1" * 30, ""])
def test_a_wrong_length_of_the_json_is_refused(vectors, length):
    with pytest.raises(InputError, match="Inference-Header-Content-Length"):
        infer_request(v2(tensor([1, 2])), length, vectors)


def test_bytes_that_no_tensor_takes_are_refused(vectors):
    body = v2(tensor([1, 2]))
    with pytest.raises(InputError, match="4 bytes more"):
        infer_request(body + b"abcd", str(len(body)), vectors)


def test_texts_longer_than_four_times_those_of_training_are_refused(words):
    long = {"ids": [[1] * 513], "mask": [[1] * 513]}
    with pytest.raises(InputError, match="at most"):
        words.values(long)
    assert words.values({"ids": [[1] * 512], "mask": [[1] * 512]})["ids"].shape == (1, 512)


DECISIONS = Decisions(
    np.array([2, 1]), np.array([0.5, np.inf], np.float32), np.array([0.75, 0.125]), np.array([True, False])
)


def test_the_answer_has_the_outputs_of_the_protocol():
    body, length = infer_response("m", "d0001", Request(torch.zeros(2, 2), "a"), DECISIONS)
    answer = json.loads(body)
    assert length is None
    assert (answer["model_name"], answer["model_version"], answer["id"]) == ("m", "d0001", "a")
    assert {each["name"]: (each["datatype"], each["shape"], each["data"]) for each in answer["outputs"]} == {
        "class": ("INT64", [2], [2, -1]),
        "score": ("FP32", [2], [0.5, float(np.finfo(np.float32).max)]),
        "p_value": ("FP64", [2], [0.75, 0.125]),
        "known": ("BOOL", [2], [True, False]),
    }


def test_the_answer_has_what_was_asked_for_in_binary_after_its_json():
    request = Request(torch.zeros(2, 2), "a", (("score", True), ("known", False), ("class", True)))
    body, length = infer_response("m", "d0001", request, DECISIONS)
    outputs = json.loads(body[:length])["outputs"]
    assert [each["name"] for each in outputs] == ["score", "known", "class"]
    assert [each.get("parameters") for each in outputs] == [{"binary_data_size": 8}, None, {"binary_data_size": 16}]
    assert body[length:] == struct.pack("<2f2q", 0.5, np.inf, 2, -1)


def test_predictions_name_the_classes():
    assert json.loads(predict_response("d0001", "a", ["ant", "bee", "cow"], DECISIONS))["label"] == ["cow", None]


@pytest.mark.parametrize("value", ["", "é", "a\tb", "x" * 129, 5, None])
def test_identifiers_that_could_not_be_logged_are_refused(value):
    with pytest.raises(InputError, match="printable ASCII"):
        check_identifier(value)


def test_large_json_is_read_as_small_json_is():
    value = [0.1, -1e300, 5, 10**30, 1e-320, -0.0, {"a": [1.5]}]
    text = json.dumps([value] * 2000)
    assert len(text) > LARGE
    assert parse_json(text.encode()) == [value] * 2000
    assert [type(each) for each in parse_json(text.encode())[0]] == [type(each) for each in value]
    with pytest.raises(InputError, match="NaN is no number"):
        parse_json(text.encode()[:-1] + b",NaN]")


EVENT = {"specversion": "1.0", "type": "org.kubeflow.serving.inference.request", "id": "7", "source": "here"}


def test_cloud_events_are_read_in_both_modes(vectors):
    body = bytearray(b'{"instances": [[1, 2]]}')
    binary = read_event(body, {f"ce-{name}": value for name, value in EVENT.items()} | {"content-type": "application/json"})
    data = bytearray(json.dumps(EVENT | {"data": json.loads(body)}).encode())
    structured = read_event(data, {"content-type": "application/cloudevents+json; charset=UTF-8"})
    base64 = bytearray(json.dumps(EVENT | {"data_base64": "eyJpbnN0YW5jZXMiOiBbWzEsIDJdXX0="}).encode())
    encoded = read_event(base64, {"content-type": "application/cloudevents+json"})
    assert binary == structured == encoded
    assert binary.id == "7"
    assert collected_request(binary.content, vectors).tolist() == [[1.0, 2.0]]


def test_a_batch_holds_events_in_structured_mode():
    events = [EVENT | {"id": f"{number}", "data": [[number]]} for number in range(3)]
    events.insert(1, {**EVENT, "type": "org.kubeflow.serving.inference.response", "data": {}})
    headers = {"content-type": "application/cloudevents-batch+json; charset=utf-8"}
    read = read_events(bytearray(json.dumps(events).encode()), headers)
    assert [(each.id, each.content) for each in read] == [("0", [[0]]), ("1", [[1]]), ("2", [[2]])]
    assert read_events(bytearray(b"[]"), headers) == []
    for wrong, message in (
        ({}, "is no JSON list"),
        ([events[0], 5], "event 1 of the batch: the CloudEvent is no JSON object"),
        ([events[0], EVENT | {"specversion": "0.3"}], "event 1 of the batch: .*specversion"),
    ):
        with pytest.raises(InputError, match=message):
            read_events(bytearray(json.dumps(wrong).encode()), headers)


def test_events_in_other_formats_are_refused():
    for media in ("application/cloudevents+protobuf", "application/cloudevents-batch+avro", "application/cloudevents"):
        with pytest.raises(InputError, match="CloudEvents are not read as"):
            read_events(bytearray(b"{}"), {"content-type": media})


def test_attributes_in_headers_are_decoded():
    headers = {f"ce-{name}": value for name, value in EVENT.items()} | {"ce-id": "a%20b"}
    assert read_event(bytearray(b"[[1]]"), headers).id == "a b"
    with pytest.raises(InputError, match="printable ASCII"):
        read_event(bytearray(b"[[1]]"), headers | {"ce-id": "a%0ab"})


def test_events_of_answers_are_ignored_and_other_events_refused():
    headers = {f"ce-{name}": value for name, value in EVENT.items()}
    answer = headers | {"ce-type": "org.kubeflow.serving.inference.response"}
    assert read_event(bytearray(b"{}"), answer).content is None
    for wrong in ({"ce-type": "other"}, {"ce-specversion": "0.3"}, {"ce-id": "a\nb"}):
        with pytest.raises(InputError):
            read_event(bytearray(b"{}"), headers | wrong)
    for body in (
        b"[]",
        b"{}",
        json.dumps(EVENT).encode(),
        json.dumps(EVENT | {"data_base64": "?"}).encode(),
        json.dumps(EVENT | {"data_base64": 5}).encode(),
        json.dumps(EVENT | {"id": None, "data": 1}).encode(),
    ):
        with pytest.raises(InputError):
            read_event(bytearray(body), {"content-type": "application/cloudevents+json"})


def test_collected_json_may_be_instances_a_request_or_examples(vectors, words):
    for content in ({"instances": [[1, 2]]}, [[1, 2]], json.loads(v2(tensor([1, 2])))):
        assert collected_request(content, vectors).tolist() == [[1.0, 2.0]]
    rows = {"instances": [{"ids": [3], "mask": [1]}, {"ids": [4], "mask": [0]}]}
    assert collected_request(rows, words)["ids"].tolist() == [[3], [4]]
