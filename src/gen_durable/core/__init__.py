"""What client operations and the engine share: requests, messages, notifier, completions, payload encryption."""
