"""Statements as values: text, parameters, and how to read the rows. No driver, no I/O."""
