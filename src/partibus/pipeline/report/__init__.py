"""Report pages: one HTML file each, with its plots inside, which loads nothing else.

`page` makes the file of blocks. `plots` makes figures as SVG with the page's colours, so that both follow the reader's
choice of a light or dark screen.
"""
