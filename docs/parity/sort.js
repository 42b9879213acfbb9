// Sorts the tables of the parity pages by the column whose heading is clicked; again, the other way around.
document.addEventListener("click", (event) => {
  const heading = event.target.closest("th");
  const body = heading && heading.closest("table").tBodies[0];
  if (!body || !location.pathname.includes("/parity/")) return;
  const column = heading.cellIndex;
  const down = heading.dataset.order !== "down";
  heading.dataset.order = down ? "down" : "up";
  const key = (row) => {
    const text = row.cells[column].textContent.trim();
    const share = text.match(/^(\d+)\/(\d+)/);
    return share ? share[1] / share[2] : text === "" ? 2 : text;
  };
  const rows = [...body.rows].map((row) => [key(row), row]);
  const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b));
  rows.sort((a, b) => (down ? 1 : -1) * compare(a[0], b[0]));
  body.append(...rows.map(([, row]) => row));
});
