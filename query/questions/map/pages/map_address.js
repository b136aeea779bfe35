// The view in the address: selection, filters, colours, sorting and zoom, by names that stay valid when the atlas grows.
// Defaults are left out, and unknown words are ignored.

const opensTable = part("shown").open;

function viewInWords() {
  const words = [];
  if (state.selected !== NONE) words.push(["model", data.models[state.selected]]);
  if (state.coloring) words.push(["color", data.colorings[state.coloring].column]);
  for (const { name, names } of facets) {
    for (const code of state.chosen[name]) words.push([name, code === NONE ? "" : names[code]]);
  }
  for (const key of state.hidden[state.coloring]) words.push(["hide", hiddenName(key)]);
  for (const number of numbers) {
    const range = state.range[number.name];
    if (range) words.push([number.name, range.map((end) => endText(number, end)).join("..")]);
  }
  if (state.area) words.push(["area", state.area.map(short).join(",")]);
  if (view.scale !== view.whole) words.push(["at", [view.x, view.y, view.scale / view.whole].map(short).join(",")]);
  const { column, descends } = state.sort;
  if (column !== "downloads" || !descends) words.push(["sort", (descends ? "-" : "") + column]);
  if (part("shown").open !== opensTable) words.push(["table", part("shown").open ? "open" : "closed"]);
  if (state.theme !== "system") words.push(["theme", state.theme]);
  for (const { write } of furtherWords) words.push(...write());
  return words;
}

function short(number) {
  return String(Number(number.toPrecision(5)));
}

// A group by its name; the two special keys by words that are not valid names.
function hiddenName(key) {
  return typeof key === "number" ? `=${data.colorings[state.coloring].groups[key][0]}` : key;
}

let writing = 0;

// A movement of the map is written once, at its end.
function noteView(delay = 0) {
  clearTimeout(writing);
  writing = setTimeout(writeView, delay);
}

function writeView() {
  const words = viewInWords().map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
  const address = words.length ? `#${words.join("&")}` : location.pathname + location.search;
  // A page opened from a disk may not be allowed to change its address; the map works without it.
  try {
    history.replaceState(null, "", address);
  } catch {
    location.hash = words.join("&");
  }
}

function readView() {
  const parameters = new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B"));
  const coloring = data.colorings.findIndex(({ column }) => column === parameters.get("color"));
  state.coloring = Math.max(coloring, 0);
  coloringBox.value = String(state.coloring);
  clearFilters();
  for (const { name, names, none } of facets) {
    for (const value of parameters.getAll(name)) {
      const code = value === "" && none ? NONE : names.indexOf(value);
      if (code !== NONE || (value === "" && none)) state.chosen[name].add(code);
    }
  }
  const keys = new Map(legendEntries().map(([key]) => [hiddenName(key), key]));
  for (const value of parameters.getAll("hide")) if (keys.has(value)) state.hidden[state.coloring].add(keys.get(value));
  for (const number of numbers) state.range[number.name] = rangeOf(number, parameters.get(number.name));
  state.area = numbersOf(parameters.get("area"), 4);
  const sort = (parameters.get("sort") ?? "-downloads").match(/^(-?)(.*)$/);
  if (columns.some(({ name }) => name === sort[2])) state.sort = { column: sort[2], descends: sort[1] === "-" };
  if (["light", "dark"].includes(parameters.get("theme"))) state.theme = parameters.get("theme");
  if (["open", "closed"].includes(parameters.get("table"))) part("shown").open = parameters.get("table") === "open";
  for (const { read } of furtherWords) read(parameters);
  const at = numbersOf(parameters.get("at"), 3);
  const model = parameters.has("model") ? data.models.indexOf(parameters.get("model")) : NONE;
  forgetLooks();
  applyTheme();
  if (at && at[2] > 0) Object.assign(view, { x: at[0], y: at[1], scale: at[2] * view.whole });
  if (!parameters.has("model") || model !== NONE) state.selected = model;
  refresh();
  if (model !== NONE && !at) reveal(model);
}

// "50..2000", "50..", "..2000"; "50" alone is the minimum. Days are ISO dates.
function rangeOf(number, text) {
  const { kind } = number;
  const parse = (end) => {
    if (kind === "time") return Date.parse(`${end}T00:00:00Z`) / 1000;
    return Number.parseFloat(end);
  };
  const [low, high] = (text ?? "").split("..").map(parse);
  const range = [low, kind === "time" ? high + 86399 : high].map((end, which) => (Number.isFinite(end) ? end : which ? Infinity : -Infinity));
  return asFilter(number, range);
}

function numbersOf(text, many) {
  const numbers = (text ?? "").split(",").map(Number);
  return text && numbers.length === many && numbers.every(Number.isFinite) ? numbers : null;
}

// ---- start ----

canvas.setAttribute("aria-label", `Map of ${count} models`);
applyTheme();
fitCanvas();
new ResizeObserver(fitCanvas).observe(part("stage"));
addEventListener("hashchange", readView);
readView();
