// What is asked of the database: a condition that filters, and statements of SQL. Both run under the lock of query sql.

// The server ends its work on a question that is aborted.
async function asked(address, signal) {
  try {
    const answer = await fetch(address, { signal });
    return await answer.json();
  } catch {
    return { error: signal?.aborted ? "Stopped." : "Nothing is served here any more: run query browse again." };
  }
}

// ---- a condition ----

let condition = ""; // the one that filters
let fulfil = null; // of each model, whether it does
let judging = null; // aborts the question about a condition
const rowOfId = new Map([...data.ids].map((id, i) => [id, i]));

async function filterWhere(text) {
  const wanted = text.trim();
  judging?.abort();
  part("where-told").textContent = "";
  if (!wanted) {
    [condition, fulfil] = ["", null];
    return refresh();
  }
  [condition, fulfil] = [wanted, null];
  part("where-told").textContent = "Running …";
  const { signal } = (judging = new AbortController());
  const told = await asked(`where?base=${encodeURIComponent(data.base)}&q=${encodeURIComponent(wanted)}`, signal);
  if (signal.aborted) return; // another was asked meanwhile
  part("where-told").textContent = told.error ?? "";
  if (told.error) {
    condition = "";
    return;
  }
  fulfil = new Uint8Array(count);
  for (const id of told.ids) if (rowOfId.has(id)) fulfil[rowOfId.get(id)] = 1;
  refresh();
}

furtherTests.push(["condition", () => fulfil && ((i) => fulfil[i]), () => {
  judging?.abort();
  [condition, fulfil] = ["", null];
  part("where").value = "";
  part("where-told").textContent = "";
}]);
furtherWords.push({
  write: () => (condition ? [["where", condition]] : []),
  read: (words) => {
    const text = words.get("where") ?? "";
    part("where").value = text;
    if (text && text !== condition) filterWhere(text);
  },
});
part("condition").addEventListener("submit", (event) => {
  event.preventDefault();
  filterWhere(part("where").value);
});
part("where").addEventListener("search", () => filterWhere(part("where").value));
part("where").addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault(); // a form that the policy lets nobody send
  filterWhere(part("where").value);
});

// ---- SQL ----

const statement = part("statement");
const LONGEST_CELL = 200; // characters

function cellText(value) {
  if (value === null) return "–";
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  return text.length > LONGEST_CELL ? `${text.slice(0, LONGEST_CELL)}…` : text;
}

// A table of rows; the names of models that are on the page can be chosen.
function rowsTable(names, rows) {
  const head = element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)));
  const body = rows.map((row) => element("tr", {}, ...row.map((value) => {
    const i = typeof value === "string" ? placeOfModel.get(value) : undefined;
    if (i === undefined) return element("td", { className: typeof value === "number" ? "number" : "" }, cellText(value));
    return element("td", {}, modelLink(i, () => openModel(i), {}, value));
  })));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

let running = null; // aborts the statement that runs
let lastRun = ""; // the statement that the address holds

async function runStatement() {
  lastRun = statement.value;
  noteView();
  running?.abort();
  const { signal } = (running = new AbortController());
  part("run").textContent = "Stop";
  part("sql-told").textContent = "Running …";
  const told = await asked(`sql?q=${encodeURIComponent(lastRun)}`, signal);
  if (running?.signal !== signal) return; // another runs by now
  running = null;
  part("run").textContent = "Run";
  part("sql-rows").replaceChildren(...(told.error ? [] : [rowsTable(told.columns, told.rows)]));
  const rows = told.error ? "" : `${numberText(told.rows.length)} ${told.rows.length === 1 ? "row" : "rows"}`;
  part("sql-told").textContent = told.error ?? (told.truncated ? `The first ${rows}; there are more.` : `${rows}.`);
  part("sql-csv").hidden = Boolean(told.error);
  part("sql-csv").onclick = () => saveCsv("rows.csv", [told.columns, ...told.rows]);
}

async function loadTables() {
  if (part("tables").childElementCount) return;
  const told = await asked("tables");
  part("tables").replaceChildren(...(told.tables ?? []).map(({ name, columns }) => element("details", {},
    element("summary", {}, name),
    element("dl", {}, ...columns.flatMap(([column, type]) => [element("dt", {}, column), element("dd", {}, type)])),
  )));
}

furtherWords.push({
  write: () => (overlay === "sql" && lastRun ? [["sql", lastRun]] : []),
  read: (words) => {
    const text = words.get("sql");
    if (overlay !== "sql" || !text || text === lastRun) return;
    statement.value = text;
    runStatement();
  },
});

part("run").addEventListener("click", () => (running ? running.abort() : runStatement()));
statement.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) runStatement();
});
part("open-sql").addEventListener("click", () => openOverlay(overlay === "sql" ? null : "sql"));
