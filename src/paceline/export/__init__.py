"""Export of stored runs to CSV, Parquet, TensorBoard and MLflow."""

from paceline.export.formats import FORMATS, export, sources_of

__all__ = ["FORMATS", "export", "sources_of"]
