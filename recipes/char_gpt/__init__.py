"""A recipe: a small transformer that writes text letter by letter."""
