"""What client operations and the engine share: statement runner, messages, notifier, completions, encryption."""
