"""The smallest recipe, and the one to copy: a small network on scikit-learn's scanned digits."""
