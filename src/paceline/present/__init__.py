"""Presentation of results: columns, findings and charts are declared once per study and rendered four ways.

`page_of` makes a page of results; present/terminal.py, markdown.py, html.py and notebook.py render it.
"""
