"""One scrape: vLLM's own metrics untouched, ours behind them, every engine with its rank."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

prometheus = pytest.importorskip("prometheus_client")

from kvpolicy_vllm import api_server  # noqa: E402
from kvpolicy_vllm.metrics import JoinedRegistry, families  # noqa: E402

from kvpolicy.runtime.metrics import SECONDS_BUCKETS  # noqa: E402


def engine(dp_rank: int, evicted: int) -> dict[str, Any]:
    counts = [0] * (len(SECONDS_BUCKETS) + 1)
    counts[3], counts[-1] = 4, 1
    block = {
        "name": "p",
        "digest": "ab" * 32,
        "core": "kvpolicy",
        "evictions": {"none": evicted},
        "evicted_tokens": {"none": evicted * 16},
        "fallbacks": {"policy": 1},
        "evict_seconds": 2.5,
        "victim_digest": f"{(7 << 48) + 5:016x}",
    }
    return {"dp_rank": dp_rank, "evict_seconds_counts": counts, "block": block}


@pytest.fixture
def registry() -> JoinedRegistry:
    stock = prometheus.CollectorRegistry()
    prometheus.Gauge("theirs", "One of the engine's own.", registry=stock).set(3)
    joined = JoinedRegistry(stock)
    joined.ours = list(families([engine(0, 3), engine(1, 5)]))
    return joined


def scrape(registry: Any) -> dict[str, float]:
    lines = prometheus.generate_latest(registry).decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_a_scrape(registry: JoinedRegistry) -> None:
    found = scrape(registry)
    assert found["theirs"] == 3
    place = ['dp_rank="1"', 'pp_rank="0"', 'tp_rank="0"']
    assert found["kvpolicy_evictions_total{" + ",".join([place[0], place[1], 'rule="none"', place[2]]) + "}"] == 5
    tokens = [value for name, value in found.items() if name.startswith("kvpolicy_evicted_tokens_total")]
    assert sorted(tokens) == [48, 80]
    where = "{" + ",".join(place) + "}"
    assert found["kvpolicy_evict_seconds_count" + where] == 5
    assert found["kvpolicy_evict_seconds_sum" + where] == 2.5
    assert found["kvpolicy_victim_digest" + where] == 5
    buckets = [name for name in found if name.startswith("kvpolicy_evict_seconds_bucket")]
    assert len(buckets) == 2 * (len(SECONDS_BUCKETS) + 1)


def test_a_scrape_of_chosen_names(registry: JoinedRegistry) -> None:
    assert {name.partition("{")[0] for name in scrape(registry.restricted_registry(["kvpolicy_info"]))} == {
        "kvpolicy_info"
    }
    assert scrape(registry.restricted_registry(["theirs"])) == {"theirs": 3}


def test_shadow_policies_are_shown_while_there_are_any() -> None:
    shown = engine(2, 0)
    rows = [{"name": name, "digest": "ab" * 32, "saved_linear": hit} for name, hit in (("a", 0.5), ("b", 0.25))]
    shown["block"]["shadows"] = {"active": rows[0], "shadows": rows[1:]}
    found = {
        (sample.labels["policy"], sample.labels["active"], sample.labels["dp_rank"]): sample.value
        for family in families([shown, engine(0, 0)])
        for sample in family.samples
        if sample.name == "kvpolicy_shadow_hit_ratio"
    }
    assert found == {("a", "1", "2"): 0.5, ("b", "0", "2"): 0.25}


def test_an_engine_in_its_own_order_has_no_victims_to_tell() -> None:
    stock = engine(0, 0)
    stock["block"].update(evictions={}, evicted_tokens={}, fallbacks={}, victim_digest=None, core="engine")
    names = {sample.name for family in families([stock]) for sample in family.samples}
    assert "kvpolicy_info" in names
    assert "kvpolicy_victim_digest" not in names


def serving(answer: Any) -> Any:
    """An app as vLLM builds it, whose engines answer so."""
    core = SimpleNamespace(call_utility_all_async=answer)
    return SimpleNamespace(state=SimpleNamespace(engine_client=SimpleNamespace(engine_core=core)))


def test_a_scrape_asks_every_engine() -> None:
    async def answer(method: str) -> list[Any]:
        assert method == "kvpolicy_status"
        return [engine(0, 3), None]

    found = asyncio.run(api_server.kvpolicy_families(serving(answer)))
    assert "kvpolicy_info" in {family.name for family in found}


@pytest.mark.parametrize("fault", ["silent", "dead"])
def test_an_engine_that_does_not_answer_costs_ours_only(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(api_server, "SCRAPE_TIMEOUT_S", 0.01)

    async def answer(method: str) -> list[Any]:
        if fault == "dead":
            raise RuntimeError("EngineCore died")
        await asyncio.Event().wait()
        return []

    with caplog.at_level(logging.WARNING, "kvpolicy"):
        assert asyncio.run(api_server.kvpolicy_families(serving(answer))) == []
    assert {"silent": "no answer from the engines in 0.01 s", "dead": "EngineCore died"}[fault] in caplog.text
