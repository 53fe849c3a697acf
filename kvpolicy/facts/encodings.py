"""int8 and int4 KV as kvpolicy itself stores them in SGLang: what a head takes. The kernels are `kernels/kv_quant`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ENCODED", "ENCODINGS", "HEAD_DIMS", "INT4", "INT8", "Encoding"]

HEAD_DIMS = (32, 64, 128, 256)  # the kernels' tiles are powers of two
_SCALE_BYTES = 2  # bf16


@dataclass(frozen=True, slots=True)
class Encoding:
    """`bits` a value, and how many values in a row of one head share a scale (`group`; 0: all of the head)."""

    name: str
    bits: int
    group: int

    @property
    def qmax(self) -> int:
        """The largest code; the smallest is its negative."""
        return int(2 ** (self.bits - 1) - 1)

    def groups(self, head_dim: int) -> int:
        """How many scales a head has. ValueError for a head_dim that the kernels do not take."""
        if head_dim not in HEAD_DIMS:
            raise ValueError(f"{self.name}: heads of {', '.join(map(str, HEAD_DIMS))} values, not {head_dim}")
        return head_dim // (self.group or head_dim)

    def head_bytes(self, head_dim: int) -> int:
        """Bytes that one head of one token takes in K, and again in V, with its scales."""
        return head_dim * self.bits // 8 + self.groups(head_dim) * _SCALE_BYTES


INT8 = Encoding("int8", 8, 0)
INT4 = Encoding("int4", 4, 32)
ENCODINGS = {encoding.name: encoding for encoding in (INT8, INT4)}
#: By the word of a policy; SGLang has no word for them.
ENCODED = {f"{encoding.name}_per_token_head": encoding for encoding in ENCODINGS.values()}
