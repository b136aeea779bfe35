// Histograms that filter: the models that pass all other filters, in front of all models in grey.

const BINS = 24;

// The bin of a value; on a logarithmic scale, zeros and other values below its lower end are in the first bin.
function binOf(number, value) {
  if (number.kind === "log" && value < number.low) return 0;
  number.hasZeros ??= number.values.includes(0);
  const first = number.kind === "log" && number.hasZeros ? 1 : 0;
  return Math.min(BINS - 1, first + Math.floor(shareOfScale(number, value) * (BINS - first)));
}

// A range as a filter; null if it contains all known values.
function asFilter({ values }, [low, high]) {
  return low <= high && values.some((value) => value !== null && (value < low || value > high)) ? [low, high] : null;
}

function numberInput(number, which) {
  const isTime = number.kind === "time";
  const label = `${number.label ?? number.name}, ${which === 0 ? "at least" : "at most"}`;
  const input = element("input", {
    type: isTime ? "date" : "text", id: `${which ? "most" : "least"}-${number.name}`, inputMode: "decimal",
    autocomplete: "off", "aria-label": label, placeholder: isTime ? "" : which ? "most" : "least",
  });
  input.addEventListener("input", () => {
    const typed = isTime ? Date.parse(`${input.value}T00:00:00Z`) / 1000 + which * 86399 : Number.parseFloat(input.value);
    const range = [...(state.range[number.name] ?? [-Infinity, Infinity])];
    range[which] = Number.isFinite(typed) ? typed : which ? Infinity : -Infinity;
    state.range[number.name] = asFilter(number, range);
    refresh();
  });
  return input;
}

function endText({ kind }, end) {
  if (!Number.isFinite(end)) return "";
  return kind === "time" ? new Date(end * 1000).toISOString().slice(0, 10) : String(Number(end.toPrecision(6)));
}

function makeHistogram(number) {
  const { name, values } = number;
  const bins = Int8Array.from(values, (value) => (value === null ? NONE : binOf(number, value)));
  const totals = new Array(BINS).fill(0);
  const ends = Array.from({ length: BINS }, () => [Infinity, -Infinity]); // the smallest and largest value in each
  bins.forEach((bin, i) => {
    if (bin === NONE) return;
    totals[bin] += 1;
    ends[bin] = [Math.min(ends[bin][0], values[i]), Math.max(ends[bin][1], values[i])];
  });
  const tallest = Math.max(...totals, 1);
  const height = (models) => `${models ? Math.max(3, (100 * models) / tallest) : 0}%`;
  const bars = totals.map((models) => {
    const all = element("span", { className: "all" });
    all.style.height = height(models);
    return element("div", { className: "bin" }, all, element("span", { className: "now" }));
  });
  const chart = element("div", { className: "chart", role: "img" }, ...bars);
  const inputs = [numberInput(number, 0), numberInput(number, 1)];
  const clear = element("button", { type: "button", className: "plain", "aria-label": `Clear ${number.label ?? name}` }, "Clear");
  const scale = element("div", { className: "ends number" },
    element("span", {}, valueText(number, values.includes(0) ? 0 : number.low)), element("span", {}, valueText(number, number.high)));
  const title = element("p", { className: "title" }, number.label ?? name);
  const box = element("div", { className: "histogram" }, title, chart, scale, element("div", { className: "row" }, ...inputs, clear));
  brushes(chart, (from, to) => {
    const inside = ends.slice(from, to + 1).filter(([low, high]) => low <= high);
    state.range[name] = inside.length ? asFilter(number, [inside[0][0], inside.at(-1)[1]]) : null;
    refresh();
  });
  clear.addEventListener("click", () => {
    state.range[name] = null;
    refresh();
  });
  part("filters").append(box);
  return () => {
    const now = new Array(BINS).fill(0);
    let known = 0;
    for (let i = 0; i < count; i++) {
      if (bins[i] === NONE || !passesOthers(i, name)) continue;
      now[bins[i]] += 1;
      known += 1;
    }
    const range = state.range[name];
    bars.forEach((bar, bin) => {
      bar.lastChild.style.height = height(now[bin]);
      bar.classList.toggle("out", Boolean(range) && (ends[bin][1] < range[0] || ends[bin][0] > range[1]));
    });
    chart.setAttribute("aria-label", `Histogram of ${number.label ?? name}: ${numberText(known)} models`);
    inputs.forEach((input, which) => {
      if (document.activeElement !== input) input.value = range ? endText(number, range[which]) : "";
    });
    clear.hidden = !range;
  };
}

// A drag over the chart selects a range of bins; a click selects one.
function brushes(chart, choose) {
  let from = null;
  const binAt = (event) => {
    const { left, width } = chart.getBoundingClientRect();
    return Math.max(0, Math.min(BINS - 1, Math.floor(((event.clientX - left) / width) * BINS)));
  };
  const upTo = (event) => {
    const bin = binAt(event);
    choose(Math.min(from, bin), Math.max(from, bin));
  };
  chart.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    from = binAt(event);
    chart.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  chart.addEventListener("pointermove", (event) => {
    if (from !== null) chart.dataset.drawn = `${Math.min(from, binAt(event))} ${Math.max(from, binAt(event))}`;
  });
  chart.addEventListener("pointerup", (event) => {
    if (from !== null) upTo(event);
    from = null;
    delete chart.dataset.drawn;
  });
  chart.addEventListener("pointercancel", () => (from = null));
}
