"""What a tensor looks like on the wire."""

from paceline.codecs.base import Codec, Key, TensorSpec
from paceline.plugins import Registry, convert_options, split_words

codecs: Registry[Codec] = Registry("codec", "paceline.codecs", Codec)


def build_codec(text: str) -> Codec:
    """A fresh codec from `NAME[:option=value...]`; every mistake in the words is found here."""
    name, pairs = split_words("codec", text)
    codec = codecs.get(name)
    return codec(**convert_options("codec", name, codec, codec.option_fields(), pairs))


__all__ = ["Codec", "Key", "TensorSpec", "build_codec", "codecs"]
