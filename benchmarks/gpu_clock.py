"""How benchmarks of kernels measure on a GPU: each side as one CUDA graph, sides in turn, medians."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Clock", "Side", "gpu", "wall_ms"]

Side = Callable[[], Any]


def gpu() -> str:
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {platform.python_version()}"


def wall_ms(call: Side, times: int = 20) -> float:
    """Median of the host's clock, the device waited for before and after."""
    taken = []
    for _ in range(times):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - start) * 1e3)
    return statistics.median(taken)


class Clock:
    """Times sides in turn, each as one CUDA graph, after the L2 cache was overwritten."""

    def __init__(self) -> None:
        self.flush = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")

    def medians_us(self, sides: dict[str, Side], rounds: int) -> dict[str, float]:
        graphs = {}
        for name, call in sides.items():
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                call()
            torch.cuda.synchronize()
            graphs[name] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[name]):
                call()
        found: dict[str, list[Any]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, graph in graphs.items():
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                self.flush.fill_(1)
                start.record()
                graph.replay()
                end.record()
                found[name].append((start, end))
        torch.cuda.synchronize()
        return {
            name: statistics.median(start.elapsed_time(end) * 1e3 for start, end in pairs)
            for name, pairs in found.items()
        }
