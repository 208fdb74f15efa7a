"""Codecs, which encode the tensors that workers exchange (fp16, int8, top-k, ...). Each is a class of this package."""

from paceline.codecs.base import Codec, Key, TensorSpec
from paceline.plugins import Registry, convert_options, split_words

codecs: Registry[Codec] = Registry("codec", "paceline.codecs", Codec)


def build_codec(text: str) -> Codec:
    """Create a codec from `NAME[:option=value...]`; raise UsageError for unknown names and invalid options."""
    name, pairs = split_words("codec", text)
    codec = codecs.get(name)
    return codec(**convert_options("codec", name, codec, codec.option_fields(), pairs))


__all__ = ["Codec", "Key", "TensorSpec", "build_codec", "codecs"]
