(() => {
  const { byId, open } = page;
  const table = byId("fleet"), filters = byId("filters");
  filters.hidden = byId("help").hidden = false;
  const rows = [...table.tBodies[0].rows].map((row) => ({
    row, link: row.querySelector("a"), text: row.textContent.toLowerCase(),
  }));
  const byRow = new Map(rows.map((entry) => [entry.row, entry]));

  // One stop of the Tab key, arrow keys inside.
  for (const entry of rows) {
    entry.link.tabIndex = -1;
    entry.link.setAttribute("aria-haspopup", "dialog");
  }
  let current = null, shown = rows;
  const select = (entry, focus) => {
    if (current) current.link.tabIndex = -1;
    current = entry;
    if (!entry) return;
    entry.link.tabIndex = 0;
    if (focus) entry.link.focus();
  };
  const ways = {
    ArrowUp: -1, ArrowDown: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity,
  };
  const entryOf = (event) => byRow.get(event.target.closest("tr"));
  table.addEventListener("keydown", (event) => {
    const entry = entryOf(event), way = ways[event.key];
    if (!entry || !way || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const place = Math.min(Math.max(shown.indexOf(entry) + way, 0), shown.length - 1);
    select(shown[place], true);
  });
  table.addEventListener("focusin", (event) => {
    const entry = entryOf(event);
    if (entry && entry !== current) select(entry, false);
  });
  table.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    open(link.hash.slice(1));
  });

  const filter = () => {
    const words = byId("text").value.toLowerCase().split(/\s+/).filter(Boolean);
    const driver = byId("driver").value, kernel = byId("kernel").value, state = byId("state").value;
    const matches = ({ row, text }) => {
      const data = row.dataset;
      const isState = state === "stale" ? "stale" in data : !state || data.state === state;
      return isState && (!driver || data.driver === driver) && (!kernel || data.kernel === kernel) &&
        words.every((word) => text.includes(word));
    };
    shown = [];
    for (const entry of rows) {
      entry.row.hidden = !matches(entry);
      if (!entry.row.hidden) shown.push(entry);
    }
    byId("shown").value = `${shown.length} of ${rows.length} rows match`;
    if (!current || current.row.hidden) select(shown[0] || null, false);
  };
  filters.addEventListener("input", filter);
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.addEventListener("reset", () => setTimeout(filter));

  filter();
  if (location.hash.startsWith("#host-")) open(location.hash.slice(1));
})();
