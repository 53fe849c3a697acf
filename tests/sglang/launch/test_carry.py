"""The policy travels to children whole, and damage on the way is noticed."""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from kvpolicy.language import digest_of
from kvpolicy.runtime import carry
from kvpolicy.runtime.active import Conflict, Setting
from kvpolicy.runtime.flags import CARRY_ENV

FLAT: dict[str, Any] = {"apiVersion": "kvpolicy/v1", "metadata": {"name": "p"}, "cache": {"page_size": {"prefer": 16}}}


@pytest.fixture(autouse=True)
def clean_environment() -> Iterator[None]:
    carry.withdraw()
    yield
    carry.withdraw()


def carried(flat: dict[str, Any] = FLAT) -> carry.Carried:
    return carry.Carried(
        digest=digest_of(flat),
        flat=flat,
        source="p.yaml",
        handshake_dir="/nowhere",
        settings={"page_size": Setting("cache.page_size", "--page-size", 16, 16, "policy", "p.yaml:3:4")},
        conflicts=[Conflict("cache.page_size", 16, 64, "a rule", "p.yaml:3:4", "text")],
        origins={"cache.page_size": "p.yaml:3:4"},
    )


def test_round_trip() -> None:
    sent = carried()
    carry.export(sent)
    assert carry.read(os.environ[CARRY_ENV]) == sent


def test_the_variable_names_its_launcher() -> None:
    carry.export(carried())
    assert os.environ[CARRY_ENV].startswith(f"{os.getpid()}:")


@pytest.mark.parametrize("damage", [lambda v: v[:-20], lambda v: v.partition(":")[0] + ":", lambda v: v + "!!"])
def test_a_damaged_variable_is_an_error(damage: Any) -> None:
    carry.export(carried())
    with pytest.raises(ValueError, match=CARRY_ENV):
        carry.read(damage(os.environ[CARRY_ENV]))


def test_a_policy_that_does_not_match_its_digest_is_an_error() -> None:
    carry.export(carried())
    pid, _, packed = os.environ[CARRY_ENV].partition(":")
    data = json.loads(zlib.decompress(base64.b64decode(packed)))
    data["flat"]["cache"]["page_size"]["prefer"] = 32
    forged = base64.b64encode(zlib.compress(json.dumps(data).encode())).decode()
    with pytest.raises(ValueError, match="has digest"):
        carry.read(f"{pid}:{forged}")


def test_a_policy_too_large_for_one_variable_is_refused_with_words() -> None:
    noise = {**FLAT, "metadata": {"name": "p", "description": os.urandom(200_000).hex()}}
    with pytest.raises(SystemExit, match="too large"):
        carry.export(carried(noise))
    assert CARRY_ENV not in os.environ
