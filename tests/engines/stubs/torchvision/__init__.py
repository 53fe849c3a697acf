"""Stand-in for torchvision: importable beside any torch, refusing any use. Text models only."""

from torchvision import io, transforms

__all__ = ["io", "transforms"]
__version__ = "0+absent"
