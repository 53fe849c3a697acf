"""kvpolicy: KV-cache policies as YAML, compiled into an unmodified SGLang or vLLM."""

__version__ = "0.1.0"
