(() => {
  const { byId, open } = page;
  const table = byId("matrix"), filters = byId("filters");
  const rows = [...table.tBodies[0].rows];
  const kernels = [...table.tHead.rows[1].cells];
  const groups = [...table.tHead.rows[0].cells].slice(1);
  const cellsOf = (row) => [...row.cells].slice(1);
  filters.hidden = byId("help").hidden = false;

  // A grid in the sense of ARIA: one stop of the Tab key, arrow keys inside.
  table.setAttribute("role", "grid");
  for (const row of rows) {
    for (const cell of cellsOf(row)) {
      cell.setAttribute("role", "gridcell");
      const link = cell.querySelector("a");
      (link || cell).tabIndex = -1;
      if (link) link.setAttribute("aria-haspopup", "dialog");
    }
  }
  const target = (cell) => cell.querySelector("a") || cell;
  let current = null;
  const select = (cell, focus) => {
    if (current) target(current).tabIndex = -1;
    current = cell;
    if (!cell) return;
    target(cell).tabIndex = 0;
    if (focus) target(cell).focus();
  };

  const isShown = (element) => !element.hidden;
  const shownRows = () => rows.filter(isShown);
  const move = (cell, down, right) => {
    const lines = shownRows();
    const line = lines.indexOf(cell.parentElement);
    const row = lines[Math.min(Math.max(line + down, 0), lines.length - 1)];
    const places = cellsOf(cell.parentElement).filter(isShown);
    const place = Math.min(Math.max(places.indexOf(cell) + right, 0), places.length - 1);
    select(cellsOf(row).filter(isShown)[place], true);
  };
  const ways = {
    ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
    Home: [0, -Infinity], End: [0, Infinity], PageUp: [-Infinity, 0], PageDown: [Infinity, 0],
  };
  table.addEventListener("keydown", (event) => {
    const cell = event.target.closest("td");
    const way = ways[event.key];
    if (!cell || !way || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    move(cell, ...way);
  });
  table.addEventListener("focusin", (event) => {
    const cell = event.target.closest("td");
    if (cell && cell !== current) select(cell, false);
  });

  table.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    open(link.hash.slice(1));
  });

  const filter = () => {
    const words = byId("text").value.toLowerCase().split(/\s+/).filter(Boolean);
    const driver = byId("driver").value, distro = byId("distro").value, state = byId("state").value;
    const matches = (cell) => (!state || cell.dataset.state === state) &&
      words.every((word) => cell.dataset.text.toLowerCase().includes(word));
    const columnShown = kernels.map((head) => !distro || head.dataset.distro === distro);
    const hits = rows.map((row) => cellsOf(row).map((cell, place) => columnShown[place] &&
      (!driver || row.dataset.driver === driver) && matches(cell)));
    const narrow = Boolean(state || words.length);
    const columnHit = kernels.map((_, place) => columnShown[place] &&
      (!narrow || hits.some((row) => row[place])));
    let count = 0;
    rows.forEach((row, line) => {
      row.hidden = !hits[line].some(Boolean);
      cellsOf(row).forEach((cell, place) => {
        cell.hidden = !columnHit[place];
        cell.style.opacity = hits[line][place] ? "" : ".35";
        if (hits[line][place]) count += 1;
      });
    });
    kernels.forEach((head, place) => { head.hidden = !columnHit[place]; });
    for (const group of groups) {
      const own = kernels.filter((head) => head.dataset.distro === group.dataset.distro && isShown(head));
      group.hidden = !own.length;
      group.colSpan = Math.max(own.length, 1);
    }
    byId("shown").value = `${count} of ${rows.length * kernels.length} cells match`;
    const first = shownRows().flatMap(cellsOf).find(isShown);
    if (!current || current.hidden || current.parentElement.hidden) select(first || null, false);
  };
  filters.addEventListener("input", filter);
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.addEventListener("reset", () => setTimeout(filter));

  filter();
  if (location.hash.startsWith("#cell-")) open(location.hash.slice(1));
})();
