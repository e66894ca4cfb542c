"""Optional parts on top of the library. Each needs an extra."""
