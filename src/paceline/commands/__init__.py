"""One module a command: its arguments, and what it prints."""
