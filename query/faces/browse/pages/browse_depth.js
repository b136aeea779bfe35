// A depth profile: a small panel for each measure, layer by layer; the base in grey.

const SHARES = ["readable", "recovered", "recovered_seed", "verified", "cka"];
const PANEL = { width: 220, height: 110, left: 34, right: 8, top: 8, bottom: 18 };

function depthPart(depth) {
  if (!depth) return null;
  const probe = depth.tokens ? `${depth.sequences} × ${depth.tokens} ${depth.probe} tokens` : `${depth.sequences ?? "some"} images`;
  const panels = depth.panels.map((panel) => element("figure", {},
    element("figcaption", {}, panel.title, element("span", { className: "facts" }, `${panel.axis}, by layer`)), depthPanel(panel, depth)));
  const words = `How much of its input each layer keeps, measured with ${probe}; the base in grey, bars are standard errors.`;
  return sectionOf("Depth profile", element("p", {}, words), element("div", { className: "panels" }, ...panels));
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function depthPanel({ name, title }, { layers, base }) {
  const known = [...layers, ...base].filter((row) => Number.isFinite(row[name]));
  const values = known.flatMap((row) => [row[name] - (row[`${name}_error`] ?? 0), row[name] + (row[`${name}_error`] ?? 0)]);
  const [low, high] = SHARES.includes(name) ? [0, 1] : [Math.min(0, ...values), Math.max(...values, 1e-9)];
  const deepest = Math.max(...known.map((row) => row.layer), 2);
  const { width, height, left, right, top, bottom } = PANEL;
  const x = (layer) => left + ((layer - 1) / (deepest - 1)) * (width - left - right);
  const y = (value) => height - bottom - ((Math.min(high, Math.max(low, value)) - low) / (high - low)) * (height - top - bottom);
  const curve = (rows, kind) => {
    const points = rows.filter((row) => Number.isFinite(row[name]));
    const line = svg("polyline", { class: kind, points: points.map((row) => `${x(row.layer)},${y(row[name])}`).join(" ") });
    const bars = points.filter((row) => row[`${name}_error`]).map((row) => svg("line", {
      class: kind, x1: x(row.layer), x2: x(row.layer), y1: y(row[name] - row[`${name}_error`]), y2: y(row[name] + row[`${name}_error`]),
    }));
    const dots = points.map((row) => svg("circle", { class: kind, cx: x(row.layer), cy: y(row[name]), r: 2 }));
    return [line, ...bars, ...dots];
  };
  const text = (words, at, anchor) => svg("text", { ...at, "text-anchor": anchor }, words);
  const ends = layers.filter((row) => Number.isFinite(row[name]));
  const said = ends.length ? `from ${shortNumber(ends[0][name])} to ${shortNumber(ends.at(-1)[name])}` : "";
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}, ${said}` },
    svg("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }),
    text(shortNumber(high), { x: left - 4, y: top + 4 }, "end"), text(shortNumber(low), { x: left - 4, y: height - bottom }, "end"),
    text("1", { x: left, y: height - 5 }, "middle"), text(String(deepest), { x: width - right, y: height - 5 }, "end"),
    ...curve(base, "theirs"), ...curve(layers, "mine"));
}
