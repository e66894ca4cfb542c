"""Chaos: inject faults around the engine for minutes, and then account for every step.

`python -m tools.chaos`, or `make chaos`. See docs/explanation/trust.md.
"""
