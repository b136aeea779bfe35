// The models of the page, what is chosen, and which of them are shown. All text in `data` comes from strangers: it is
// only ever set as text.

const data = JSON.parse(document.getElementById("data").textContent);
const count = data.models.length;
const NONE = -1;

// What can be filtered by: of each model the places of its values in `names`; NONE for a model without.
const facets = [
  { name: "dataset", names: data.datasets, none: "no dataset named", of: (i) => (data.dataset[i].length ? data.dataset[i] : [NONE]) },
  { name: "author", names: data.authors, none: "", of: (i) => [data.author[i]] },
  { name: "licence", names: data.licences, none: "", of: (i) => [data.licence[i]] },
  { name: "relation", names: data.relations, none: "", of: (i) => [data.relation[i]] },
];

const state = {
  coloring: 0,
  hidden: data.colorings.map(() => new Set()), // of each colouring, the keys of the legend that are switched off
  chosen: Object.fromEntries(facets.map(({ name }) => [name, new Set()])), // of each facet; empty: all
  least: 0, // downloads
  area: null, // [left, bottom, right, top] of the map
  sort: { column: "downloads", descends: true },
  selected: NONE,
  hovered: NONE,
  theme: "system",
};

const searchable = data.models.map((id, i) => `${id} ${data.authors[data.author[i]]}`.toLowerCase());
const shown = new Uint8Array(count);
const isAdapter = data.relation.map((code) => data.relations[code] === "adapter");

// The order in which points are drawn: mixed, so that no group covers the others, and always the same.
const mixed = [...Array(count).keys()].sort((a, b) => (Math.imul(a, 2654435761) >>> 0) - (Math.imul(b, 2654435761) >>> 0));

// The key of a point in the legend: the place of its group, "rest" for the groups in grey, "none" for no group.
function legendKey(i, coloring = data.colorings[state.coloring]) {
  if (coloring.kind !== "groups") return coloring.values[i] === null ? "none" : "scale";
  const code = coloring.codes[i];
  return code === NONE ? "none" : code < data.legend ? code : "rest";
}

// Every filter that is set, by name; a model is shown where all of them let it pass.
function tests() {
  const set = facets.filter(({ name }) => state.chosen[name].size).map(({ name, of }) => [
    name, (i) => of(i).some((code) => state.chosen[name].has(code)),
  ]);
  const hidden = state.hidden[state.coloring];
  if (hidden.size) set.push(["legend", (i) => !hidden.has(legendKey(i))]);
  if (state.least) set.push(["downloads", (i) => (data.downloads[i] ?? -1) >= state.least]);
  if (state.area) {
    const [left, bottom, right, top] = state.area;
    set.push(["area", (i) => data.x[i] >= left && data.x[i] <= right && data.y[i] >= bottom && data.y[i] <= top]);
  }
  return set;
}

function updateShown() {
  const all = tests();
  for (let i = 0; i < count; i++) shown[i] = all.every(([, passes]) => passes(i)) ? 1 : 0;
}

// How many models have each value of a facet (or each key of the legend) among those that every other filter passes.
function countsOf(name, valuesOf) {
  const others = tests().filter(([other]) => other !== name);
  const counts = new Map();
  for (let i = 0; i < count; i++) {
    if (others.every(([, passes]) => passes(i))) for (const value of valuesOf(i)) counts.set(value, (counts.get(value) ?? 0) + 1);
  }
  return counts;
}

// The nearest models on the map, as [place, cosine, share of strangers at least as similar or null].
function neighboursOf(i) {
  const flat = data.neighbours[i];
  return Array.from({ length: flat.length / 2 }, (_, j) => [flat[2 * j], flat[2 * j + 1], data.backgrounds?.[i][j] ?? null]);
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

// Colour and size of a point, in the theme of now; what has no group is a ring in the colour of the text, in front.
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

function datasetsText(i) {
  return data.dataset[i].map((code) => data.datasets[code]).join(", ") || "none named";
}

// What there is to say of a model, as [name, text].
function factsOf(i) {
  const facts = [
    ["author", data.authors[data.author[i]]],
    [data.dataset[i].length > 1 ? "datasets" : "dataset", datasetsText(i)],
    ["relation", data.relations[data.relation[i]]],
    ["licence", data.licences[data.licence[i]] || "none named"],
    ["downloads", numberText(data.downloads[i])],
  ];
  for (const coloring of data.colorings) {
    if (["author", "dataset", "relation", "downloads", "licence"].includes(coloring.column)) continue;
    const code = coloring.kind === "groups" ? coloring.codes[i] : NONE;
    const text = coloring.kind === "groups"
      ? code === NONE ? coloring.none : coloring.groups[code][0]
      : valueText(coloring, coloring.values[i]);
    facts.push([coloring.column, text]);
  }
  return facts;
}
