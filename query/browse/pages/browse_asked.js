// What is asked of the database: a condition that filters, and statements of SQL. Both run under the lock of query sql.

async function asked(address) {
  try {
    const answer = await fetch(address);
    return await answer.json();
  } catch {
    return { error: "Nothing is served here any more: run query browse again." };
  }
}

// ---- a condition ----

let condition = ""; // the one that filters
let fulfil = null; // of each model, whether it does
const rowOfId = new Map([...data.ids].map((id, i) => [id, i]));

async function filterWhere(text) {
  const wanted = text.trim();
  part("where-told").textContent = "";
  if (!wanted) {
    [condition, fulfil] = ["", null];
    return refresh();
  }
  [condition, fulfil] = [wanted, null];
  part("where-told").textContent = "Asking …";
  const told = await asked(`where?base=${encodeURIComponent(data.base)}&q=${encodeURIComponent(wanted)}`);
  part("where-told").textContent = told.error ?? "";
  if (condition !== wanted) return; // another was asked meanwhile
  if (told.error) {
    condition = "";
    return;
  }
  fulfil = new Uint8Array(count);
  for (const id of told.ids) if (rowOfId.has(id)) fulfil[rowOfId.get(id)] = 1;
  refresh();
}

furtherTests.push(["condition", () => fulfil && ((i) => fulfil[i]), () => {
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
    return element("td", {}, element("button", { type: "button", className: "plain id", onclick: () => openModel(i) }, value));
  })));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

async function runStatement() {
  part("run").disabled = true;
  part("sql-told").textContent = "Asking …";
  const told = await asked(`sql?q=${encodeURIComponent(statement.value)}`);
  part("run").disabled = false;
  part("sql-rows").replaceChildren(...(told.error ? [] : [rowsTable(told.columns, told.rows)]));
  const rows = told.error ? "" : `${numberText(told.rows.length)} ${told.rows.length === 1 ? "row" : "rows"}`;
  part("sql-told").textContent = told.error ?? (told.truncated ? `The first ${rows}; there are more.` : `${rows}.`);
}

part("run").addEventListener("click", runStatement);
statement.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) runStatement();
});
part("open-sql").addEventListener("click", () => openOverlay(overlay === "sql" ? null : "sql"));
