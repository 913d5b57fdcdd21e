"""The OpenAPI 3.1 description of a server."""

from typing import TYPE_CHECKING, Any, Final

import wildood
from wildood.habitat.examples import DATATYPES, ExampleReader, Limits
from wildood.habitat.protocol import BATCH, REQUEST_EVENT, RESPONSE_EVENT

if TYPE_CHECKING:
    from wildood.habitat.server import Serving

_REASONS: Final = {
    "400": "The request is malformed, or its examples are not such as the detector takes.",
    "401": "The token is missing or wrong.",
    "403": "The host name is not served, or the request comes from a page of another site.",
    "404": "There is no model of this name.",
    "408": "The body took too long.",
    "409": "The server does not collect.",
    "413": "The body is too large.",
    "415": "The body is compressed, or a picture in another format than PNG and JPEG.",
    "500": "The model fails, or the server has a bug.",
    "503": "Too many requests wait, or the server stops: try again.",
}
_TEXT: Final = {"type": "string"}
_OPT_OUT: Final = {
    "name": "X-Wildood-Collect",
    "in": "header",
    "description": "`no`: the request is answered, but not recorded.",
    "schema": {"type": "string", "enum": ["yes", "no"]},
}
_HEADER_LENGTH: Final = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "description": "Bytes of the JSON before binary tensors.",
    "schema": {"type": "integer", "minimum": 0},
}
_EVENT_TYPE: Final = {"type": "string", "enum": [REQUEST_EVENT, RESPONSE_EVENT]}
_REQUEST_ID: Final[dict[str, Any]] = {
    "name": "X-Request-Id",
    "in": "header",
    "description": "The request's id, recorded with its examples.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[ -~]+$"},
}


def description(settings: "Serving", reader: ExampleReader, *, secured: bool) -> dict[str, Any]:
    """The description of what this server answers with the present detector."""
    everywhere = ["401", "403"] if secured or settings.hosts is not None else ["403"]
    one = {"type": "string", "enum": [settings.name]}
    name = {"name": "name", "in": "path", "required": True, "description": "Of the model.", "schema": one}
    body = [*everywhere, "400", "408", "413", "415", "500", "503"]
    paths: dict[str, dict[str, Any]] = {
        "/v2": {"get": _get("Name, version and extensions of the server", "ServerMetadata", everywhere)},
        "/v2/health/live": {"get": _health("Whether the server runs", ["403"])},
        "/v2/health/ready": {"get": _health("Whether the server takes requests", ["403", "503"])},
        "/v2/models/{name}": {
            "parameters": [name],
            "get": _get("Inputs and outputs of the model", "ModelMetadata", [*everywhere, "404"]),
        },
        "/v2/models/{name}/ready": {
            "parameters": [name],
            "get": _health("Whether the model takes requests", [*everywhere, "404", "503"]),
        },
        "/v2/models/{name}/infer": {"parameters": [name], "post": _infer(body)},
        "/predict": {"post": _predict(reader, body)},
        "/collect": {"post": _collect(body)},
        "/metrics": {"get": _text("Counters for Prometheus", everywhere)},
        "/openapi.json": {"get": _get("This description", None, everywhere)},
        "/": {"get": _page()},
    }
    for path, item in paths.items():
        operation = item.get("get") or item["post"]
        parts = [part.strip("{}").removesuffix(".json") for part in path.split("/") if part]
        operation["operationId"] = "_".join(parts) or "page"
    about: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "wildood",
            "version": wildood.__version__,
            "description": (
                "A classifier that answers `unknown` (class -1) where an example looks unlike known data. What the page `/` "
                "itself asks for, below `/page/`, is not described: it changes with the page."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": _schemas(settings.limits, len(reader.fields))},
    }
    if secured:
        about["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        about["security"] = [{"token": []}]
        open_paths = ["/v2/health/live", "/v2/health/ready", *(["/metrics"] if settings.open_metrics else [])]
        for path in open_paths:
            paths[path]["get"]["security"] = []
    return about


def _errors(codes: list[str]) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    errors: dict[str, Any] = {code: {"description": _REASONS[code], "content": content} for code in sorted(codes)}
    if "503" in errors:
        header = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
        errors["503"] = errors["503"] | {"headers": header}
    return errors


def _get(summary: str, schema: str | None, errors: list[str]) -> dict[str, Any]:
    content = {"schema": {"type": "object"} if schema is None else {"$ref": f"#/components/schemas/{schema}"}}
    answer = {"description": summary, "content": {"application/json": content}}
    return {"summary": summary, "responses": {"200": answer, **_errors(errors)}}


def _health(summary: str, errors: list[str]) -> dict[str, Any]:
    health = _get(summary, "Health", [code for code in errors if code != "503"])
    if "503" in errors:
        health["responses"]["503"] = {"description": "It stops.", "content": health["responses"]["200"]["content"]}
    return health


def _text(summary: str, errors: list[str]) -> dict[str, Any]:
    answer = {"description": summary, "content": {"text/plain": {"schema": _TEXT}}}
    return {"summary": summary, "responses": {"200": answer, **_errors(errors)}}


def _page() -> dict[str, Any]:
    page = {"description": "The page.", "content": {"text/html": {"schema": _TEXT}}}
    sign_in = {"description": "To the form that asks for the token.", "headers": {"Location": {"schema": _TEXT}}}
    errors = _errors(["401", "403", "404", "503"])
    errors["404"] = errors["404"] | {"description": "There is no habitat."}
    summary = "The page of the habitat, for people; it takes a cookie in place of the token"
    return {"summary": summary, "security": [], "responses": {"200": page, "303": sign_in, **errors}}


def _infer(errors: list[str]) -> dict[str, Any]:
    binary = {"description": "JSON, then the binary tensors."}
    request: dict[str, Any] = {
        "application/json": {"schema": {"$ref": "#/components/schemas/InferRequest"}},
        "application/octet-stream": {},
    }
    answer = {
        "description": "The outputs. `class` is -1 where an example is unknown.",
        "headers": {"Inference-Header-Content-Length": {key: _HEADER_LENGTH[key] for key in ("description", "schema")}},
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/InferResponse"}},
            "application/octet-stream": {},
        },
    }
    return {
        "summary": "Open Inference Protocol v2, with the extension for binary tensors",
        "parameters": [_HEADER_LENGTH, _OPT_OUT],
        "requestBody": {"required": True, "content": request, **binary},
        "responses": {"200": answer, **_errors([*errors, "404"])},
    }


def _predict(reader: ExampleReader, errors: list[str]) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": {"$ref": "#/components/schemas/Examples"}}}
    if reader.framing is not None:
        content |= {"image/png": {}, "image/jpeg": {}}
    answer = {
        "description": "One value for each example.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Prediction"}}},
    }
    return {
        "summary": "Examples as JSON lists, or one picture",
        "parameters": [_REQUEST_ID, _OPT_OUT],
        "requestBody": {"required": True, "content": content},
        "responses": {"200": answer, **_errors(errors)},
    }


def _collect(errors: list[str]) -> dict[str, Any]:
    event = {"$ref": "#/components/schemas/CloudEvent"}
    content: dict[str, Any] = {
        "application/json": {"schema": {}},
        "application/cloudevents+json": {"schema": event},
        BATCH: {"schema": _list(event)},
    }
    headers = [
        {"name": f"ce-{name}", "in": "header", "description": "Of a CloudEvent in binary mode.", "schema": schema}
        for name, schema in (("specversion", {"const": "1.0"}), ("type", _EVENT_TYPE), ("id", _REQUEST_ID["schema"]))
    ]
    answer = {
        "description": "The examples were scored, and are recorded; events of answers are ignored.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Collected"}}},
    }
    return {
        "summary": "Examples that another server answers: CloudEvents of KServe's inference logger, or JSON",
        "parameters": [_OPT_OUT, *headers],
        "requestBody": {"required": True, "content": content},
        "responses": {"202": answer, **_errors([*errors, "409"])},
    }


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None, *, closed: bool = False) -> dict[str, Any]:
    schema = {"type": "object", "required": list(required), "properties": {**required, **(optional or {})}}
    return schema | ({"additionalProperties": False} if closed else {})


def _list(items: dict[str, Any], **limits: int) -> dict[str, Any]:
    return {"type": "array", "items": items, **limits}


def _schemas(limits: Limits, inputs: int) -> dict[str, Any]:
    flag, number = {"type": "boolean"}, {"type": "number"}
    parameters = {"type": "object"}
    shape = _list({"type": "integer", "minimum": -1}, minItems=1, maxItems=8)
    about_tensor = _object({"name": _TEXT, "datatype": _TEXT, "shape": shape})
    datatype = {"type": "string", "enum": ["BYTES", *DATATYPES]}
    tensor = _object(
        {"name": _TEXT, "shape": _list({"type": "integer", "minimum": 0}, minItems=1, maxItems=8), "datatype": datatype},
        {"data": _list({}), "parameters": _object({}, {"binary_data_size": {"type": "integer", "minimum": 0}})},
        closed=True,
    ) | {"anyOf": [{"required": ["data"]}, {"required": ["parameters"]}]}
    wanted = _object(
        {"name": {"type": "string", "enum": ["class", "score", "p_value", "known"]}},
        {"parameters": _object({}, {"binary_data": flag})},
        closed=True,
    )
    answered = _object({"name": _TEXT, "shape": shape, "datatype": datatype}, {"data": _list({}), "parameters": parameters})
    classes = _list({"type": "integer", "minimum": -1})
    label = {"type": ["string", "integer", "null"]}
    return {
        "Error": _object({"error": {"type": "string", "description": "One line."}}),
        "Health": {"type": "object", "additionalProperties": flag},
        "ServerMetadata": _object({"name": _TEXT, "version": _TEXT, "extensions": _list(_TEXT)}),
        "ModelMetadata": _object(
            {
                "name": _TEXT,
                "versions": _list(_TEXT),
                "platform": _TEXT,
                "inputs": _list(about_tensor),
                "outputs": _list(about_tensor),
            }
        ),
        "InferRequest": _object(
            {"inputs": _list(tensor, minItems=1, maxItems=inputs)},
            {
                "id": {"type": "string", "maxLength": 128, "pattern": "^[ -~]*$"},
                "parameters": _object({}, {"binary_data_output": flag}),
                "outputs": _list(wanted, maxItems=4),
            },
            closed=True,
        ),
        "InferResponse": _object(
            {"model_name": _TEXT, "model_version": _TEXT, "id": _TEXT, "outputs": _list(answered)},
        ),
        "Examples": {
            "description": "A list of examples, an object of lists, or a list of objects.",
            "oneOf": [
                _list({}, minItems=1, maxItems=limits.examples),
                {"type": "object", "additionalProperties": _list({}, minItems=1)},
            ],
        },
        "Prediction": _object(
            {
                "detector": _TEXT,
                "id": _TEXT,
                "class": classes,
                "score": _list(number),
                "p_value": _list(number),
                "known": _list(flag),
                "label": _list(label),
            }
        ),
        "CloudEvent": _object(
            {"specversion": {"const": "1.0"}, "type": _EVENT_TYPE, "id": _REQUEST_ID["schema"]},
            {"data": {"description": '`{"instances": [...]}`, an InferRequest, or Examples.'}, "data_base64": _TEXT},
        ),
        "Collected": _object({"collected": {"type": "integer", "minimum": 0}}, {"detector": _TEXT}),
    }
