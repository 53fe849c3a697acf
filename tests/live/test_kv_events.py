"""What is announced of cached blocks, in both forms on the wire, and each finding with its fault."""

from __future__ import annotations

from typing import Any

import pytest

from kvpolicy.cli.main import main
from kvpolicy.live.doctor import examine
from kvpolicy.live.kv_events import Heard, compare, take
from kvpolicy.live.symptoms import SYMPTOMS
from tests.live.blocks import healthy_block

OLD = ["BlockStored", [1, 2], None, [5] * 32, 16, None, "GPU"]
NEW = {"type": "BlockStored", "block_hashes": [1], "token_ids": [5] * 16, "block_size": 16, "lora_id": None}


def heard(*events: Any) -> Heard:
    found = Heard()
    take(found, [1.0, list(events), 0])
    return found


def codes(found: Heard, salted: int = 0, router: int | None = None) -> list[str]:
    return [finding.code for finding in compare(found, healthy_block(), salted, router)]


@pytest.mark.parametrize(
    ("event", "has_salt"),
    [
        (OLD, False),
        ([*OLD, {"cache_salt": "a"}], True),
        (NEW, False),
        ({**NEW, "cache_salt": "a"}, True),
        ({**NEW, "extra_keys": [["a"], None]}, True),
        ({**NEW, "extra_keys": [["adapter"]], "lora_name": "adapter"}, False),
        ({**NEW, "extra_keys": [[["image", 3]]]}, False),
    ],
)
def test_both_forms_are_read(event: Any, has_salt: bool) -> None:
    found = heard(event, ["AllBlocksCleared"], {"type": "BlockRemoved", "block_hashes": [1]})
    assert (found.batches, found.stored, dict(found.block_tokens)) == (1, 1, {16: 1})
    assert found.salted == has_salt


def test_what_fits_is_no_finding() -> None:
    assert examine([healthy_block()]) == []
    assert codes(heard(OLD, NEW), salted=0, router=16) == []
    assert codes(heard({**NEW, "cache_salt": "a"}), salted=3) == []


def test_each_fault_is_found() -> None:
    assert codes(heard(NEW), router=64) == ["KVP741"]
    assert codes(heard({**NEW, "block_size": 32})) == ["KVP742"]
    assert codes(heard({**NEW, "block_size": 32}), router=32) == ["KVP742"]
    assert codes(heard(NEW), salted=3) == ["KVP743"]
    assert codes(heard(["AllBlocksCleared"]), router=64) == ["KVP744"]
    assert {"KVP741", "KVP742", "KVP743", "KVP744"} <= SYMPTOMS.keys()


def test_a_router_is_compared_with_events(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", "http://127.0.0.1:9", "--router-page-size", "16"]) == 2
    assert "--kv-events, which is missing" in capsys.readouterr().err
