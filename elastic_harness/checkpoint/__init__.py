"""Checkpoints: their files and the callback that writes them."""
