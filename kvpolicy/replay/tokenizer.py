"""Tokenizers for traces of text: any Hugging Face directory, or `bytes` for a rough count without one."""

from __future__ import annotations

from typing import Any, Protocol

from kvpolicy.replay.errors import TraceUsageError

__all__ = ["Tokenizer", "load_tokenizer"]


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[int]:
        """Token ids of a text, special tokens as the tokenizer adds them."""

    def chat(self, messages: list[dict[str, Any]]) -> list[int]:
        """Token ids of a conversation, as the chat template renders it for the next answer."""


class _Bytes:
    """One token a UTF-8 byte; prefixes are equal where the texts are. About four times as many as a real tokenizer."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def chat(self, messages: list[dict[str, Any]]) -> list[int]:
        return self.encode("".join(f"<{m['role']}>{m.get('content') or ''}" for m in messages) + "<assistant>")


class _HuggingFace:
    def __init__(self, path: str) -> None:
        try:
            from transformers import AutoTokenizer
        except ImportError:
            raise TraceUsageError("--tokenizer needs the package transformers (or use --tokenizer bytes)") from None
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(path, local_files_only=True)
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise TraceUsageError(f"no tokenizer can be loaded from '{path}': {reason}") from None

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text))

    def chat(self, messages: list[dict[str, Any]]) -> list[int]:
        ids = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)
        return list(ids["input_ids"] if hasattr(ids, "keys") else ids)


def load_tokenizer(path: str | None) -> Tokenizer:
    """Raises TraceUsageError when it cannot be loaded."""
    if path is None:
        raise TraceUsageError("this trace holds texts: say how they are tokenized with --tokenizer DIR (or bytes)")
    return _Bytes() if path == "bytes" else _HuggingFace(path)
