// The models shown, as a table that sorts.

const ROWS = 200; // put in at a time

const columns = [
  { name: "model", of: (i) => data.models[i], isName: true },
  { name: "author", of: (i) => data.authors[data.author[i]] },
  { name: "dataset", of: (i) => (data.dataset[i].length ? datasetsText(i) : null) },
  { name: "licence", of: (i) => data.licences[data.licence[i]] || null },
  { name: "relation", of: (i) => data.relations[data.relation[i]] },
  { name: "downloads", of: (i) => data.downloads[i], isNumber: true },
  { name: "similarity", of: (i) => similarities.get(i) ?? null, isNumber: true, needsModel: true },
];
let similarities = new Map(); // of the chosen model with its neighbours
let rowsShown = ROWS;

// By the column asked for, what is not known last either way; ties by name.
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
  for (const one of shown) models += one;
  box.querySelector("summary").textContent = `Models shown (${numberText(models)} of ${numberText(count)})`;
  if (!box.open) return;
  const used = columns.filter(({ needsModel }) => !needsModel || similarities.size);
  const kept = document.activeElement?.dataset?.sort;
  box.querySelector("thead").replaceChildren(element("tr", {}, ...used.map(headOf)));
  if (kept) box.querySelector(`[data-sort="${kept}"]`)?.focus();
  const found = sortedModels();
  box.querySelector("tbody").replaceChildren(...found.slice(0, rowsShown).map((i) => rowOf(i, used)));
  const more = found.length - rowsShown;
  part("more").hidden = more <= 0;
  part("more").textContent = `Show more (${numberText(more)} left)`;
}

function headOf({ name, isNumber }) {
  const isSorted = state.sort.column === name;
  const arrow = isSorted ? (state.sort.descends ? " ↓" : " ↑") : "";
  const button = element("button", { type: "button", className: "plain", "data-sort": name, onclick: () => sortBy(name, isNumber) }, name + arrow);
  const order = isSorted ? (state.sort.descends ? "descending" : "ascending") : "none";
  return element("th", { scope: "col", className: isNumber ? "number" : "", "aria-sort": order }, button);
}

function sortBy(column, isNumber) {
  const descends = state.sort.column === column ? !state.sort.descends : Boolean(isNumber);
  state.sort = { column, descends };
  rowsShown = ROWS;
  showTable();
  noteView();
}

function rowOf(i, used) {
  const cells = used.map(({ of, isName, isNumber, name }) => {
    const value = of(i);
    if (isName) {
      const button = element("button", { type: "button", className: "id", onclick: () => choose(i, true) }, value);
      return element("th", { scope: "row" }, button);
    }
    const text = value === null ? "–" : name === "similarity" ? value.toFixed(3) : isNumber ? numberText(value) : value;
    return element("td", { className: isNumber ? "number" : "" }, text);
  });
  return element("tr", { "aria-selected": String(i === state.selected) }, ...cells);
}

part("more").addEventListener("click", () => {
  rowsShown += ROWS;
  showTable();
});
part("shown").addEventListener("toggle", () => {
  rowsShown = ROWS;
  showTable();
  noteView();
});
