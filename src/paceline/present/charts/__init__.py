"""Charts of pages: one function per chart, registered for a section and found by walking this package."""
