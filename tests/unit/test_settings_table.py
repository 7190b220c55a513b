"""The table of settings, from which docs/settings.md is made, has what the code reads and accepts."""

from __future__ import annotations

import re

import pytest

from places import PACKAGE
from tachograph.pipeline.settings import Keywords, read_settings
from tachograph.pipeline.settings_table import SECTIONS, SettingRow

ROWS = [row for rows in SECTIONS.values() for row in rows]
CHOICES = [(variable, row) for row in ROWS for variable in row.variables if isinstance(row.values, tuple)]
# With these, read_settings() reads the settings of OTLP and of InfluxDB, too.
DESTINATIONS = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
    "OTEL_LOGS_EXPORTER": "otlp,influxdb",
    "INFLUXDB_HOST": "127.0.0.1",
}
# Instrumentors read these, and log a wrong value: the job goes on. OpenTelemetry's specification demands the same of
# the last one.
LENIENT = {
    "TACHOGRAPH_ANATOMY",
    "TACHOGRAPH_WAIT_COUNTERS",
    "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION",
}

pytestmark = pytest.mark.usefixtures("untraced_module")  # it reads source


def test_each_argument_of_start_is_in_one_row() -> None:
    """The table has all keyword arguments of ``start()``, and no other."""
    assert sorted(argument for row in ROWS for argument in row.arguments) == sorted(Keywords.__annotations__)


def test_each_variable_is_in_one_row() -> None:
    """No variable is described twice."""
    variables = [variable for row in ROWS for variable in row.variables]
    assert sorted(variables) == sorted(set(variables))


def test_the_code_reads_each_variable() -> None:
    """Each variable of ours or of InfluxDB in the table is in the code."""
    code = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "settings_table.py")
    variables = [variable for row in ROWS for variable in row.variables if not variable.startswith("OTEL_")]
    assert [variable for variable in variables if not re.search(rf"\b{variable}\b", code)] == []


@pytest.mark.parametrize(("variable", "row"), CHOICES, ids=[variable for variable, _ in CHOICES])
def test_the_code_accepts_the_values(variable: str, row: SettingRow) -> None:
    """Each word that the table names is accepted, and another one is an error that names all of them."""
    for word in row.values:
        read_settings({**DESTINATIONS, variable: word})
    if variable in LENIENT:
        return
    with pytest.raises(ValueError, match=variable) as caught:
        read_settings({**DESTINATIONS, variable: "perhaps"})
    assert all(word in str(caught.value) for word in row.values)


def test_defaults_are_among_the_values() -> None:
    """The default of a choice is one of its words."""
    for _, row in CHOICES:
        default = re.match(r"`([^`]+)`", row.default)
        assert default is not None, row
        assert default[1] in row.values
