"""Machines that are shipped with the library, each with what it needs as an extra."""
