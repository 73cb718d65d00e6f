"""What a run leaves behind: a folder that reports read."""
