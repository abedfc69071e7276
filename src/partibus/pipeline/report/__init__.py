"""Pages that people look at: one HTML file each, with its plots inside, which asks nobody for anything.

`page` makes the file of blocks, `plots` makes figures as SVG whose colours are those of the page, so that both follow
the reader's choice of a light or dark screen.
"""
