// Filters, each with counts of the models that pass all the others.

const MOST_LISTED = 100; // values of a facet that are listed without a search
const FEW = 3; // with so few values there is no search box

function makeFilter({ name: title, label = title, names, none, of, opens: isOpen }) {
  const chosen = state.chosen[title];
  const word = element("input", { type: "search", placeholder: "part of its name", "aria-label": `Find a ${label}` });
  const clear = element("button", { type: "button", className: "plain" }, "Clear");
  const options = element("div", { className: "options", role: "group", "aria-label": `Filter by ${label}` });
  const summary = element("summary");
  const box = element("details", { open: Boolean(isOpen) }, summary, element("div", { className: "row" }, word, clear), options);

  const show = (opens = false) => {
    summary.textContent = `Filter by ${label}` + (chosen.size ? ` (${chosen.size} chosen)` : "");
    clear.hidden = !chosen.size;
    word.hidden = names.length <= FEW && !word.value;
    if (!box.open && !opens) return;
    const models = countsOf(title, of);
    const most = Math.max(1, ...models.values());
    const typed = word.value.toLowerCase();
    const codes = [...names.keys(), ...(none ? [NONE] : [])];
    const text = (code) => (code === NONE ? none : names[code]);
    const fitting = codes
      .filter((code) => text(code).toLowerCase().includes(typed))
      .sort((a, b) => chosen.has(b) - chosen.has(a) || (models.get(b) ?? 0) - (models.get(a) ?? 0) || a - b);
    const entries = fitting.slice(0, MOST_LISTED).map((code) => {
      const tick = element("input", { type: "checkbox", checked: chosen.has(code), name: title, value: String(code) });
      tick.addEventListener("change", () => {
        if (tick.checked) chosen.add(code);
        else chosen.delete(code);
        refresh();
      });
      const number = element("span", { className: "number" }, numberText(models.get(code) ?? 0));
      const option = element("label", { className: "option" }, tick, element("span", {}, text(code)), number);
      option.style.setProperty("--share", String((models.get(code) ?? 0) / most));
      return option;
    });
    const more = fitting.length - entries.length;
    if (more > 0) entries.push(element("p", {}, `and ${numberText(more)} more: type a part of the name`));
    const focused = document.activeElement?.name === title ? document.activeElement.value : null;
    options.replaceChildren(...entries);
    if (focused !== null) options.querySelector(`input[value="${focused}"]`)?.focus();
  };
  summary.addEventListener("click", () => show(!box.open));
  word.addEventListener("input", () => show());
  clear.addEventListener("click", () => {
    chosen.clear();
    word.value = "";
    refresh();
  });
  part("filters").append(box);
  return show;
}

// The active filters in words, and a button that removes them.
function showActive() {
  const active = facets.filter(({ name }) => state.chosen[name].size).map(({ name }) => name);
  active.push(...numbers.filter(({ name }) => state.range[name]).map(({ name }) => name));
  if (state.area) active.push("area");
  if (state.hidden[state.coloring].size) active.push("legend");
  for (const [name, testOf] of furtherTests) if (testOf()) active.push(name);
  part("active").hidden = !active.length;
  part("active").querySelector("span").textContent = `Narrowed by ${active.join(", ")}`;
}

part("clear").addEventListener("click", () => {
  clearFilters();
  refresh();
});

function clearFilters() {
  for (const { name } of facets) state.chosen[name].clear();
  for (const hidden of state.hidden) hidden.clear();
  for (const { name } of numbers) state.range[name] = null;
  state.area = null;
  for (const [, , clear] of furtherTests) clear();
}

const usable = facets.filter(({ names }) => names.length > 1);
const filters = [
  ...usable.filter(({ follows }) => !follows).map(makeFilter),
  ...numbers.filter(({ low, high }) => high > low).map(makeHistogram),
  ...usable.filter(({ follows }) => follows).map(makeFilter), showActive,
];
