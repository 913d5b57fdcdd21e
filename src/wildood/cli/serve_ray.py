"""`wildood serve --ray`: the same app as a deployment of Ray Serve, with several replicas that share one habitat."""

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.applications import Starlette

from wildood.cli.main import say
from wildood.cli.serve import ServeOptions, build_service, open_habitat, read_token
from wildood.errors import InputError
from wildood.experiments.pool import connected
from wildood.habitat.process import freeze
from wildood.habitat.server import build_app
from wildood.settings import check_count

NAME = "wildood"


class Replica:
    """One server of several. Ray calls `reconfigure` at its start, and again with each new `user_config`.

    Args:
        options: of the command, with absolute paths.
        import_path: the directory in which modules of the user's own are looked for.
    """

    def __init__(self, options: ServeOptions, import_path: str) -> None:
        sys.path.insert(0, import_path)
        self._detector = str(options.detector)
        self.service = build_service(options, lambda: self._detector)
        freeze()

    def __serve_build_asgi_app__(self) -> Starlette:
        """The app, whose lifespan starts and ends the service."""
        return build_app(self.service)

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Answer with the detector in this directory, once it is loaded; a habitat's champion is followed without this."""
        self._detector = str(user_config["detector"])

    def check_health(self) -> None:
        """Ray replaces a replica for which this raises an error."""
        if self.service.stopping:
            raise RuntimeError("the replica stops")


def application(options: ServeOptions) -> Any:
    """The deployment; `ray.serve.run` with another `user_config` of it reconfigures the replicas in place."""
    from ray import serve  # noqa: PLC0415 - of an extra

    deployment = serve.deployment(
        name=NAME,
        num_replicas=options.replicas,
        max_ongoing_requests=options.queue,
        ray_actor_options={"num_cpus": 1},
        user_config={"detector": str(options.detector)},
        health_check_period_s=2,
    )
    return deployment(serve.ingress()(Replica)).bind(options, str(Path.cwd()))


def serve_on_ray(options: ServeOptions) -> None:
    """Deploy, and wait for SIGTERM or Ctrl-C."""
    try:
        import ray.serve  # noqa: PLC0415 - of an extra
    except ImportError as error:
        raise InputError("--ray needs a package: pip install 'wildood[ray,serve]'") from error
    check_count(options.replicas, "--replicas")
    options = _absolute(options)
    if options.token_file is not None:
        read_token(options.token_file)  # before a cluster starts
    if options.habitat is not None:
        open_habitat(options)  # made here, once, and not by each replica
        options = replace(options, detector=None)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    with connected(str(options.ray), 1, 0.0) as ray, _stopped() as stopped:
        ray.serve.start(http_options={"host": options.host, "port": options.port})
        try:
            ray.serve.run(application(options), name=NAME)
            where = "nothing is recorded" if options.habitat is None else f"habitat {options.habitat}"
            say(f"{options.replicas} replicas at http://{options.host}:{options.port} ({where})")
            stopped.wait()
        finally:
            ray.serve.shutdown()  # type: ignore[no-untyped-call]


def _absolute(options: ServeOptions) -> ServeOptions:
    """Replicas have another working directory."""
    names = ("detector", "habitat", "token_file")
    paths = {name: getattr(options, name) for name in names}
    return replace(options, **{name: path.absolute() for name, path in paths.items() if path is not None})


@contextmanager
def _stopped() -> Iterator[threading.Event]:
    """An event that SIGTERM sets."""
    stopped = threading.Event()
    former = signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGTERM, former)
