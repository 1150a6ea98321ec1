"""Exact elasticity: the same bits at any number of workers. docs/decisions/0004-exact-elasticity.md says how."""
