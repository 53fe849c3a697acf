"""Size of the fixed state that a Mamba, gated-delta-net or short-convolution layer keeps for a sequence.

vLLM gives such a layer blocks of the same bytes as an attention layer, so this size decides how many tokens an
attention block must hold (``platforms/interface.py _align_hybrid_block_size``). Shapes as in its
``model_executor/layers/mamba/mamba_utils.py`` and the models' ``get_mamba_state_shape_from_config``, without
speculation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvpolicy.facts.dtypes import ELEMENT_BITS, canonical

__all__ = ["LinearState", "linear_state"]


@dataclass(frozen=True, slots=True)
class LinearState:
    """One layer's state before tensor parallelism."""

    conv_width: int  # channels of the convolution, groups excluded
    conv_tokens: int  # past tokens it keeps
    recurrent_elements: int = 0
    recurrent_dtype: str | None = None  # None: the model's
    groups: int = 0
    group_width: int = 0  # channels a group adds to the convolution

    def size_bytes(self, dtype: str, *, tp: int = 1) -> int:
        """Bytes on one rank for a model computing in ``dtype``; groups that ranks do not divide are replicated."""
        groups = self.groups if self.groups % tp == 0 else tp
        conv = (self.conv_width + groups * self.group_width) // tp * self.conv_tokens
        conv_bytes = conv * ELEMENT_BITS[dtype] // 8
        recurrent_bits = ELEMENT_BITS[self.recurrent_dtype or dtype]
        return conv_bytes + self.recurrent_elements // tp * recurrent_bits // 8


def linear_state(architecture: str, text: Mapping[str, Any]) -> LinearState | None:
    """The state of a hybrid's linear layers; None for a model without any, or one whose shapes are not known here."""
    if text.get("linear_num_value_heads"):  # gated delta net: Qwen3-Next, Qwen3.5
        key_width = int(text["linear_num_key_heads"]) * int(text["linear_key_head_dim"])
        value_heads, value_dim = int(text["linear_num_value_heads"]), int(text["linear_value_head_dim"])
        return LinearState(
            conv_width=2 * key_width + value_heads * value_dim,
            conv_tokens=int(text.get("linear_conv_kernel_dim") or 4) - 1,
            recurrent_elements=value_heads * value_dim * int(text["linear_key_head_dim"]),
            recurrent_dtype=_stated(text, "mamba_ssm_dtype"),
        )
    if text.get("conv_L_cache"):  # LFM2
        width = int(text.get("conv_dim") or text["hidden_size"])
        return LinearState(conv_width=width, conv_tokens=int(text["conv_L_cache"]) - 1)
    if text.get("mamba_num_heads") and text.get("ssm_state_size"):  # Nemotron-H
        return _mamba2(
            heads=int(text["mamba_num_heads"]),
            head_dim=int(text["mamba_head_dim"]),
            state=int(text["ssm_state_size"]),
            groups=int(text.get("n_groups") or 1),
            kernel=int(text.get("conv_kernel") or 4),
            dtype=_stated(text, "mamba_ssm_cache_dtype") or "fp32",
        )
    if text.get("mamba_n_heads") and text.get("mamba_d_state"):  # Falcon-H1, Granite 4, Bamba
        if architecture.startswith("GraniteMoeHybrid") and "mamba" not in (text.get("layer_types") or ()):
            return None  # the dense members of the family keep the keys
        heads = int(text["mamba_n_heads"])
        inner = int(text.get("mamba_d_ssm") or int(text.get("mamba_expand") or 2) * int(text["hidden_size"]))
        return _mamba2(
            heads=heads,
            head_dim=int(text.get("mamba_d_head") or inner // heads),
            state=int(text["mamba_d_state"]),
            groups=int(text.get("mamba_n_groups") or 1),
            kernel=int(text.get("mamba_d_conv") or 4),
            inner=inner,
        )
    return None


def _mamba2(
    *, heads: int, head_dim: int, state: int, groups: int, kernel: int, inner: int = 0, dtype: str | None = None
) -> LinearState:
    return LinearState(
        conv_width=inner or heads * head_dim,
        conv_tokens=kernel - 1,
        recurrent_elements=heads * head_dim * state,
        recurrent_dtype=dtype,
        groups=groups,
        group_width=2 * state,
    )


def _stated(text: Mapping[str, Any], key: str) -> str | None:
    value = text.get(key)
    return None if value in (None, "auto") else canonical(str(value))
