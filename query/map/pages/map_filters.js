// Filters, each of which counts what all the others let pass.

const MOST_LISTED = 100; // values of a facet before it asks for a part of the name

function makeFilter({ name: title, names, none, of }) {
  const chosen = state.chosen[title];
  const word = element("input", { type: "search", placeholder: "part of its name", "aria-label": `Find a ${title}` });
  const clear = element("button", { type: "button", className: "plain" }, "Clear");
  const options = element("div", { className: "options", role: "group", "aria-label": `Filter by ${title}` });
  const summary = element("summary");
  const box = element("details", {}, summary, element("div", { className: "row" }, word, clear), options);

  const show = () => {
    const models = countsOf(title, of);
    const asked = word.value.toLowerCase();
    const codes = [...names.keys(), ...(none ? [NONE] : [])];
    const text = (code) => (code === NONE ? none : names[code] || "none named");
    const fitting = codes
      .filter((code) => text(code).toLowerCase().includes(asked))
      .sort((a, b) => chosen.has(b) - chosen.has(a) || (models.get(b) ?? 0) - (models.get(a) ?? 0) || a - b);
    const entries = fitting.slice(0, MOST_LISTED).map((code) => {
      const tick = element("input", { type: "checkbox", checked: chosen.has(code), name: title, value: String(code) });
      tick.addEventListener("change", () => {
        if (tick.checked) chosen.add(code);
        else chosen.delete(code);
        refresh();
      });
      const number = element("span", { className: "number" }, numberText(models.get(code) ?? 0));
      return element("label", { className: "option" }, tick, element("span", {}, text(code)), number);
    });
    const more = fitting.length - entries.length;
    if (more > 0) entries.push(element("p", {}, `and ${numberText(more)} more: type a part of the name`));
    const kept = document.activeElement?.name === title ? document.activeElement.value : null;
    options.replaceChildren(...entries);
    if (kept !== null) options.querySelector(`input[value="${kept}"]`)?.focus();
    summary.textContent = `Filter by ${title}` + (chosen.size ? ` (${chosen.size} chosen)` : "");
    clear.hidden = !chosen.size;
  };
  word.addEventListener("input", show);
  clear.addEventListener("click", () => {
    chosen.clear();
    word.value = "";
    refresh();
  });
  part("filters").append(box);
  return show;
}

function makeLeast() {
  const number = element("input", { type: "number", min: "0", step: "1", placeholder: "0", id: "least" });
  const row = element("div", { className: "row" }, element("label", { htmlFor: "least" }, "Downloads, at least"), number);
  number.addEventListener("input", () => {
    state.least = Math.max(0, Math.floor(Number(number.value) || 0));
    refresh();
  });
  part("filters").append(row);
  return () => {
    if (document.activeElement !== number) number.value = state.least ? String(state.least) : "";
  };
}

// All that narrows what is shown, in words, and one button that ends it.
function showActive() {
  const told = facets.filter(({ name }) => state.chosen[name].size).map(({ name }) => name);
  if (state.least) told.push("downloads");
  if (state.area) told.push("area");
  if (state.hidden[state.coloring].size) told.push("legend");
  part("active").hidden = !told.length;
  part("active").querySelector("span").textContent = `Narrowed by ${told.join(", ")}`;
}

part("clear").addEventListener("click", () => {
  clearFilters();
  refresh();
});

function clearFilters() {
  for (const { name } of facets) state.chosen[name].clear();
  for (const hidden of state.hidden) hidden.clear();
  Object.assign(state, { least: 0, area: null });
}

const filters = [...facets.filter(({ names }) => names.length > 1).map(makeFilter), makeLeast(), showActive];
