"""Functions that are made at run time, under names by which pickle finds them.

pickle writes a function as its module and its qualified name, and so does cloudpickle where it finds the function under
that name; what reads it looks the name up. A function inside of a function has no such name, so it gets one that says
how to make it again. A method, or an object that can be called, could say so itself, but would make each call slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from tachograph.recording.ids import NumberSequence

Made = TypeVar("Made", bound=Callable[..., Any])


class NamedFunctions:
    """Functions of one kind, each an attribute of this object by the arguments that it was made of.

    Args:
        module: the module that has this object as a variable.
        variable: the name of that variable.

    Attributes:
        make: makes a function of such arguments, in a process that has none of the name; that module sets it.
    """

    make: Callable[..., Callable[..., Any]]

    def __init__(self, module: str, variable: str) -> None:
        self.__module__ = module
        self._variable = variable
        self._number = NumberSequence().next
        self._functions: WeakValueDictionary[str, Callable[..., Any]] = WeakValueDictionary()

    def add(self, function: Made, *arguments: object) -> Made:
        """Name a function that was made in another function.

        Args:
            function: the function, which is changed in place.
            arguments: make it again; JSON can say them.
        """
        import json  # here: most programs name no function

        text = json.dumps([*arguments, self._number()])  # with a number, as two functions may be made of the same
        name = text.replace("%", "%25").replace(".", "%2E")  # a dot would end the name of the attribute
        self._functions[name] = function
        function.__module__ = self.__module__
        function.__qualname__ = f"{self._variable}.{name}"
        return function

    def has(self, function: object) -> bool:
        """Tell whether a function has a name of this object."""
        return getattr(function, "__module__", None) == self.__module__

    def __getattr__(self, name: str) -> Callable[..., Any]:
        found = self._functions.get(name)
        if found is not None:
            return found
        if not name.startswith("["):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        import json

        *arguments, _number = json.loads(name.replace("%2E", ".").replace("%25", "%"))
        return self.make(*arguments)

    def __reduce__(self) -> str:
        """Return the name of the variable: pickles of old protocols ask this object for its attribute."""
        return self._variable
