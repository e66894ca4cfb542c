"""The parts of a worker; `runtime.py` builds them, README.md explains them.

Each part is one role. `import-linter` checks which part may import which (pyproject.toml).
"""
