"""What is measured, and what it was measured on."""
