"""Launchers: start the worker processes of a training run, on this host or on several hosts."""
