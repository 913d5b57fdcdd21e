"""Arrays of scores in, numbers out: metrics, intervals, thresholds, selection, rankings, the share of OOD in wild data.

Called, `wildood.evaluate(detector, id=..., ood=...)` is the public function of `wildood.report.evaluation`.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from inspect import Signature, signature
from types import ModuleType
from typing import Any


class _CallableRoom(ModuleType):
    """This room and the public function have one name, and Python makes an imported room an attribute of the package.

    So the room, which `wildood.evaluate` always is, can be called; type checkers see the function.
    """

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        """Measure a detector on test data: `wildood.report.evaluation.evaluate`."""
        return self._function(*arguments, **settings)

    @property
    def __signature__(self) -> Signature:
        return signature(self._function)

    @property
    def _function(self) -> Callable[..., Any]:
        function: Callable[..., Any] = import_module("wildood.report.evaluation").evaluate
        return function

    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        return import_module, (self.__name__,)  # for other processes


sys.modules[__name__].__class__ = _CallableRoom
