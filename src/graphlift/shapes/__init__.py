"""Symbolic sizes: expressions over symbols, the table of what is known of them, and torch's SymInt in their terms."""
