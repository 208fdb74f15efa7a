"""The pages of studies and other commands: one file each, with its tables and findings."""
