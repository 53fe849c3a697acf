"""An SGLang plugin of test processes: FlashInfer's classes in PyTorch, for the backend of a scheduler on a CPU.

`init_forward_metadata` of a step outside graphs needs no more of FlashInfer.
"""

from __future__ import annotations

import sys

import torch_flashinfer


def load() -> None:
    """The entry point. Schedulers only."""
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return
    from sglang.srt.layers.attention import flashinfer_backend as module

    torch_flashinfer.put_into(module)
