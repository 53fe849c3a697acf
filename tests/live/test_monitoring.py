"""The dashboard and the alert rules ask for metrics that exist, with labels that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvpolicy.live import engine_metrics
from kvpolicy.live.symptoms import SYMPTOMS
from kvpolicy.runtime import metrics
from kvpolicy.runtime.metrics import LABELS, Metric

FOLDER = Path(__file__).parents[2] / "examples/monitoring"

#: Metrics of ours by the names of their samples, with their labels. A counter is the one whose help counts.
GAUGES = {metrics.INFO, metrics.VICTIM_DIGEST, metrics.PROTECTED, metrics.SHADOW_HITS, *metrics.FRAGMENTATION.values()}
HISTOGRAMS = {metrics.EVICT_SECONDS, *metrics.HISTOGRAMS.values()}
ALL = {value for value in vars(metrics).values() if isinstance(value, Metric)} | {
    *metrics.FRAGMENTATION.values(),
    *metrics.HISTOGRAMS.values(),
    *metrics.TRAFFIC.values(),
}
PROMETHEUS = {"up"}
_WORD = re.compile(r"[a-zA-Z_:][\w:]*")
_SELECTOR = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)\{(?P<labels>[^}]*)\}")


def samples() -> dict[str, set[str]]:
    known = {}
    for metric in ALL:
        labels = {*metric.labels, *LABELS, "instance", "job"}
        if metric in HISTOGRAMS:
            known |= {
                f"{metric.name}_bucket": labels | {"le"},
                f"{metric.name}_sum": labels,
                f"{metric.name}_count": labels,
            }
        else:
            known[metric.name if metric in GAUGES else f"{metric.name}_total"] = labels
    return known


def names(expression: str) -> set[str]:
    """Words of a PromQL expression that look like metrics: with a prefix, or followed by a selector or a range."""
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]", "", expression)
    return {word for word in _WORD.findall(bare) if word.startswith(("kvpolicy_", "sglang", "vllm", "up"))}


def dashboard() -> dict[str, Any]:
    found = json.loads((FOLDER / "grafana.json").read_text())
    assert isinstance(found, dict)
    return found


def expressions() -> Iterator[tuple[str, str]]:
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            yield f"grafana: {panel['title']} {target['refId']}", target["expr"]
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield f"alert: {rule['alert']}", rule["expr"]


EXPRESSIONS = dict(expressions())


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_every_metric_exists_and_has_the_labels(where: str) -> None:
    expression, known = EXPRESSIONS[where], samples()
    asked = names(expression)
    assert asked
    assert asked - known.keys() - engine_metrics.NAMES - PROMETHEUS == set()
    ours = set.union(*(known.get(name, {"instance"}) for name in asked))
    for selector in _SELECTOR.finditer(expression):
        labels = set(re.findall(r"(\w+)\s*[=!]", selector["labels"]))
        assert labels <= known.get(selector["name"], {"instance"})
    for grouped in re.findall(r"(?:by|on)\s*\(([^)]*)\)", expression):
        assert {label.strip() for label in grouped.split(",")} <= ours
    assert expression.count("(") == expression.count(")")


def test_an_unknown_metric_is_seen() -> None:
    assert names('rate(kvpolicy_evicted_token_total{instance="a"}[5m])') - samples().keys()


def test_the_dashboard_can_be_imported() -> None:
    board = dashboard()
    assert {"title", "uid", "panels", "templating", "schemaVersion"} <= board.keys()
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    cells = [
        (x, y)
        for panel in board["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells), "two panels lie on each other"
    assert max(x for x, _ in cells) < 24
    variables = {variable["name"] for variable in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(board)))
    assert used - {"__rate_interval"} == variables


def test_alerts_are_whole_and_cite_codes_that_exist() -> None:
    (group,) = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert rule["annotations"].keys() == {"summary", "action"}
        assert rule["annotations"]["summary"].startswith("{{ $labels.instance }}: ")
        assert set(re.findall(r"KVP\d+", json.dumps(rule))) <= SYMPTOMS.keys()


def test_every_alert_of_ours_is_on_the_dashboard_too() -> None:
    shown = set.union(*(names(expression) for where, expression in EXPRESSIONS.items() if where.startswith("grafana")))
    for metric in (metrics.FALLBACKS, metrics.ALLOCATOR_FAULTS, metrics.REUSED_TOKENS, metrics.EVICTED_TOKENS):
        assert f"{metric.name}_total" in shown
