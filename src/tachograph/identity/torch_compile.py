"""Functions that ``torch.compile`` must not compile: those that record, and those of the program that they call.

Dynamo, the front end of ``torch.compile``, treats what a function reads as constant, and compiles the function again
when that has changed. Recording functions read state that each value changes, such as the length of a buffer. So a call
of one is a graph break, and its code runs uncompiled.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, TypeVar, cast

from tachograph.identity.import_hooks import ImportHook

# Not ``diagnosis``: its hooks of an optimizer do nothing in compiled code, so tracing them saves a graph break.
RECORDING_PACKAGES = ("elastic", "instrumentation", "logger", "metric", "monitor", "profiling", "recording")

Function = TypeVar("Function", bound=Callable[..., Any])


def hide_recording_functions() -> None:
    """Make dynamo skip every function of the packages that record, as soon as the program imports dynamo."""
    ImportHook("torch._dynamo.trace_rules", _skip_packages)


def _skip_packages(trace_rules: ModuleType | Any) -> None:
    for package in RECORDING_PACKAGES:
        trace_rules.add(f"tachograph.{package}")


def hide_calls(caller: Function) -> Function:
    """Make dynamo skip everything that a function calls, too, such as the program's own handlers.

    Returns:
        The function, so that this is a decorator.
    """

    def skip(eval_frame: ModuleType | Any) -> None:
        skipped = eval_frame.FrameAction.SKIP
        strategy = eval_frame.FrameExecStrategy(skipped, skipped)
        eval_frame.set_code_exec_strategy(cast("FunctionType", caller).__code__, strategy)

    ImportHook("torch._dynamo.eval_frame", skip)
    return caller
