"""The operations of the client, one per file. They take `Services`, and never import the engine."""
