"""How a message of a live swap reaches every scheduler of a server, and how their ranks agree.

SGLang broadcasts `SetInternalStateReq` to every rank of every data-parallel group in the order of the requests, and
handles it between two steps. It takes numbers by names; a name may be any string, in every supported version, so the
message travels as one: no file is shared and nodes need nothing in common. What comes back is one yes or no a group.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from . import probe

__all__ = ["answer", "gather_of", "pack", "unpack"]

_PREFIX = "kvpolicy.live:"


def pack(message: dict[str, Any]) -> Any:
    """The request that carries `message`."""
    from sglang.srt.managers.io_struct import SetInternalStateReq

    return SetInternalStateReq(server_args={_PREFIX + json.dumps(message, separators=(",", ":")): 0})


def unpack(recv_req: Any) -> dict[str, Any] | None:
    """The message in a request; None in one of the engine's own. Never raises."""
    names = list(getattr(recv_req, "server_args", None) or ())
    if len(names) != 1 or not isinstance(names[0], str) or not names[0].startswith(_PREFIX):
        return None
    try:
        message = json.loads(names[0][len(_PREFIX) :])
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def answer(goes_on: bool) -> Any:
    """What a scheduler sends back: whether it wants to be told to continue."""
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    return SetInternalStateReqOutput(updated=goes_on)


def gather_of(scheduler: Any) -> Callable[[dict[str, Any]], list[dict[str, Any]]] | None:
    """Collects a verdict of each rank that handles the same messages at the same step; None where one is alone.

    These are the ranks of one scheduler's broadcast: with data-parallel attention each group's own.
    """
    is_grouped = probe.resolved(scheduler.server_args, "enable_dp_attention")
    group = scheduler.attn_tp_cpu_group if is_grouped else scheduler.tp_cpu_group
    import torch.distributed

    size = torch.distributed.get_world_size(group)
    if size == 1:
        return None

    def gather(own: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[Any] = [None] * size
        torch.distributed.all_gather_object(found, own, group=group)
        return found

    return gather
