"""`torchvision.io`: nothing of it is real here."""

from torchvision._absent import absent

__getattr__ = absent(__name__)
