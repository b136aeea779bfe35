// The page of one model, shown over map and table.

const placeOfModel = new Map(data.models.map((model, i) => [model, i]));
let overlay = null; // null, "model", "text", "sql" or "questions"
let answer = null; // the server's answer about the model on the page
let before = null; // the focused element before an overlay was opened
let predicting = null; // aborts the running prediction

function openOverlay(which) {
  if (which && !overlay) before = document.activeElement;
  overlay = which;
  for (const name of ["model", "text", "sql", "questions"]) part(`${name}-page`).hidden = name !== which;
  if (which) part(`${which}-page`).focus();
  else before?.focus?.();
  if (which === "model") loadModel(state.selected);
  if (which === "sql") loadTables();
  if (which === "questions") loadQuestions();
  showTitle();
  noteView();
}

function showTitle() {
  const whose = { model: data.models[state.selected], text: "Ask by text", sql: "SQL", questions: "Questions" }[overlay];
  document.title = whose ? `${whose} · ${part("title").textContent}` : part("title").textContent;
}

function openModel(i) {
  choose(i, true);
  openOverlay("model");
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape" && overlay && !event.target.matches?.("input, textarea")) openOverlay(null);
});
for (const name of ["text", "sql", "questions"]) part(`${name}-page`).querySelector(".close").addEventListener("click", () => openOverlay(null));

furtherContent.push((i) => [
  ...probablyPart(i),
  element("p", {}, element("button", { type: "button", id: "all-known", onclick: () => openModel(i) }, "All that is known of it")),
]);

// ---- on the card of a model that names no dataset: what it was probably tuned on ----

const predictedNow = new Map(); // the answers of this page, by row
const PAUSE = 400; // milliseconds: a model that is passed by is not asked about
let askedAbout = NONE; // the row whose prediction is being made
let askingCard = null; // aborts it
let pausing = 0;

function probablyPart(i) {
  if (facet.dataset.of(i)[0] !== NONE) return [];
  const box = element("p", { id: "probably", role: "status" });
  const stored = "predicted" in facet ? textOf("predicted", i) : null;
  if (stored !== null) box.textContent = `Probably tuned on ${stored} (${shareText(data.probabilities[i])})`;
  else {
    box.textContent = predictedNow.get(i) ?? "Predicting what it was tuned on …";
    if (!predictedNow.has(i)) predictForCard(i);
  }
  return [box];
}

function predictForCard(i) {
  if (askedAbout === i) return;
  stopForCard();
  askedAbout = i;
  pausing = setTimeout(async () => {
    askingCard = new AbortController();
    const { signal } = askingCard;
    const reply = await fetchAnswer(`predict/${data.ids[i]}`, signal);
    if (signal.aborted) return;
    const best = reply.predictions?.[0];
    predictedNow.set(i, best ? `Probably tuned on ${best.dataset} (${shareText(best.probability)})` : reply.error ?? reply.headline);
    askedAbout = NONE;
    if (state.selected === i && part("probably")) part("probably").textContent = predictedNow.get(i);
  }, PAUSE);
}

function stopForCard() {
  clearTimeout(pausing);
  askingCard?.abort();
  askedAbout = NONE;
}

whenChosen.push((i) => {
  if (askedAbout !== NONE && i !== askedAbout) stopForCard();
});

function shareText(share) {
  return share === null ? "probability not known" : `${Math.round(100 * share)} %`;
}
whenChosen.push((i) => {
  if (overlay !== "model") return;
  if (i === NONE) return openOverlay(null);
  loadModel(i);
  showTitle();
});
furtherAddress.push(["page", "model"]);
furtherWords.push({
  write: () => (overlay ? [["page", overlay]] : []),
  read: (words) => {
    const page = words.get("page");
    if (page !== overlay && (["text", "sql", "questions"].includes(page) || (page === "model" && placeOfModel.has(words.get("model"))))) {
      state.selected = placeOfModel.get(words.get("model")) ?? state.selected;
      openOverlay(page);
    } else if (!page && overlay) openOverlay(null);
  },
});

async function loadModel(i) {
  if (i === NONE || answer?.id === data.ids[i]) return;
  answer = { id: data.ids[i] };
  predicting?.abort();
  tracing?.abort();
  const page = part("model-page");
  page.replaceChildren(modelHead(i), element("p", { role: "status" }, "Loading …"));
  const reply = await fetchAnswer(`model/${data.ids[i]}`);
  if (answer?.id !== data.ids[i]) return; // another model was selected meanwhile
  answer = reply.error ? null : reply;
  const parts = reply.error ? [element("p", {}, reply.error)] : modelParts(reply, i);
  page.replaceChildren(modelHead(i), ...parts);
  page.scrollTop = 0;
}

function modelHead(i) {
  const address = { href: `${data.hub}/${data.models[i]}`, target: "_blank", rel: "noopener noreferrer" };
  const link = data.onHub[i] ? [element("a", address, "Open on the Hub")] : [];
  const close = element("button", { type: "button", className: "close", onclick: () => openOverlay(null) }, "Close");
  return element("div", { className: "row head" }, element("h2", { className: "id" }, data.models[i]), copyButton(data.models[i]), ...link, close);
}

function modelParts(known, i) {
  return [
    factsPart(known, i), changePart(known.layers), nearPart(known.neighbours, known.is_like_none), tracePart(i), predictedPart(known, i),
    lineagePart(known), depthPart(known.depth), resultsPart(known), cardPart(known),
  ].filter(Boolean);
}

function sectionOf(title, ...children) {
  return element("section", { "aria-label": title }, element("h3", {}, title), ...children);
}

// ---- facts ----

// A remark if the server sent only a part of a list.
function leftOut({ left }, name) {
  return left[name] ? [element("p", {}, `${numberText(left[name])} more are not shown.`)] : [];
}

function factsPart({ facts, left }, i) {
  const shownAlready = new Set(["author", "relation", "created", "likes", "relative_norm", "pipeline_tag", "head_class"]);
  const rows = [...factsOf(i), ...Object.entries(facts).filter(([name]) => !shownAlready.has(name)).map(([name, value]) => [
    name.replaceAll("_", " ").replace(/^is /, ""), factText(value) + (left[name] ? ` and ${numberText(left[name])} more` : ""),
  ])];
  return sectionOf("Facts", element("dl", { className: "facts-grid" }, ...rows.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)])));
}

function factText(value) {
  if (Array.isArray(value)) return value.map(factText).join(", ");
  if (typeof value === "number" && !Number.isInteger(value)) return String(Number(value.toPrecision(4)));
  return value === true ? "yes" : cellText(value);
}

// ---- where it changed ----

const MEASURED = {
  relative_norm: "norm of the change over the norm of the matrix",
  share: "share of all squared norms",
  energy: "share of the energy in the kept directions",
  rank_50: "rank that holds half of the energy",
  rank_90: "rank that holds 90 % of the energy",
};

function changePart(layers) {
  if (!layers) return sectionOf("Where it changed", element("p", {}, "Nothing is known of its changes."));
  const measures = Object.keys(MEASURED).filter((name) => layers.deltas.some((delta) => delta[name] !== null));
  const select = element("select", { id: "measure" }, ...measures.map((name) => element("option", { value: name }, MEASURED[name])));
  const grid = element("div", { className: "wide", tabIndex: 0, role: "region", "aria-label": "Changes by layer and family" });
  const show = () => grid.replaceChildren(changeGrid(layers, select.value));
  select.addEventListener("change", show);
  show();
  const label = element("label", { htmlFor: "measure" }, "Shown: ");
  return sectionOf("Where it changed", element("p", {}, layers.headline), ...layers.notes.map((note) => element("p", {}, note)), element("div", { className: "row" }, label, select), grid);
}

// Rows are layers, columns are families; darker cells changed more.
function changeGrid({ deltas, families: parts }, measure) {
  const families = [...new Set(parts.map(({ name }) => name.split(".").pop()))];
  const rows = Map.groupBy ? Map.groupBy(deltas, rowName) : grouped(deltas);
  // The palest cell has the smallest number, not zero.
  const numbersKnown = deltas.map((delta) => delta[measure]).filter((value) => value > 0);
  const [least, most] = [Math.min(...numbersKnown), Math.max(...numbersKnown)];
  const shareOf = (value) => (value > 0 ? (most > least ? 0.08 + (0.92 * (value - least)) / (most - least) : 0.5) : 0);
  const head = element("tr", {}, element("th", { scope: "col" }, "layer"), ...families.map((name) => element("th", { scope: "col" }, name)));
  const body = [...rows].map(([name, layerDeltas]) => element("tr", {}, element("th", { scope: "row" }, name), ...families.map((family) => {
    const value = layerDeltas.find((delta) => delta.family === family)?.[measure];
    const cell = element("td", { className: "number" }, value === undefined ? "" : value === null ? "–" : shortNumber(value));
    cell.style.setProperty("--share", String(shareOf(value ?? 0)));
    return cell;
  })));
  return element("table", { className: "heat" }, element("thead", {}, head), element("tbody", {}, ...body));
}

function rowName({ stack, layer }) {
  return stack ? `${stack} ${layer}` : String(layer);
}

function grouped(deltas) {
  const rows = new Map();
  for (const delta of deltas) rows.set(rowName(delta), [...(rows.get(rowName(delta)) ?? []), delta]);
  return rows;
}

function shortNumber(value) {
  return String(Number(value.toPrecision(3))); // three digits, however small the number is
}

// ---- neighbours ----

function modelCell(id, model) {
  const i = rowOfId.get(id);
  if (i === undefined) return element("td", {}, model);
  return element("td", {}, modelLink(i, () => openModel(i), {}, model));
}

function tableOf(names, rows, most = Infinity) {
  const head = element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)));
  const table = element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows.slice(0, most)));
  const box = element("div", { className: "wide", tabIndex: 0, role: "region", "aria-label": names.join(", ") }, table);
  if (rows.length <= most) return box;
  const more = element("button", { type: "button", className: "plain", onclick: () => {
    table.tBodies[0].append(...rows.slice(most));
    more.remove();
  } }, `Show ${numberText(rows.length - most)} more`);
  return element("div", {}, box, more);
}

function nearPart(neighbours, isLikeNone) {
  if (!neighbours.length) return sectionOf("Nearest models", element("p", {}, "None is stored: a copy of the base, or a model without a vector."));
  const rows = neighbours.map((neighbour) => element("tr", {},
    element("td", { className: "number" }, String(neighbour.rank)), modelCell(neighbour.id, neighbour.model),
    element("td", { className: "number" }, neighbour.similarity.toFixed(4)),
    element("td", { className: "number" }, neighbour.background === null ? "–" : rarityText(neighbour.background < 1.5 * neighbour.background_floor ? -neighbour.background_pairs : neighbour.background)),
    element("td", {}, neighbour.author), element("td", {}, neighbour.relation), element("td", {}, neighbour.datasets.join(", ") || "–"),
  ));
  const explanation = "By the cosine of their changes; the background is how many pairs of unrelated models (other author, no dataset in common) are at least as similar.";
  const alone = isLikeNone ? [element("p", {}, "No model of its base is like it: unrelated models are as similar as the nearest.")] : [];
  return sectionOf("Nearest models", ...alone, element("p", {}, explanation), tableOf(["", "model", "similarity", "background", "author", "relation", "datasets"], rows, 10));
}

// ---- predicted dataset ----

// A prediction that the atlas does not store is requested when the page opens, and aborted when another model is selected.
function predictedPart(known, i) {
  const box = sectionOf("Probably tuned on");
  if (known.predictions.length) box.append(predictedTable(known.predictions));
  else {
    const again = element("button", { type: "button", id: "predict", hidden: true, onclick: ask }, "Try again");
    const remark = element("p", { role: "status" });
    box.append(remark, again);
    ask();
    async function ask() {
      again.hidden = true;
      remark.textContent = "Predicting from the models of other authors; this can take a minute …";
      predicting = new AbortController();
      const reply = await fetchAnswer(`predict/${data.ids[i]}`, predicting.signal);
      if (reply.error) remark.textContent = reply.error;
      else {
        remark.textContent = [reply.headline, ...reply.notes].join(" ");
        box.append(predictedTable(reply.predictions));
      }
      again.hidden = !reply.error;
    }
  }
  return box;
}

function predictedTable(predictions) {
  const number = (value) => element("td", { className: "number" }, value === null ? "–" : value.toFixed(3));
  const rows = predictions.map((prediction) => element("tr", {},
    element("td", {}, prediction.dataset + (prediction.declared ? " (as it says itself)" : "")), number(prediction.probability), number(prediction.votes),
    element("td", { className: "number" }, String(prediction.authors)), number(prediction.vectors), number(prediction.head),
  ));
  return tableOf(["dataset", "probability", "votes", "authors", "by its vector", "by its head"], rows);
}

// ---- lineage ----

function lineagePart(known) {
  const { parents, children: descendants, declared } = known.lineage;
  const names = declared.length ? `Its card names ${declared.join(", ")}.` : "Its card names no parent.";
  const box = sectionOf("Lineage", element("p", {}, names));
  if (!parents.length) box.append(element("p", {}, "The atlas stores no lineage of it."));
  else {
    box.append(tableOf(["made from", "how", "probability", "weight", "left over", "card", "direction", "because"], parents.map((parent) => element("tr", {},
      modelCell(parent.id, parent.model), element("td", {}, parent.method ? `${parent.kind} (${parent.method})` : parent.kind),
      element("td", { className: "number" }, parent.probability === null ? "–" : parent.probability.toFixed(2)),
      element("td", { className: "number" }, parent.coefficient.toFixed(2)), element("td", { className: "number" }, parent.left.toFixed(3)),
      element("td", {}, parent.card), element("td", {}, parent.direction), element("td", {}, parent.because ?? ""),
    ))));
  }
  if (descendants.length) {
    box.append(element("p", {}, `Made from it: ${numberText(descendants.length + (known.left.children ?? 0))}.`), tableOf(["model", "how", "weight", "card"], descendants.map((child) => element("tr", {},
      modelCell(child.id, child.model), element("td", {}, child.kind), element("td", { className: "number" }, child.coefficient.toFixed(2)), element("td", {}, child.card),
    )), 10), ...leftOut(known, "children"));
  }
  return box;
}

// ---- results and card ----

function resultsPart(known) {
  const results = known.evaluations;
  if (!results.length) return null;
  const names = ["task", "dataset", "config", "split", "metric", "value"];
  return sectionOf("Results that it reports", tableOf(names, results.map((result) => element("tr", {}, ...names.map((name) => (
    element("td", { className: name === "value" ? "number" : "" }, cellText(result[name]))
  )))), 20), ...leftOut(known, "evaluations"));
}

function cardPart(known) {
  const { datasets, tags } = known;
  const written = datasets.map((dataset) => element("tr", {},
    element("td", {}, dataset.dataset ?? "–"), element("td", {}, dataset.spellings.join(", ")), element("td", {}, dataset.sources.join(", "))));
  const parts = written.length ? [tableOf(["dataset", "as written", "where"], written, 20)] : [];
  if (tags.length) parts.push(element("p", { className: "tags" }, `Tags: ${tags.join(" · ")}`), ...leftOut(known, "tags"));
  return parts.length ? sectionOf("Card", ...parts) : null;
}
