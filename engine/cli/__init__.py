"""The commands of `python -m engine`, one module per part of the program that they use.

Each command imports what it needs when it runs: SQLAlchemy takes half a second and pandas a whole one, and --help needs
neither.
"""
