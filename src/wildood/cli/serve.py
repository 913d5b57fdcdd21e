"""`wildood serve`: a detector that answers over HTTP, and a habitat that collects its traffic."""

import os
import re
import socket
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from wildood.cli.main import say
from wildood.cli.options import named, parse
from wildood.errors import InputError, printable
from wildood.settings import check_callable, check_integer, check_number, quoted

if TYPE_CHECKING:
    from wildood.habitat.habitat import Habitat, Settings
    from wildood.habitat.server import Service, Serving

_BYTES = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
MISSING = "serve needs a package: pip install 'wildood[serve]'"


@dataclass(frozen=True)
class ServeOptions:
    """Answer over HTTP with a saved detector: Open Inference Protocol v2, POST /predict, /openapi.json and /metrics.

    Attributes:
        detector: the directory that fit wrote. May be left out if the habitat has one.
        habitat: the directory that collects the traffic; it is made if there is none. Without it, nothing is recorded.
        model: module:function that builds a model of your own. For security, loading a detector never imports code.
        host: the address to listen at. Others than this machine can reach it only if you say so, as in 0.0.0.0.
        port: to listen at; 0 for any that is free.
        token_file: a file whose only line is what clients must send, as in Authorization: Bearer TOKEN.
        open_metrics: /metrics needs no token.
        name: of the model in the paths of the protocol.
        sample: the share of answers that is recorded.
        budget: bytes of recorded traffic, as in 5GB; the oldest goes first.
        retain: how long traffic is kept, as in 30d.
        collect: full records the examples, too; scores does not.
        redact: module:function that changes a batch of raw examples before it is recorded.
        shadow: the share of batches that the challenger scores, too; its answers are recorded, not sent.
        batch: examples that run together at most.
        wait: milliseconds that a request waits for others.
        queue: examples that may wait; requests beyond are refused with 503.
        max_body: bytes of a request, as in 16MB.
        max_examples: of a request.
        max_pixels: of a picture.
        ray: serve on a Ray cluster: its address, or local for one on this machine.
        replicas: of the server, on Ray.
    """

    detector: Annotated[Path | None, tyro.conf.Positional, named("DETECTOR")] = None
    habitat: Annotated[Path | None, named("DIRECTORY")] = None
    model: Annotated[str | None, named("MODULE:FUNCTION")] = None
    host: Annotated[str, named("ADDRESS", None)] = "127.0.0.1"
    port: Annotated[int, named("N", None)] = 8080
    token_file: Annotated[Path | None, named("FILE")] = None
    open_metrics: bool = False
    name: Annotated[str, named("NAME", None)] = "wildood"
    sample: Annotated[float | None, named("SHARE")] = None
    budget: Annotated[str | None, named("BYTES")] = None
    retain: Annotated[str | None, named("TIME")] = None
    collect: Literal["full", "scores"] | None = None
    redact: Annotated[str | None, named("MODULE:FUNCTION")] = None
    shadow: Annotated[float | None, named("SHARE")] = None
    batch: Annotated[int, named("N", None)] = 64
    wait: Annotated[float, named("MILLISECONDS", None)] = 2.0
    queue: Annotated[int, named("N", None)] = 1024
    max_body: Annotated[str, named("BYTES", None)] = "16MB"
    max_examples: Annotated[int, named("N", None)] = 256
    max_pixels: Annotated[int, named("N", None)] = 2**24
    ray: Annotated[str | None, named("ADDRESS")] = None
    replicas: Annotated[int, named("N", None)] = 2


def run(words: Sequence[str]) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    options = parse(ServeOptions, "serve", words)
    if options.detector is None and options.habitat is None:
        raise InputError("serve needs a DETECTOR, or the --habitat of one: see wildood serve --help")
    try:
        from wildood.habitat.server import build_app, run_app  # noqa: PLC0415 - of an extra
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"starlette", "uvicorn", "prometheus_client", "anyio", "h11"}:
            raise
        raise InputError(MISSING) from error
    from PIL import Image  # noqa: PLC0415 - slow to import

    from wildood.train.progress import verbose_logging  # noqa: PLC0415 - same

    warnings.simplefilter("error", Image.DecompressionBombWarning)
    warnings.filterwarnings("ignore", module=r"PIL\.")
    if options.ray is not None:
        from wildood.cli.serve_ray import serve_on_ray  # noqa: PLC0415 - of another extra

        serve_on_ray(options)
        return
    with _listener(options) as listener, verbose_logging(verbose=True):
        service = build_service(options)
        host, port = listener.getsockname()[:2]
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        where = "nothing is recorded" if options.habitat is None else f"habitat {options.habitat}"
        say(f"detector {service.follower.served.id} at {address} ({where})")
        run_app(build_app(service), listener)


def build_service(options: ServeOptions, current: Callable[[], str] | None = None) -> "Service":
    """The service that the options describe, with its detector loaded and warm.

    Without a habitat, `current` tells the directory of the detector that shall answer; by default that of the options.
    """
    from wildood.detect.storage import load, read_description  # noqa: PLC0415 - slow to import
    from wildood.habitat.champion import Follower  # noqa: PLC0415 - same
    from wildood.habitat.collecting import Collector  # noqa: PLC0415 - same
    from wildood.habitat.metrics import Metrics  # noqa: PLC0415 - same
    from wildood.habitat.process import keep_memory  # noqa: PLC0415 - same
    from wildood.habitat.recorder import Recorder  # noqa: PLC0415 - same
    from wildood.habitat.server import Service  # noqa: PLC0415 - same

    keep_memory()
    serving, metrics = serving_of(options), Metrics()
    shared: dict[str, Any] = {"limits": serving.limits, "metrics": metrics, "batch": serving.batch}
    if options.habitat is None:
        places: dict[str, str] = {}  # by what answers call the detector, which tells no path

        def named_now() -> str:
            place = str(options.detector) if current is None else current()
            known = next((name for name, each in places.items() if each == place), None)
            name = read_description(Path(place))["digest"][:12] if known is None else known
            places[name] = place
            return name

        return Service(Follower(named_now, lambda name: load(places[name], model_of(options)), **shared), serving, metrics)
    habitat = open_habitat(options)
    settings = collecting_of(options, habitat.settings)

    def challenger() -> str | None:
        return habitat.challenger if settings.shadow > 0 else None

    follower = Follower(
        lambda: habitat.champion, lambda each: habitat.detector(each, model_of(options)), challenger, **shared
    )
    recorder = Recorder(habitat.store, settings, redact=None if settings.redact is None else read_function(settings.redact))
    return Service(follower, serving, metrics, Collector(recorder, metrics, shadow=settings.shadow), habitat)


def model_of(options: ServeOptions) -> Any:
    """The model of --model, if there is one."""
    from wildood.cli.inputs import read_model  # noqa: PLC0415 - slow to import

    return None if options.model is None else read_model(options.model)


def open_habitat(options: Any) -> "Habitat":
    """The habitat; a new one is made from the detector, and one that is there must know it."""
    from wildood.cli.inputs import read_detector  # noqa: PLC0415 - slow to import
    from wildood.detect.storage import read_description  # noqa: PLC0415 - same
    from wildood.habitat.habitat import SETTINGS, Habitat, Settings  # noqa: PLC0415 - same

    if not (options.habitat / SETTINGS).exists():
        if options.detector is None:
            raise InputError(f"{options.habitat} is no habitat yet: name a DETECTOR, from which it is made")
        detector, settings = read_detector(options), collecting_of(options, Settings())
        try:
            return Habitat.create(options.habitat, detector, settings, who="wildood serve")
        except InputError:
            if not (options.habitat / SETTINGS).exists():  # else another server has just made it
                raise
    habitat = Habitat(options.habitat)
    if options.detector is not None:
        places = [options.detector, *(habitat.directory(each.id) for each in habitat.detectors())]
        this, *others = [(each["weights"], each["threshold"]) for each in map(read_description, places)]
        if this not in others:
            raise InputError(f"{options.detector} is no detector of the habitat {options.habitat}: leave it out")
    return habitat


def collecting_of(options: Any, settings: "Settings") -> "Settings":
    """The settings of a habitat, with those that the options change."""
    changes = {
        "collect": options.collect,
        "sample": options.sample,
        "budget": None if options.budget is None else bytes_of(options.budget, "--budget"),
        "retain": None if options.retain is None else seconds_of(options.retain, "--retain"),
        "redact": options.redact,
        "shadow": options.shadow,
    }
    return replace(settings, **{name: value for name, value in changes.items() if value is not None})


def serving_of(options: ServeOptions) -> "Serving":
    """How the server answers."""
    from wildood.habitat.examples import Limits  # noqa: PLC0415 - slow to import
    from wildood.habitat.server import LOOPBACK, Serving  # noqa: PLC0415 - same

    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", options.name):
        raise InputError(f"--name {options.name}: give letters, digits, dots, dashes and underscores, 100 at most")
    token = None if options.token_file is None else read_token(options.token_file)
    limits = Limits(
        body=bytes_of(options.max_body, "--max-body"),
        examples=check_integer(options.max_examples, "--max-examples", "a number of examples", most=2**20),
        pixels=check_integer(options.max_pixels, "--max-pixels", "a number of pixels", most=2**30),
    )
    return Serving(
        name=options.name,
        batch=check_integer(options.batch, "--batch", "a number of examples", most=2**16),
        wait=check_number(options.wait, "--wait", "milliseconds from 0 to 1000", least=0, most=1000) / 1000,
        queue=check_integer(options.queue, "--queue", "a number of examples", most=2**20),
        limits=limits,
        token=token,
        open_metrics=options.open_metrics,
        hosts=LOOPBACK if token is None and options.host in LOOPBACK else None,
        model=options.model,
    )


def read_function(text: str) -> Callable[..., Any]:
    """The function that `module:function` names, in the working directory or installed."""
    module, _, name = text.partition(":")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as for --model
    try:
        function: Callable[..., Any] = check_callable(getattr(import_module(module), name), f"--redact {text}", None)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InputError(f"--redact {text}: {error}; give module:function, as in privacy:blur") from error
    return function


def read_token(path: Path) -> bytes:
    """The token in a file: 16 to 1000 printable ASCII characters without spaces, on its only line."""
    try:
        with path.open("rb") as file:
            token = file.read(2000).strip()
    except OSError as error:
        raise InputError(f"--token-file {path}: {error.strerror}") from error
    if not re.fullmatch(rb"[!-~]{16,1000}", token):
        raise InputError(f"--token-file {path}: give one line of 16 to 1000 letters, digits and signs, without spaces")
    return token


def bytes_of(text: str, option: str) -> int:
    """A number of bytes.

    >>> bytes_of("5GB", "--budget"), bytes_of("200", "--budget")
    (5000000000, 200)
    """
    return int(_with_unit(text, option, _BYTES, "bytes, as in 500MB or 5GB"))


def seconds_of(text: str, option: str) -> float:
    """A time.

    >>> seconds_of("30d", "--retain"), seconds_of("1.5h", "--retain")
    (2592000.0, 5400.0)
    """
    return _with_unit(text, option, _SECONDS, "a time, as in 12h or 30d")


def _with_unit(text: str, option: str, units: dict[str, int], expected: str) -> float:
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?) ?([A-Za-z]*)", text)
    if match is None or match[2] not in units or float(match[1]) == 0:
        raise InputError(f"{option} {printable(text)}: give {expected}")
    return float(match[1]) * units[match[2]]


def _listener(options: ServeOptions) -> socket.socket:
    """A socket that listens at the address."""
    check_integer(options.port, "--port", "a number from 0 to 65535", least=0, most=65_535)
    try:
        family = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((options.host, options.port), family=family, backlog=2048)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot listen at --host {quoted(options.host)} --port {options.port}: {reason}") from error
