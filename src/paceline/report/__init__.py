"""What was measured, for people: one self-contained HTML page, and the main table in Markdown."""

from paceline.report.page import write_report
from paceline.report.table import markdown_table

__all__ = ["markdown_table", "write_report"]
