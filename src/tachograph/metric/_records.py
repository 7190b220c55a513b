"""The functions :attr:`tachograph.Metric.record`, by the names under which pickle finds them."""

from __future__ import annotations

from tachograph.recording.named_functions import NamedFunctions


class Metric:
    """A namespace for their names, which begin with ``Metric.record``: CPython has them in its TypeErrors."""

    record = NamedFunctions(__name__, "Metric.record")
