"""Prometheus rules: each has a unit test that fails without it, and each alert links to a section of the runbook."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from places import ROOT
from servers import find

pytestmark = pytest.mark.prometheus

DEPLOY = ROOT / "deploy" / "prometheus"
FILES = sorted(path.name for path in (DEPLOY / "rules").glob("*.yml"))
WITHIN = 60  # seconds from a fault to its alert
SEEN = 15  # of these, for the export, the scrape and the evaluation


class Rule(NamedTuple):
    """A rule: the name of its file, its own name, and its definition."""

    file: str
    name: str
    told: dict[str, Any]


def _rules() -> list[Rule]:
    groups = [(name, group) for name in FILES for group in _read(DEPLOY / "rules" / name)["groups"]]
    return [Rule(name, rule.get("alert") or rule["record"], rule) for name, group in groups for rule in group["rules"]]


def _read(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text()))


RULES = _rules()
ALERTS = [rule for rule in RULES if "alert" in rule.told]


def promtool(major: int, *arguments: str, cwd: Path = DEPLOY) -> subprocess.CompletedProcess[str]:
    """Run promtool."""
    line = [find("promtool", major), *arguments]
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("major", [3, 2])
@pytest.mark.parametrize("config", ["hub.yml", "prometheus.yml"])
def test_the_configurations_load_the_rules(major: int, config: str) -> None:
    """Both major versions accept both configurations and find all rules."""
    done = promtool(major, "check", "config", config)
    assert done.returncode == 0, done.stderr
    assert f"{len(FILES)} rule files found" in done.stdout


@pytest.mark.parametrize("major", [3, 2])
@pytest.mark.parametrize("file", FILES)
def test_unit_tests_pass(major: int, file: str) -> None:
    """The unit tests of each rule file pass with both major versions."""
    done = promtool(major, "test", "rules", f"tests/{file}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_rule_has_a_unit_test(rule: Rule, tmp_path: Path) -> None:
    """The unit tests fail without the rule; those of an alert also cover a time at which it does not fire."""
    for name in ("rules", "tests"):
        shutil.copytree(DEPLOY / name, tmp_path / name)
    file = tmp_path / "rules" / rule.file
    found = _read(file)
    for group in found["groups"]:
        for each in group["rules"]:
            if rule.name in (each.get("alert"), each.get("record")):
                each["expr"] = "vector(0) > 1"
    file.write_text(yaml.safe_dump(found))
    told = _read(DEPLOY / "tests" / rule.file)
    told["tests"] = [test for test in told["tests"] if rule.name in yaml.safe_dump(test)]  # its own: all take a second
    (tmp_path / "tests" / rule.file).write_text(yaml.safe_dump(told))
    done = promtool(3, "test", "rules", f"tests/{rule.file}", cwd=tmp_path)
    assert done.returncode != 0
    assert "FAILED" in done.stdout + done.stderr
    looked = [each for test in told["tests"] for each in test.get("alert_rule_test", [])]
    quiet = [each for each in looked if each["alertname"] == rule.name and not each.get("exp_alerts")]
    assert quiet or "record" in rule.told


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule.name)
def test_each_alert_says_what_to_do(rule: Rule) -> None:
    """Each alert has a severity, a summary with labels, and the name of its section of the runbook."""
    assert rule.told["labels"]["severity"] in ("critical", "warning")
    assert "{{" in rule.told["annotations"]["summary"]
    section = re.fullmatch(r"See (\w+) in (docs/\S+) of Tachograph\.", rule.told["annotations"]["description"])
    assert section is not None
    assert section[1] == rule.name
    assert rule.name in re.findall(r"^### (\w+)$", (ROOT / section[2]).read_text(), re.MULTILINE)


def test_the_runbook_has_no_other_alerts() -> None:
    """Each section of the runbook belongs to an existing alert."""
    headings = re.findall(r"^### (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(rule.name for rule in ALERTS)


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule.name)
def test_each_alert_can_fire_within_a_minute(rule: Rule) -> None:
    """Groups are evaluated every five seconds, and each alert can fire within a minute of the fault."""
    assert {group["interval"] for group in _read(DEPLOY / "rules" / rule.file)["groups"]} == {"5s"}
    assert int(rule.told.get("for", "0s").removesuffix("s")) <= WITHIN - SEEN
