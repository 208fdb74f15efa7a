"""Measurement of workers: spans, resources, traces, and their analysis."""
