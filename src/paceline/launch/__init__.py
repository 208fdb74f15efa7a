"""Launchers: start worker processes and run tasks on them."""
