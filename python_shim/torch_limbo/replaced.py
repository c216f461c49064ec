"""Standing in front of functions of torch, for everybody who holds one.

Programs take torch's functions by ``from ... import`` before anybody else is imported, put
functions of their own in their place, and call the saved originals from there. So not a name is
replaced but what the function does: it keeps its identity and gets another body.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Callable
from typing import Any, cast


def put_in_front(
    module: types.ModuleType, name: str, body: Callable[..., Any], ours: Callable[..., Any]
) -> tuple[Callable[..., Any], bool]:
    """Give the function ``name`` of ``module`` the body of ``body``, and return a function that
    does what it did. ``body`` uses no name of its own module: it runs with torch's globals.

    Where a program has replaced it and kept nothing of torch's, the program's is replaced by name,
    by ``ours``, and is what is returned; then the second value is True.
    """
    function = _torchs_function(module, name)
    if function is None:
        programs = getattr(module, name)
        setattr(module, name, ours)
        return programs, True
    stock = function.__dict__.get("_limbo_stock")
    if stock is None:  # else the package is imported anew
        stock = types.FunctionType(
            function.__code__, function.__globals__, name, function.__defaults__
        )
        stock.__qualname__ = f"stock {name}"
        function.__dict__["_limbo_stock"] = stock
        function.__code__ = body.__code__
    return stock, False


def _torchs_function(module: types.ModuleType, name: str) -> types.FunctionType | None:
    """Torch's function `name`, also where a program has put another in its place and kept it."""
    present = getattr(module, name)
    if _is_torchs(module, present, name):
        return cast("types.FunctionType", present)
    kept = (thing for thing in gc.get_objects() if _is_torchs(module, thing, name))
    return cast("types.FunctionType | None", next(kept, None))


def _is_torchs(module: types.ModuleType, thing: object, name: str) -> bool:
    # By the type itself: isinstance asks the object, and a dead proxy's answer is an exception.
    return (
        type(thing) is types.FunctionType
        and thing.__globals__ is module.__dict__
        and thing.__qualname__ == name
    )
