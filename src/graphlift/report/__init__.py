"""Reports: what was compiled, why it broke, what it cost.

In: regions and events of the real compile machinery. Out: `Explanation`, tables, generated documentation pages.
Always: reporting changes nothing about what is compiled.
"""
