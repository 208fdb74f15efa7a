"""Chart functions, each registered for a section of a page. registry.py finds them by importing all files here."""
