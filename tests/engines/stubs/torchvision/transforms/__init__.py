"""`torchvision.transforms`: only the interpolation names, which model configurations spell out."""

import enum

from torchvision._absent import absent


class InterpolationMode(enum.Enum):
    """The names and values that torchvision documents."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


from torchvision.transforms import functional, v2  # noqa: E402 - both need InterpolationMode

__all__ = ["InterpolationMode", "functional", "v2"]
__getattr__ = absent(__name__)
