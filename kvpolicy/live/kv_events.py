"""What a router hears of an engine: its KV events, listened to for a while, and whether they fit engine and router.

Both engines publish them over ZeroMQ (``--kv-events-config``), as msgpack: ``[time, [event, ...], ...]``, where an
event is a map with its ``type`` or, in SGLang up to 0.5.18 and older vLLM, an array that begins with it. Listening
needs pyzmq and msgspec, which every engine's environment has; nothing else of kvpolicy does.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .client import LiveError
from .doctor import Block, Finding
from .words import number

__all__ = ["Heard", "compare", "listen", "take"]

#: Places in the array form: its type, hashes, parent, token ids, block size, LoRA, medium, and what engines add.
_BLOCK_SIZE, _ADDED = 4, 7


@dataclass(slots=True)
class Heard:
    """Events of a while."""

    batches: int = 0
    stored: int = 0  # events of blocks that were cached
    block_tokens: Counter[int] = field(default_factory=Counter)  # stored events by the size that they name
    salted: int = 0  # of them, with a salt


def listen(endpoint: str, seconds: float) -> Heard:
    """Everything published at ``endpoint`` (tcp://host:port) for so long. Raises LiveError."""
    try:
        import msgspec
        import zmq
    except ImportError as error:
        raise LiveError(f"listening to KV events needs pyzmq and msgspec: {error}") from None
    heard = Heard()
    context = zmq.Context()
    try:
        socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.LINGER, 0)
        socket.subscribe(b"")
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise LiveError(f"{endpoint} is no endpoint of KV events, tcp://host:port: {error}") from None
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            if socket.poll(max(1, int(left_s * 1000))):
                try:
                    take(heard, msgspec.msgpack.decode(socket.recv_multipart()[-1]))
                except (msgspec.DecodeError, TypeError, IndexError, KeyError, ValueError):
                    raise LiveError(f"what {endpoint} publishes are no KV events") from None
    finally:
        context.destroy(linger=0)
    return heard


def take(heard: Heard, batch: Sequence[Any]) -> None:
    """Count one decoded batch."""
    heard.batches += 1
    for event in batch[1]:
        is_map = isinstance(event, Mapping)
        if (event["type"] if is_map else event[0]) != "BlockStored":
            continue
        heard.stored += 1
        heard.block_tokens[int(event["block_size"] if is_map else event[_BLOCK_SIZE])] += 1
        heard.salted += _has_salt(event) if is_map else any(map(_holds_salt, event[_ADDED:]))


def _has_salt(event: Mapping[str, Any]) -> bool:
    # vLLM: the LoRA's name, pairs of images, and the salt as a string of its own, for each block.
    lora = event.get("lora_name")
    keys = [key for block in event.get("extra_keys") or () for key in block or ()]
    return event.get("cache_salt") is not None or any(isinstance(key, str) and key != lora for key in keys)


def _holds_salt(added: Any) -> bool:
    return isinstance(added, Mapping) and added.get("cache_salt") is not None


def compare(heard: Heard, block: Block, salted_requests: int | None, router_tokens: int | None) -> Iterator[Finding]:
    """``block`` is a status; ``salted_requests`` came while somebody listened (None: not counted); ``router_tokens`` is
    the router's page size, as its operator says."""
    if not heard.stored:
        yield Finding(
            "KVP744",
            "warning",
            f"no block was announced while listening ({number(heard.batches)} batches of other events)",
            "send requests meanwhile, or listen longer (--listen); is --kv-events-config of this server?",
        )
        return
    page = block["settings"].get("cache.page_size", {}).get("effective") or block.get("built", {}).get("page_size")
    sizes = sorted(heard.block_tokens)
    shown = ", ".join(map(str, sizes))
    data = {"announced": sizes, "engine": page, "router": router_tokens}
    if router_tokens is not None and sizes != [router_tokens]:
        yield Finding(
            "KVP741",
            "error",
            f"the router cuts prompts into {router_tokens} tokens, the engine announces blocks of {shown}: no prompt "
            "that it hashes is ever one that the engine has",
            f"set the router's block size to {shown}, or the policy's cache.page_size to {router_tokens} and restart",
            data=data,
        )
    if page is not None and sizes != [page]:
        yield Finding(
            "KVP742",
            "error",
            f"the engine's pages are of {page} tokens, and it announces blocks of {shown}",
            f"give the router {shown}, not the page size of the policy",
            data=data,
        )
    if salted_requests and not heard.salted:
        yield Finding(
            "KVP743",
            "warning",
            f"{number(salted_requests)} requests with a cache_salt came meanwhile, and no announced block names one",
            "a router that hashes prompts with the salt never matches these blocks: let it take the events' hashes, or "
            "leave the salt out on both sides",
            data={"salted_requests": salted_requests},
        )
