// What a model's input embedding says of its training text, and models that were tuned on texts like a given one.

let tracing = null; // aborts the running trace

// ---- the words of a model ----

function tracePart(i) {
  const box = sectionOf("Its training text, by its embedding");
  const again = element("button", { type: "button", hidden: true, onclick: ask }, "Try again");
  const remark = element("p", { role: "status" });
  box.append(remark, again);
  ask();
  async function ask() {
    again.hidden = true;
    remark.textContent = "Reading its token rows …";
    tracing = new AbortController();
    const found = await asked(`trace/${data.ids[i]}`, tracing.signal);
    again.hidden = !found.error;
    remark.textContent = found.error ?? found.headline;
    if (!found.error) box.append(...traceFacts(found));
  }
  return box;
}

function traceFacts(found) {
  const share = found.share_met === null ? null : `${numberText(found.tokens_met)} of ${numberText(found.rows_read)} tokens that were read (${Math.round(100 * found.share_met)} %)`;
  const facts = [
    ["class", found.class], ["met", share],
    ["longest input", found.longest_input === null ? null : `${numberText(found.longest_input)} tokens`],
    ["pairs of texts", yesOrNo(found.pairs)], ["masked", yesOrNo(found.masked)],
    ["rate × decay", found.decay_times_rate ? shortNumber(found.decay_times_rate) : null],
    ["scripts", found.scripts.slice(0, 4).map(({ script, tokens }) => `${script} ${numberText(tokens)}`).join(", ") || null],
  ].filter(([, text]) => text !== null);
  const grid = element("dl", { className: "facts-grid" }, ...facts.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]));
  const words = found.words.map(({ word, score }) => element("li", { title: `z = ${score.toFixed(1)}` }, word));
  const list = words.length ? [element("ul", { className: "words", "aria-label": "Words that set it apart" }, ...words)] : [];
  return [...list, grid, ...found.notes.map((note) => element("p", { className: "remark" }, note))];
}

function yesOrNo(value) {
  return value === null ? null : value ? "yes" : "no";
}

// ---- ask by text ----

const askedText = part("asked-text");
const LONGEST_TEXT = 200_000; // bytes, as the server has it
let asking = null; // aborts the running question

function textSize() {
  return new TextEncoder().encode(askedText.value).length;
}

function showSize() {
  const size = textSize();
  const lines = askedText.value.split("\n").filter((line) => line.trim()).length;
  part("text-size").textContent = size > LONGEST_TEXT
    ? `${numberText(size)} bytes: at most ${numberText(LONGEST_TEXT)} are taken.`
    : `${numberText(lines)} ${lines === 1 ? "text" : "texts"}${lines && lines < 12 ? "; a few dozen say more" : ""}`;
  part("run-text").disabled = !asking && (!lines || size > LONGEST_TEXT);
}

async function askByText() {
  const { signal } = (asking = new AbortController());
  const started = Date.now();
  const message = part("text-message");
  const clock = setInterval(() => {
    message.textContent = `Running for ${Math.round((Date.now() - started) / 1000)} s …`;
  }, 1000);
  message.textContent = "Running …";
  part("run-text").textContent = "Stop";
  part("text-rows").replaceChildren();
  const found = await asked(`ask?base=${encodeURIComponent(data.base)}`, signal, askedText.value);
  clearInterval(clock);
  asking = null;
  part("run-text").textContent = "Ask";
  showSize();
  message.textContent = found.error ?? found.headline;
  if (!found.error) part("text-rows").replaceChildren(likelyTable(found), ...found.notes.map((note) => element("p", { className: "remark" }, note)));
}

function likelyTable({ models }) {
  const number = (value, digits) => element("td", { className: "number" }, value === null ? "–" : value.toFixed(digits));
  const rows = models.map((one) => element("tr", {},
    element("td", { className: "number" }, String(one.rank)), modelCell(data.ids[placeOfModel.get(one.model)], one.model),
    number(one.score, 1), element("td", { className: "number" }, one.p_value.toPrecision(2)),
    element("td", { className: "number" }, one.expected_by_chance.toPrecision(2)),
    number(one.by_vocabulary, 2), number(one.by_vectors, 2),
    element("td", {}, one.datasets.join(", ") || "–"), element("td", {}, one.author), element("td", {}, one.relation),
  ));
  return tableOf(["", "model", "score", "p", "expected by chance", "by its words", "by its vector", "datasets", "author", "relation"], rows, 10);
}

askedText.addEventListener("input", showSize);
part("run-text").addEventListener("click", () => (asking ? asking.abort() : askByText()));
part("open-text").addEventListener("click", () => openOverlay(overlay === "text" ? null : "text"));
showSize();
