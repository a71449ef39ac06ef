"""Draw grids of ranks and tables, as text or HTML, from axis names and arrays.

Public names, by file::

    table.py        format_table, format_items
    grid_text.py    draw_positions
    node_boxes.py   draw_node_boxes
    page.py         draw_page, notebook_html
"""
