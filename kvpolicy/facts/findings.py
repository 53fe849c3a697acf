"""What a run of the facts layer is about, and the list it fills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvpolicy.attention.cost import Load
from kvpolicy.facts.engines import EngineTarget
from kvpolicy.facts.gpus import Gpu
from kvpolicy.facts.measured import Measured
from kvpolicy.facts.model import ModelFacts
from kvpolicy.language import Diagnostic, Policy, Severity

__all__ = ["Deployment", "Findings", "Locate", "nowhere"]

Locate = Callable[[str], tuple[str, int, int]]  # dotted field -> (file, line, column), as LoadResult.locate


def nowhere(path: str) -> tuple[str, int, int]:
    """For a policy that comes from no file (a child process, a test)."""
    del path
    return "<policy>", 1, 1


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where a policy is to run; what is None was not given."""

    target: EngineTarget | None
    gpu: Gpu | None
    model: ModelFacts | None
    pool_bytes: int | None  # on one rank
    tp: int
    length_tokens: int
    evidence: tuple[Measured, ...] = ()  # of kvpolicy fidelity
    traffic: Load | None = None  # of decode steps; its page is the engine's

    @property
    def engine_label(self) -> str:
        """``SGLang 0.5.23 on NVIDIA H200``."""
        names = {"sglang": "SGLang", "vllm": "vLLM"}
        engine = f"{names[self.target.name]} {self.target.facts_version}" if self.target else "the engine"
        return f"{engine} on {self.gpu.label}" if self.gpu else engine


@dataclass(slots=True)
class Findings:
    """Diagnostics of one policy in reading order."""

    policy: Policy
    locate: Locate
    items: list[Diagnostic] = field(default_factory=list)

    def add(
        self,
        code: str,
        severity: Severity,
        path: str,
        message: str,
        help: str | None = None,
        data: dict[str, Any] | None = None,
    ) -> None:
        """Record one finding at the dotted field ``path`` ("" = the document)."""
        file, line, col = self.locate(path)
        self.items.append(Diagnostic(file, line, col, code, severity, message, help, data))

    def info(self, code: str, path: str, message: str, data: dict[str, Any] | None = None) -> None:
        """Record a fact."""
        self.add(code, "info", path, message, None, data)
