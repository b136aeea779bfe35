// SQL: a condition that filters models, and statements. Both run in the sandbox of query sql. And the list of questions.

// The server stops working on an aborted request.
async function fetchAnswer(address, signal, text) {
  try {
    const answer = await fetch(address, text === undefined ? { signal } : { signal, method: "POST", body: text });
    return await answer.json();
  } catch {
    return { error: signal?.aborted ? "Stopped." : "Nothing is served here any more: run query browse again." };
  }
}

// ---- a condition ----

let condition = ""; // the active filter
let fulfil = null; // for each model, whether it satisfies the condition
let judging = null; // aborts the request for a condition
const rowOfId = new Map([...data.ids].map((id, i) => [id, i]));

async function filterWhere(text) {
  const wanted = text.trim();
  judging?.abort();
  part("where-message").textContent = "";
  if (!wanted) {
    [condition, fulfil] = ["", null];
    return refresh();
  }
  [condition, fulfil] = [wanted, null];
  part("where-message").textContent = "Running …";
  const { signal } = (judging = new AbortController());
  const answer = await fetchAnswer(`where?base=${encodeURIComponent(data.base)}&q=${encodeURIComponent(wanted)}`, signal);
  if (signal.aborted) return; // replaced by another request
  part("where-message").textContent = answer.error ?? "";
  if (answer.error) {
    condition = "";
    return;
  }
  fulfil = new Uint8Array(count);
  for (const id of answer.ids) if (rowOfId.has(id)) fulfil[rowOfId.get(id)] = 1;
  refresh();
}

furtherTests.push(["condition", () => fulfil && ((i) => fulfil[i]), () => {
  judging?.abort();
  [condition, fulfil] = ["", null];
  part("where").value = "";
  part("where-message").textContent = "";
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
  event.preventDefault(); // the page's policy forbids submitting forms
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

// A table of rows; names of models on the page are links.
function rowsTable(names, rows) {
  const head = element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)));
  const body = rows.map((row) => element("tr", {}, ...row.map((value) => {
    const i = typeof value === "string" ? placeOfModel.get(value) : undefined;
    if (i === undefined) return element("td", { className: typeof value === "number" ? "number" : "" }, cellText(value));
    return element("td", {}, modelLink(i, () => openModel(i), {}, value));
  })));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

let running = null; // aborts the running statement
let lastRun = ""; // the statement in the address

async function runStatement() {
  lastRun = statement.value;
  noteView();
  running?.abort();
  const { signal } = (running = new AbortController());
  part("run").textContent = "Stop";
  part("sql-message").textContent = "Running …";
  const answer = await fetchAnswer(`sql?q=${encodeURIComponent(lastRun)}`, signal);
  if (running?.signal !== signal) return; // replaced by another statement
  running = null;
  part("run").textContent = "Run";
  part("sql-rows").replaceChildren(...(answer.error ? [] : [rowsTable(answer.columns, answer.rows)]));
  const rows = answer.error ? "" : `${numberText(answer.rows.length)} ${answer.rows.length === 1 ? "row" : "rows"}`;
  part("sql-message").textContent = answer.error ?? (answer.truncated ? `The first ${rows}; there are more.` : `${rows}.`);
  const rowsFound = answer.error ? [] : modelsIn(answer);
  part("sql-map").hidden = !rowsFound.length;
  part("sql-map").textContent = `Show ${rowsFound.length === 1 ? "this model" : `these ${numberText(rowsFound.length)} models`} on the map`;
  part("sql-map").onclick = () => {
    filterByRows(lastRun, rowsFound);
    openOverlay(null);
  };
  part("sql-csv").hidden = Boolean(answer.error);
  part("sql-csv").onclick = () => saveCsv("rows.csv", [answer.columns, ...answer.rows]);
}

// The models that an answer names, or whose ids it has in a column model_id, as rows of this page.
function modelsIn({ columns: names, rows }) {
  const found = new Set();
  for (const row of rows) {
    row.forEach((value, column) => {
      const i = names[column] === "model_id" ? rowOfId.get(value) : placeOfModel.get(value);
      if (i !== undefined) found.add(i);
    });
  }
  return [...found];
}

let rowsOf = ""; // the statement whose models are shown alone
let isInRows = null; // for each model, whether it is among them

function filterByRows(text, rows) {
  rowsOf = text;
  isInRows = new Uint8Array(count);
  for (const i of rows) isInRows[i] = 1;
  refresh();
}

furtherTests.push(["SQL", () => isInRows && ((i) => isInRows[i]), () => ([rowsOf, isInRows] = ["", null])]);
furtherWords.push({
  write: () => (rowsOf ? [["rows", rowsOf]] : []),
  read: async (words) => {
    const text = words.get("rows") ?? "";
    if (!text || text === rowsOf) return;
    const answer = await fetchAnswer(`sql?q=${encodeURIComponent(text)}`);
    if (!answer.error) filterByRows(text, modelsIn(answer));
  },
});

async function loadTables() {
  if (part("tables").childElementCount) return;
  const answer = await fetchAnswer("tables");
  part("tables").replaceChildren(...(answer.tables ?? []).map(({ name, columns }) => element("details", {},
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

// ---- the list of questions ----

async function loadQuestions() {
  if (part("questions").childElementCount) return;
  const answer = await fetchAnswer("questions");
  part("questions").replaceChildren(...(answer.questions ?? []).flatMap(({ name, about, from }) => [
    element("dt", {}, element("code", {}, `query ${name}`)),
    element("dd", {}, from ? `${about} (${from})` : about),
  ]));
}

part("open-questions").addEventListener("click", () => openOverlay(overlay === "questions" ? null : "questions"));
