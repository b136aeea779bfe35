// The models of the page, the state of the filters, and which models are shown. Strings in `data` come from the Hub and
// must only be set as text.

const data = globalThis.pageData ?? JSON.parse(document.getElementById("data").textContent);
const count = data.models.length;
const NONE = -1;

// Properties to filter by: for each model the indices of its values in `names`, or NONE.
const facets = data.facets.map(({ codes, many, ...facet }) => ({
  ...facet, of: many ? (i) => (codes[i].length ? codes[i] : [NONE]) : (i) => [codes[i]],
}));
const facet = Object.fromEntries(facets.map((item) => [item.name, item]));
const { numbers } = data; // each with a value for every model, null if not known
for (const coloring of data.colorings) {
  if (coloring.kind !== "number") continue;
  const { kind, low, high, values } = numbers.find(({ name }) => name === coloring.column);
  Object.assign(coloring, { kind, low, high, values });
}

const state = {
  coloring: 0,
  hidden: data.colorings.map(() => new Set()), // for each colouring, the keys of the legend that are switched off
  chosen: Object.fromEntries(facets.map(({ name }) => [name, new Set()])), // for each facet; empty: all
  range: Object.fromEntries(numbers.map(({ name }) => [name, null])), // for each number: null, or the range
  area: null, // [left, bottom, right, top] of the map
  sort: { column: "downloads", descends: true },
  selected: NONE,
  hovered: NONE,
  theme: "system",
};

const authorOf = (i) => facet.author.names[facet.author.of(i)[0]] ?? "";
const searchable = data.models.map((id, i) => `${id} ${authorOf(i)}`.toLowerCase());
const shown = new Uint8Array(count).fill(1);
const adapterCode = facet.relation.names.indexOf("adapter");
const isAdapter = data.models.map((_, i) => facet.relation.of(i)[0] === adapterCode);

// Whether a model is on the map: duplicates and copies of the base are not.
function isPlaced(i) {
  return Number.isFinite(data.x[i]);
}

// The order in which points are drawn: fixed but mixed, so that no group covers the others.
const mixed = [...Array(count).keys()].filter(isPlaced)
  .map((i) => [Math.imul(i, 2654435761) >>> 0, i]).sort(([a], [b]) => a - b).map(([, i]) => i);

// The key of a point in the legend: the index of its group, "rest" for groups in grey, "none" for no group.
function legendKey(i, coloring = data.colorings[state.coloring]) {
  if (coloring.kind !== "groups") return coloring.values[i] === null ? "none" : "scale";
  const code = coloring.codes[i];
  return code === NONE ? "none" : code < data.legend ? code : "rest";
}

// Further filters of a page, as [name, function that returns null or a test of a model, function that removes it].
const furtherTests = [];

// Further state that a page keeps in its address: { write() returns words, read(parameters) }.
const furtherWords = [];

// Every active filter, by name; a model is shown if it passes all of them.
function tests() {
  const set = facets.filter(({ name }) => state.chosen[name].size).map(({ name, of }) => [
    name, (i) => of(i).some((code) => state.chosen[name].has(code)),
  ]);
  for (const { name, values } of numbers.filter(({ name }) => state.range[name])) {
    const [low, high] = state.range[name];
    set.push([name, (i) => values[i] !== null && values[i] >= low && values[i] <= high]);
  }
  const hidden = state.hidden[state.coloring];
  if (hidden.size) set.push(["legend", (i) => !hidden.has(legendKey(i))]);
  if (state.area) {
    const [left, bottom, right, top] = state.area;
    set.push(["area", (i) => data.x[i] >= left && data.x[i] <= right && data.y[i] >= bottom && data.y[i] <= top]);
  }
  for (const [name, testOf] of furtherTests) if (testOf()) set.push([name, testOf()]);
  return set;
}

// For each model how many filters it fails (at most 2 are counted), and which one if it is only one. So every filter can
// count what passes all the others after a single pass over the models.
const stopped = new Uint8Array(count);
const stoppedBy = new Uint8Array(count);
let testNames = [];

function updateShown() {
  const all = tests();
  testNames = all.map(([name]) => name);
  for (let i = 0; i < count; i++) {
    stopped[i] = 0;
    for (let index = 0; index < all.length && stopped[i] < 2; index++) {
      if (all[index][1](i)) continue;
      stopped[i] += 1;
      stoppedBy[i] = index;
    }
    shown[i] = stopped[i] ? 0 : 1;
  }
}

// Whether a model passes every filter except `name`.
function passesOthers(i, name) {
  return !stopped[i] || (stopped[i] === 1 && testNames[stoppedBy[i]] === name);
}

// How many of the models that pass every other filter have each value of a facet (or each key of the legend).
function countsOf(name, valuesOf) {
  const counts = new Map();
  for (let i = 0; i < count; i++) {
    if (passesOthers(i, name)) for (const value of valuesOf(i)) counts.set(value, (counts.get(value) ?? 0) + 1);
  }
  return counts;
}

// The nearest models, as [row, cosine, background or null] (rarityText).
function neighboursOf(i) {
  const flat = data.neighbours[i];
  return Array.from({ length: flat.length / 2 }, (_, j) => [flat[2 * j], flat[2 * j + 1], data.backgrounds?.[i][j] ?? null]);
}

// The models that one was made from, as [row or NONE, name, how]; empty without lineage.
function parentsOf(i) {
  return data.parents?.[i] ?? [];
}

// The models on the page that were made from one, as [row, name, how].
const children = new Map();
data.parents?.forEach((parents, i) => {
  for (const [row, , how] of parents) {
    if (row === NONE) continue;
    if (!children.has(row)) children.set(row, []);
    children.get(row).push([i, data.models[i], how]);
  }
});

// Models whose id or author contains every word; names that begin with it first, then by downloads.
function search(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  const matches = [];
  for (let i = 0; i < count; i++) if (words.every((word) => searchable[i].includes(word))) matches.push(i);
  const begins = (i) => Number(searchable[i].startsWith(words[0]) || searchable[i].includes(`/${words[0]}`));
  const downloads = numbers.find(({ name }) => name === "downloads").values;
  return matches.sort((a, b) => begins(b) - begins(a) || (downloads[b] ?? 0) - (downloads[a] ?? 0) || a - b);
}

// ---- colours ----

const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  return state.theme === "system" ? systemIsDark.matches : state.theme === "dark";
}

function theme() {
  return data.themes[isDark() ? "dark" : "light"];
}

const STEPS = 64; // colours that a scale is drawn with

function mixedColour(stops, share) {
  const position = share * (stops.length - 1);
  const left = Math.min(Math.floor(position), stops.length - 2);
  const part = (hex, at) => parseInt(hex.slice(at, at + 2), 16);
  const channels = [1, 3, 5].map((at) => {
    const from = part(stops[left], at);
    return Math.round(from + (part(stops[left + 1], at) - from) * (position - left));
  });
  return `rgb(${channels.join(" ")})`;
}

function shareOfScale({ kind, low, high }, value) {
  const along = kind === "log" ? (number) => Math.log(Math.max(number, low)) : (number) => number;
  return high > low ? Math.min(1, Math.max(0, (along(value) - along(low)) / (along(high) - along(low)))) : 0.5;
}

// Colour and size of a point in the current theme; without a group it is a ring in the colour of the text, in front.
function lookOf(i) {
  const colours = theme();
  const coloring = data.colorings[state.coloring];
  const key = legendKey(i, coloring);
  if (key === "none") return { colour: colours.ink, isRing: true, size: 1, layer: 2 };
  if (key === "rest") return { colour: colours.rest, isRing: false, size: 0.9, layer: 0 };
  if (key === "scale") {
    const step = Math.round(shareOfScale(coloring, coloring.values[i]) * STEPS);
    return { colour: mixedColour(colours.scale, step / STEPS), isRing: false, size: 1, layer: 1 };
  }
  return { colour: colours.palette[key], isRing: false, size: 1, layer: 1 };
}

function shapeOf(i) {
  return isAdapter[i] ? "up" : "circle";
}

// ---- words ----

function numberText(value) {
  return value === null ? "not known" : value.toLocaleString("en");
}

function valueText({ kind }, value) {
  if (value === null) return "not known";
  if (kind === "time") return new Date(value * 1000).toISOString().slice(0, 10);
  return Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(4)));
}

// The values of a facet as text, null if a model has none.
function textOf(name, i) {
  const codes = facet[name].of(i).filter((code) => code !== NONE);
  return codes.map((code) => facet[name].names[code]).join(", ") || null;
}

// The facts about a model, as [name, text].
function factsOf(i) {
  const facts = facets.filter(({ name, hidden }) => !hidden || textOf(name, i)).map(({ name, none, label, of }) => [
    (label ?? name) + (of(i).length > 1 ? "s" : ""), textOf(name, i) ?? none,
  ]);
  for (const number of numbers.filter(({ name, values }) => values[i] !== null || name === "downloads")) facts.push([number.label ?? number.name, valueText(number, number.values[i])]);
  for (const coloring of data.colorings) {
    if (coloring.column in facet || coloring.column in state.range) continue;
    const code = coloring.kind === "groups" ? coloring.codes[i] : NONE;
    const text = coloring.kind === "groups"
      ? code === NONE ? coloring.none : coloring.groups[code][0]
      : valueText(coloring, coloring.values[i]);
    facts.push([coloring.column, text]);
  }
  return facts;
}
