"""What workers wrote, in the forms that other programs read."""

from paceline.export.formats import FORMATS, export, sources_of

__all__ = ["FORMATS", "export", "sources_of"]
