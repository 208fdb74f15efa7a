"""One file per study: its tables and its findings."""
