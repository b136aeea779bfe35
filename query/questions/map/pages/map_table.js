// The shown models as a sortable table. Only visible rows are in the document.

const isNarrow = matchMedia("(max-width: 760px)"); // as in map.css
const BEYOND = 12; // rows above and below the visible ones

const columns = [
  { name: "model", of: (i) => data.models[i], isName: true },
  ...facets.filter(({ hidden }) => !hidden).map(({ name, label }) => ({ name, label, of: (i) => textOf(name, i) })),
  ...numbers.map((number) => ({ ...number, of: (i) => number.values[i], isNumber: true })),
  { name: "similarity", of: (i) => similarities.get(i) ?? null, isNumber: true, needsModel: true },
];
const scroller = part("shown").querySelector(".scroll");
let similarities = new Map(); // of the selected model and its neighbours
let sorted = []; // the shown models, in order
let used = [];
let rowHeight = 26; // pixels, until one was measured

// By the chosen column, unknown values last in both directions; ties by name.
function sortedModels() {
  const { of, isNumber } = columns.find(({ name }) => name === state.sort.column);
  const sign = state.sort.descends ? -1 : 1;
  const compare = (a, b) => (isNumber ? a - b : a < b ? -1 : a > b ? 1 : 0);
  const keyed = [];
  for (let i = 0; i < count; i++) if (shown[i]) keyed.push([of(i), i]);
  keyed.sort(([a, i], [b, j]) => {
    if (a === null || b === null) return (a === null) - (b === null) || i - j;
    return sign * compare(a, b) || i - j;
  });
  return keyed.map(([, i]) => i);
}

function showTable() {
  const box = part("shown");
  similarities = new Map(state.selected === NONE ? [] : neighboursOf(state.selected).map(([j, cosine]) => [j, cosine]));
  if (state.sort.column === "similarity" && !similarities.size) state.sort = { column: "downloads", descends: true };
  let models = 0;
  for (const isShown of shown) models += isShown;
  box.querySelector("summary").textContent = `Models shown (${numberText(models)} of ${numberText(count)})`;
  if (!box.open) return;
  used = columns.filter(({ needsModel }) => !needsModel || similarities.size);
  const focused = document.activeElement?.dataset?.sort;
  box.querySelector("thead").replaceChildren(element("tr", {}, ...used.map(headOf)));
  if (focused) box.querySelector(`[data-sort="${focused}"]`)?.focus();
  sorted = sortedModels();
  box.querySelector("table").setAttribute("aria-rowcount", String(sorted.length + 1));
  fillRows();
}

function fillRows() {
  const body = part("shown").querySelector("tbody");
  const focused = document.activeElement?.closest?.("tbody") === body ? Number(document.activeElement.dataset.place) : null;
  const first = Math.max(0, Math.floor(scroller.scrollTop / rowHeight) - BEYOND);
  const last = Math.min(sorted.length, Math.ceil((scroller.scrollTop + scroller.clientHeight) / rowHeight) + BEYOND);
  const rows = sorted.slice(first, last).map((i, index) => rowOf(i, first + index));
  body.replaceChildren(space(first), ...rows, space(sorted.length - last));
  if (rows.length && rows[0].offsetHeight && Math.abs(rows[0].offsetHeight - rowHeight) >= 1) {
    rowHeight = rows[0].offsetHeight;
    return fillRows();
  }
  if (focused !== null) body.querySelector(`[data-place="${focused}"]`)?.focus({ preventScroll: true });
  showOnward();
}

// Whether columns lie beyond the right edge, and a button that goes there.
function showOnward() {
  part("onward").hidden = !part("shown").open || scroller.scrollLeft + scroller.clientWidth > scroller.scrollWidth - 8;
}

part("onward").addEventListener("click", () => scroller.scrollBy({ left: 0.8 * scroller.clientWidth, behavior: "smooth" }));

function space(rows) {
  const row = element("tr", { className: "space", "aria-hidden": "true", hidden: rows <= 0 }, element("td", { colSpan: used.length }));
  row.style.height = `${Math.max(0, rows) * rowHeight}px`;
  return row;
}

function headOf({ name, label, isNumber }) {
  const isSorted = state.sort.column === name;
  const arrow = isSorted ? (state.sort.descends ? " ↓" : " ↑") : "";
  const button = element("button", { type: "button", className: "plain", "data-sort": name, onclick: () => sortBy(name, isNumber) }, (label ?? name) + arrow);
  const order = isSorted ? (state.sort.descends ? "descending" : "ascending") : "none";
  return element("th", { scope: "col", className: isNumber ? "number" : "", "aria-sort": order }, button);
}

function sortBy(column, isNumber) {
  const descends = state.sort.column === column ? !state.sort.descends : Boolean(isNumber);
  state.sort = { column, descends };
  scroller.scrollTop = 0;
  showTable();
  noteView();
}

function rowOf(i, index) {
  const cells = used.map((column) => {
    const value = column.of(i);
    if (column.isName) {
      const properties = { title: value, "data-place": String(index) };
      return element("th", { scope: "row" }, modelLink(i, () => chooseRow(i), properties, value));
    }
    const text = value === null ? "–" : column.name === "similarity" ? value.toFixed(3) : column.isNumber ? valueText(column, value) : value;
    return element("td", { className: column.isNumber ? "number" : "", title: text }, text);
  });
  return element("tr", { "aria-selected": String(i === state.selected), "aria-rowindex": String(index + 2) }, ...cells);
}

// On a phone, the selected model is described below the table.
function chooseRow(i) {
  choose(i, true);
  if (isNarrow.matches) part("selected").scrollIntoView({ block: "start" });
}

// ---- CSV ----

// As the commands write it (indexer/console/output.py).
const FORMULA = /^[=+\-@\t\r\n＝＋－＠]/; // a spreadsheet would evaluate such text
const HIDDEN = /[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]/gu; // halves of surrogate pairs, too

function escaped(character) {
  const code = character.charCodeAt(0);
  return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16)}`;
}

function csvCell(value) {
  if (value === null || value === undefined) return "";
  const text = (typeof value === "object" ? JSON.stringify(value) : String(value)).replace(HIDDEN, escaped);
  const safe = typeof value === "string" && FORMULA.test(text) ? `'${text}` : text;
  return /[",;\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

// A line with nothing in it would not be read as a row of one empty cell.
const csvLine = (row) => `${row.length === 1 ? csvCell(row[0]) || '""' : row.map(csvCell).join(",")}\n`;

// Saves rows of cells; the first row is the header.
function saveCsv(name, rows) {
  const lines = rows.map(csvLine);
  const address = URL.createObjectURL(new Blob(lines, { type: "text/csv;charset=utf-8" }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

part("csv").addEventListener("click", () => {
  const cell = (column, i) => (column.kind === "time" ? column.of(i) && new Date(column.of(i) * 1000).toISOString() : column.of(i));
  saveCsv("models.csv", [used.map(({ label, name }) => label ?? name), ...sorted.map((i) => used.map((column) => cell(column, i)))]);
});

// The arrow keys move to the next row, even if it is not in the document yet.
function moveInTable(event) {
  const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
  const index = Number(event.target.dataset?.place ?? Number.NaN);
  if (!step || Number.isNaN(index)) return;
  const next = Math.max(0, Math.min(sorted.length - 1, index + step));
  const head = part("shown").querySelector("thead").offsetHeight;
  const [top, bottom] = [next * rowHeight, (next + 1) * rowHeight + head];
  if (top < scroller.scrollTop) scroller.scrollTop = top;
  else if (bottom > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = bottom - scroller.clientHeight;
  fillRows();
  scroller.querySelector(`[data-place="${next}"]`)?.focus({ preventScroll: true });
  event.preventDefault();
}

let isFilling = false;

scroller.addEventListener("scroll", () => {
  showOnward();
  if (isFilling) return;
  isFilling = true;
  requestAnimationFrame(() => {
    isFilling = false;
    fillRows();
  });
});
scroller.addEventListener("keydown", moveInTable);
new ResizeObserver(() => part("shown").open && fillRows()).observe(scroller);
part("shown").addEventListener("toggle", () => {
  showTable();
  noteView();
});
