"""Recipes: each folder is a model you can copy, own and change."""
