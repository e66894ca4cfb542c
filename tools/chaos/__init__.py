"""Chaos: break everything around the engine for minutes on end, and then account for every step.

`python -m tools.chaos`, or `make chaos`. See docs/explanation/trust.md.
"""
