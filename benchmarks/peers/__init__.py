"""What the benchmarks of whole runs share: both sides' programs, their traces of steps, and the table.

Kept out of ``benchmarks/`` itself, where every file is a benchmark to run.
"""
