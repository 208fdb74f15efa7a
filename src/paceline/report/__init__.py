"""What was measured, for people: one self-contained HTML page, pictures of its charts, the main table in Markdown."""

from paceline.report.page import markdown_of, write_report
from paceline.report.pictures import write_figures
from paceline.report.table import markdown_table

__all__ = ["markdown_of", "markdown_table", "write_figures", "write_report"]
