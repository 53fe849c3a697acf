"""`torchvision.transforms.v2`: only the interpolation names."""

from torchvision._absent import absent
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

__all__ = ["InterpolationMode", "functional"]
__getattr__ = absent(__name__)
