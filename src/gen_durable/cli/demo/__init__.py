"""The demo: a shop (`machines`), its worker processes, a story with an accident in it, and a verdict."""
