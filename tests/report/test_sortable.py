"""Tables whose rows can be sorted."""

import re

from wildood.report.sortable import Block, Column, SortCell, sortable_table


def test_heads_are_shared_only_by_neighbours():
    columns = [Column("a", "x"), Column("b", "y"), Column("c", "y"), Column("d", "x")]
    html = sortable_table(columns, [Block("", [[SortCell("1", 1)] * 4])], "names")
    assert re.findall(r'colspan="(\d)">(\w)<', html) == [("1", "x"), ("2", "y"), ("1", "x")]
