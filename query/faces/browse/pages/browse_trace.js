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
    const reply = await fetchAnswer(`trace/${data.ids[i]}`, tracing.signal);
    again.hidden = !reply.error;
    remark.textContent = reply.error ?? reply.headline;
    if (!reply.error) box.append(...traceFacts(reply));
  }
  return box;
}

function traceFacts(reply) {
  const share = reply.share_met === null ? null : `${numberText(reply.tokens_met)} of ${numberText(reply.rows_read)} tokens that were read (${Math.round(100 * reply.share_met)} %)`;
  const facts = [
    ["class", reply.class], ["met", share],
    ["longest input", reply.longest_input === null ? null : `${numberText(reply.longest_input)} tokens`],
    ["pairs of texts", yesOrNo(reply.pairs)], ["masked", yesOrNo(reply.masked)],
    ["rate × decay", reply.decay_times_rate ? shortNumber(reply.decay_times_rate) : null],
    ["scripts", reply.scripts.slice(0, 4).map(({ script, tokens }) => `${script} ${numberText(tokens)}`).join(", ") || null],
  ].filter(([, text]) => text !== null);
  const grid = element("dl", { className: "facts-grid" }, ...facts.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]));
  const words = reply.words.map(({ word, score }) => element("li", { title: `z = ${score.toFixed(1)}` }, word));
  const list = words.length ? [element("ul", { className: "words", "aria-label": "Words that set it apart" }, ...words)] : [];
  return [...list, grid, ...reply.notes.map((note) => element("p", { className: "remark" }, note))];
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
  const reply = await fetchAnswer(`ask?base=${encodeURIComponent(data.base)}`, signal, askedText.value);
  clearInterval(clock);
  asking = null;
  part("run-text").textContent = "Ask";
  showSize();
  message.textContent = reply.error ?? reply.headline;
  if (!reply.error) part("text-rows").replaceChildren(likelyTable(reply), ...reply.notes.map((note) => element("p", { className: "remark" }, note)));
}

function likelyTable({ models }) {
  const number = (value, digits) => element("td", { className: "number" }, value === null ? "–" : value.toFixed(digits));
  const rows = models.map((model) => element("tr", {},
    element("td", { className: "number" }, String(model.rank)), modelCell(data.ids[placeOfModel.get(model.model)], model.model),
    number(model.score, 1), element("td", { className: "number" }, model.p_value.toPrecision(2)),
    element("td", { className: "number" }, model.expected_by_chance.toPrecision(2)),
    number(model.by_vocabulary, 2), number(model.by_vectors, 2),
    element("td", {}, model.datasets.join(", ") || "–"), element("td", {}, model.author), element("td", {}, model.relation),
  ));
  return tableOf(["", "model", "score", "p", "expected by chance", "by its words", "by its vector", "datasets", "author", "relation"], rows, 10);
}

askedText.addEventListener("input", showSize);
part("run-text").addEventListener("click", () => (asking ? asking.abort() : askByText()));
part("open-text").addEventListener("click", () => openOverlay(overlay === "text" ? null : "text"));
showSize();
