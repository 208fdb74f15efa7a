"""Measurement of training workers: timed phases, communication, resource usage, traces and analysis."""
