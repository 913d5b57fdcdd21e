"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const bodies = Array.from(table.tBodies, body => [body, Array.from(body.querySelectorAll("tr:not(.block)"))]);
  const heads = table.querySelectorAll("th[aria-sort]");
  const compare = (a, b) => a !== "" && b !== "" && !isNaN(a) && !isNaN(b) ? a - b : a.localeCompare(b);
  for (const head of heads) head.querySelector("button").addEventListener("click", () => {
    const first = head.dataset.first, second = first === "ascending" ? "descending" : "ascending";
    const order = { none: first, [first]: second, [second]: "none" }[head.getAttribute("aria-sort")];
    for (const other of heads) other.setAttribute("aria-sort", other === head ? order : "none");
    const value = row => row.cells[head.dataset.column].dataset.value;
    for (const [body, rows] of bodies) {
      const known = rows.filter(row => value(row) !== undefined), rest = rows.filter(row => value(row) === undefined);
      known.sort((a, b) => (order === "descending" ? -1 : 1) * compare(value(a), value(b)));
      body.append(...(order === "none" ? rows : known.concat(rest)));
    }
  });
}
