"""Fixtures shared by all tests: the real engines. See tests/engines/README.md for what runs where.

`sglang_env(version)` and `server(version, policy=..., ...)` build or find their environment on first use, so a run that
selects only core tests installs nothing. Nothing here imports an engine into the test process.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import pytest

from tools.environment import EngineEnv, Environment, load_pins
from tools.models import REAL, TINY, ensure_model
from tools.server import Server, run_server

# What assertions outside test modules compare is shown too.
pytest.register_assert_rewrite(
    "tests.inside.keeping", "tests.stock", "tests.proofs.engines", "tests.vllm.proofs.engines"
)

SGLANG_VERSIONS: tuple[str, ...] = tuple(load_pins()["sglang"]["versions"])
VLLM_VERSIONS: tuple[str, ...] = tuple(load_pins()["vllm"]["versions"])
DEMO_VERSION: str = load_pins()["sglang"]["demo"]
POLICIES = Path(__file__).resolve().parent.parent / "policies"


#: Where tests take longest.
LONG = frozenset({"bench", "fidelity", "proofs", "soak", "threeway"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Core tests, then those of one engine after another, so that a worker imports each once (tools/preloaded.py).

    The longest of an engine come first: workers that share the rest end together.
    """

    def order(item: pytest.Item) -> tuple[bool, bool, str, bool]:
        if not any(map(item.get_closest_marker, ("engine", "server"))):
            return False, False, "", False
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        version = next((value for value in parameters if value in SGLANG_VERSIONS), None)
        is_vllm = version is None and "vllm_env" in getattr(item, "fixturenames", ())
        return True, is_vllm, version or DEMO_VERSION, LONG.isdisjoint(item.path.parts)

    items.sort(key=order)


class StartServer(Protocol):
    """Starts a server for a `with` block: `with server("0.5.20", policy=path) as s: s.generate("...")`."""

    def __call__(
        self,
        version: str = DEMO_VERSION,
        *flags: str,
        policy: Path | str | None = None,
        model: Path | str | None = None,
        max_total_tokens: int = 4096,
        env: dict[str, str] | None = None,
    ) -> AbstractContextManager[Server]: ...


@pytest.fixture(scope="session")
def engine_environment() -> Environment:
    environment = Environment.default()
    environment.ensure()
    return environment


@pytest.fixture(scope="session")
def sglang_env(engine_environment: Environment) -> Callable[..., EngineEnv]:
    """`sglang_env("0.5.20", {"EXTRA": "1"})` -> interpreter and environment that import that SGLang."""
    return engine_environment.sglang


@pytest.fixture(scope="session")
def vllm_env(engine_environment: Environment) -> Callable[..., EngineEnv]:
    """`vllm_env()` or `vllm_env("0.32.0", {"EXTRA": "1"})` -> interpreter and environment of that vLLM."""

    def make(version: str = VLLM_VERSIONS[0], extra: dict[str, str] | None = None) -> EngineEnv:
        return engine_environment.vllm(version, extra)

    return make


@pytest.fixture(scope="session")
def tiny_model(engine_environment: Environment) -> Path:
    """A random two-layer Llama whose tokens are bytes: for speed and exact token counts."""
    return ensure_model(engine_environment, TINY)


@pytest.fixture(scope="session")
def real_model(engine_environment: Environment) -> Path:
    """SmolLM2-135M-Instruct: for real text, logits and conversations."""
    return ensure_model(engine_environment, REAL)


@pytest.fixture
def server(
    sglang_env: Callable[..., EngineEnv], tiny_model: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> StartServer:
    """Start real servers, one or several in turn. The model defaults to the tiny one; logs lie in `tmp_path`."""
    count = 0

    def start(
        version: str = DEMO_VERSION,
        *flags: str,
        policy: Path | str | None = None,
        model: Path | str | None = None,
        max_total_tokens: int = 4096,
        env: dict[str, str] | None = None,
    ) -> AbstractContextManager[Server]:
        nonlocal count
        count += 1
        name = re.sub(r"\W+", "-", request.node.name)
        return run_server(
            sglang_env(version, env),
            model or tiny_model,
            "--max-total-tokens",
            str(max_total_tokens),
            *flags,
            policy=policy,
            log_path=tmp_path / f"{name}-{count}.log",
        )

    return start
