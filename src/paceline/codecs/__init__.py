"""What a tensor looks like on the wire."""

from paceline.codecs.base import Codec, TensorSpec
from paceline.plugins import Registry

codecs: Registry[Codec] = Registry("codec", "paceline.codecs", Codec)

__all__ = ["Codec", "TensorSpec", "codecs"]
