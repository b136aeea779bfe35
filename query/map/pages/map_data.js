// The models of the page, what is chosen, and which of them are shown. All text in `data` comes from strangers: it is
// only ever set as text.

const data = JSON.parse(document.getElementById("data").textContent);
const count = data.models.length;
const NONE = -1;

const state = {
  coloring: 0,
  hidden: data.colorings.map(() => new Set()), // of each colouring, the keys of the legend that are switched off
  datasets: new Set(), // places in data.datasets, NONE for models without; empty: all
  authors: new Set(),
  selected: NONE,
  hovered: NONE,
  theme: "system",
};

const searchable = data.models.map((id, i) => `${id} ${data.authors[data.author[i]]}`.toLowerCase());
const shown = new Uint8Array(count);
const isAdapter = data.relation.map((code) => data.relations[code] === "adapter");

// The order in which points are drawn: mixed, so that no group covers the others, and always the same.
const mixed = [...Array(count).keys()].sort((a, b) => (Math.imul(a, 2654435761) >>> 0) - (Math.imul(b, 2654435761) >>> 0));

function datasetsOf(i) {
  return data.dataset[i].length ? data.dataset[i] : [NONE];
}

function passesDatasets(i) {
  return !state.datasets.size || datasetsOf(i).some((code) => state.datasets.has(code));
}

function passesAuthors(i) {
  return !state.authors.size || state.authors.has(data.author[i]);
}

// The key of a point in the legend: the place of its group, "rest" for the groups in grey, "none" for no group.
function legendKey(i, coloring = data.colorings[state.coloring]) {
  if (coloring.kind !== "groups") return coloring.values[i] === null ? "none" : "scale";
  const code = coloring.codes[i];
  return code === NONE ? "none" : code < data.legend ? code : "rest";
}

function updateShown() {
  const hidden = state.hidden[state.coloring];
  for (let i = 0; i < count; i++) {
    shown[i] = passesDatasets(i) && passesAuthors(i) && !hidden.has(legendKey(i)) ? 1 : 0;
  }
}

// Models of each dataset among those by the chosen authors, and of each author among those on the chosen datasets.
function facetCounts() {
  const datasets = new Map();
  const authors = new Map();
  for (let i = 0; i < count; i++) {
    if (passesAuthors(i)) for (const code of datasetsOf(i)) datasets.set(code, (datasets.get(code) ?? 0) + 1);
    if (passesDatasets(i)) authors.set(data.author[i], (authors.get(data.author[i]) ?? 0) + 1);
  }
  return { datasets, authors };
}

// The nearest models on the map, as [place, cosine].
function neighboursOf(i) {
  const flat = data.neighbours[i];
  return Array.from({ length: flat.length / 2 }, (_, j) => [flat[2 * j], flat[2 * j + 1]]);
}

// Models whose id or author has every word in it; those whose name begins with it first, then by downloads.
function search(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  const found = [];
  for (let i = 0; i < count; i++) if (words.every((word) => searchable[i].includes(word))) found.push(i);
  const begins = (i) => Number(searchable[i].startsWith(words[0]) || searchable[i].includes(`/${words[0]}`));
  return found.sort((a, b) => begins(b) - begins(a) || (data.downloads[b] ?? 0) - (data.downloads[a] ?? 0) || a - b);
}

// ---- colours ----

function isDark() {
  return state.theme === "system" ? matchMedia("(prefers-color-scheme: dark)").matches : state.theme === "dark";
}

function theme() {
  return data.themes[isDark() ? "dark" : "light"];
}

const STEPS = 64; // colours that a scale is drawn with

function mixedColour(stops, share) {
  const place = share * (stops.length - 1);
  const left = Math.min(Math.floor(place), stops.length - 2);
  const part = (hex, at) => parseInt(hex.slice(at, at + 2), 16);
  const channels = [1, 3, 5].map((at) => {
    const from = part(stops[left], at);
    return Math.round(from + (part(stops[left + 1], at) - from) * (place - left));
  });
  return `rgb(${channels.join(" ")})`;
}

function shareOfScale({ kind, low, high }, value) {
  const along = kind === "log" ? (number) => Math.log(Math.max(number, low)) : (number) => number;
  return high > low ? Math.min(1, Math.max(0, (along(value) - along(low)) / (along(high) - along(low)))) : 0.5;
}

// Colour, shape (0: first turn of the palette, 1: second) and size of a point, in the theme of now.
function lookOf(i) {
  const colours = theme();
  const coloring = data.colorings[state.coloring];
  const key = legendKey(i, coloring);
  if (key === "none") return { colour: colours.unknown, turn: 0, size: 0.85, layer: 0 };
  if (key === "rest") return { colour: colours.rest, turn: 0, size: 0.9, layer: 1 };
  if (key === "scale") {
    const step = Math.round(shareOfScale(coloring, coloring.values[i]) * STEPS);
    return { colour: mixedColour(colours.scale, step / STEPS), turn: 0, size: 1, layer: 2 };
  }
  const many = colours.palette.length;
  return { colour: colours.palette[key % many], turn: Math.floor(key / many), size: 1, layer: 2 };
}

function shapeOf(i, turn) {
  return isAdapter[i] ? (turn ? "down" : "up") : turn ? "square" : "circle";
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

// What there is to say of a model, as [name, text].
function factsOf(i) {
  const names = data.dataset[i].map((code) => data.datasets[code]);
  const facts = [
    ["author", data.authors[data.author[i]]],
    [names.length > 1 ? "datasets" : "dataset", names.join(", ") || "none named"],
    ["relation", data.relations[data.relation[i]]],
    ["downloads", numberText(data.downloads[i])],
  ];
  for (const coloring of data.colorings) {
    if (["author", "dataset", "relation", "downloads"].includes(coloring.column)) continue;
    const code = coloring.kind === "groups" ? coloring.codes[i] : NONE;
    const text = coloring.kind === "groups"
      ? code === NONE ? coloring.none : coloring.groups[code][0]
      : valueText(coloring, coloring.values[i]);
    facts.push([coloring.column, text]);
  }
  return facts;
}
