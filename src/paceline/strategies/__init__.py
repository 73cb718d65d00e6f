"""How ranks train together, one file a strategy."""
