"""Mutation of the Python code: random changes of single lines, and the tests that must notice them."""
