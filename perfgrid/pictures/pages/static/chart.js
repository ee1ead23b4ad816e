// A picture as SVG: panels of lines, points, bars, rules and cells. It computes nothing; the numbers are given.

const LIGHT = ["#0072b2", "#c04d00", "#00795a", "#a8508a", "#8a6100", "#3a7ca5", "#5a5a5a", "#111111"];
const DARK = ["#56b4e9", "#f08a4b", "#2bc49a", "#e29bc5", "#e6b33c", "#8fb8de", "#b5b5b5", "#f0f0f0"];
const SYMBOLS = ["circle", "square", "triangle", "diamond", "star", "cross", "wye"];
const DASHES = ["", "6 3", "2 3", "8 3 2 3"];
const NONE = "×"; // where a design is infeasible

function isDark() { return window.matchMedia("(prefers-color-scheme: dark)").matches; }
function colour(i) { const every = isDark() ? DARK : LIGHT; return every[i % every.length]; }
function inks() {
  const style = getComputedStyle(document.documentElement);
  return { ink: style.getPropertyValue("--ink").trim(), faint: style.getPropertyValue("--faint").trim(), paper: style.getPropertyValue("--paper").trim(), line: style.getPropertyValue("--line").trim() };
}

function titled(axis) { return axis.unit ? `${axis.label} [${axis.unit}]` : axis.label; }

// Category names that fit beside an axis.
function short(name, most) { return name.length > most ? `${name.slice(0, most - 1)}…` : name; }

function scaleOf(axis, ends, room, upwards = false, zero = false, most = 22) {
  if (axis.scale === "categories") {
    const every = axis.categories.map((_, i) => i), step = Math.max(1, Math.ceil(every.length / room)), last = every.length - 0.5;
    return { type: "linear", domain: [-0.5, last], label: null, ticks: every.filter((i) => i % step === 0), tickFormat: (i) => short(plain(axis.categories[i]), most) };
  }
  const found = { type: axis.scale === "log" ? "log" : "linear", label: null, nice: false, domain: roomy(axis, ends, upwards || zero) };
  if (axis.ticks && axis.ticks.length) {
    const names = new Map(axis.ticks);
    return { ...found, ticks: axis.ticks.map((tick) => tick[0]), tickFormat: (v) => plain(names.get(v) ?? "") };
  }
  if (axis.scale === "log") { found.ticks = 5; found.tickFormat = (v) => (logTick(v, ends) ? digits(v) : ""); }
  else { found.ticks = Math.max(3, Math.round(room / 4)); found.tickFormat = (v) => digits(v); }
  return found;
}

// A little more than the numbers; from zero where they come near it.
function roomy(axis, [least, most], zero) {
  if (axis.scale === "log") { const room = Math.max(1.02, (most / least) ** 0.04); return [least / room, most * room]; }
  const room = (most - least || Math.abs(most) || 1) * 0.04;
  return [least === 0 || (zero && least > 0 && least < 0.4 * most) ? 0 : least - room, most === 0 ? 0 : most + room];
}

function logTick(v, [least, most]) {
  const lead = Number((v / 10 ** Math.floor(Math.log10(v) + 1e-9)).toFixed(3)), decades = Math.log10(most / least);
  return decades < 1.2 || (decades < 2.5 ? [1, 2, 5].includes(lead) : lead === 1);
}

function marksOf(panel, names) {
  return panel.series.flatMap((series) => series.x.map((x, i) => ({
    series, i, x, y: series.y[i], name: series.name, number: names.get(series.name),
    base: series.base.length ? series.base[i] : 0, low: series.low[i], high: series.high[i],
    reason: series.reasons[i] || "", text: series.texts[i] || "",
    title: plain([series.labels[i] || series.name, series.reasons[i] ? `infeasible: ${series.reasons[i]}` : ""].filter(Boolean).join("\n")),
  })));
}

function extent(values, axis) {
  const known = values.filter((v) => v !== null && v !== undefined && Number.isFinite(v) && (axis.scale !== "log" || v > 0));
  return known.length ? [d3.min(known), d3.max(known)] : [1, 10];
}

function drawPanel(panel, names, width, description) {
  const ink = inks(), every = marksOf(panel, names), there = every.filter((m) => m.y !== null && Number.isFinite(m.y) && m.x !== null);
  const missing = every.filter((m) => m.reason && (m.y === null || !Number.isFinite(m.y)));
  const rules = panel.rules || [], barsAlongX = panel.y.scale === "categories";
  const bars = there.filter((m) => m.series.shape === "bars");
  const xs = [...there.flatMap((m) => [m.x, ...(barsAlongX ? [m.base, m.low, m.high] : bars.includes(m) ? [m.x - m.series.width / 2, m.x + m.series.width / 2] : [])]), ...rules.filter((r) => r.along === "x").map((r) => r.at), ...missing.map((m) => m.x)].filter((v) => v !== undefined);
  const ys = [...there.flatMap((m) => (barsAlongX ? [m.y] : [m.y, m.low, m.high, ...(m.series.shape === "bars" ? [m.base] : [])])), ...rules.filter((r) => r.along === "y").map((r) => r.at)].filter((v) => v !== undefined);
  const longest = (axis) => Math.max(0, ...(axis.categories || []).map((n) => Math.min(22, n.length)));
  const left = panel.y.scale === "categories" ? Math.min(width * 0.42, 16 + 7 * longest(panel.y)) : 56;
  const wideNames = panel.x.scale === "categories" && longest(panel.x) * 6.5 > (width - left) / panel.x.categories.length;
  const bottom = wideNames ? 20 + 5 * longest(panel.x) : 40;
  const cells = panel.cells, rows = panel.y.scale === "categories" ? panel.y.categories.length : 0;
  const height = rows ? Math.max(150, Math.min(900, rows * 24 + bottom + 30)) : Math.round(Math.min(420, Math.max(280, width * 0.55)));
  const x = scaleOf(panel.x, extent(xs, panel.x), wideNames ? (width - left) / 14 : width / 40, false, barsAlongX), y = scaleOf(panel.y, extent(ys, panel.y), height / 13, true, false, Math.max(6, Math.min(22, Math.floor((left - 16) / 6.6))));
  if (barsAlongX && there.some((m) => m.text)) { // room for texts behind bars
    const share = Math.min(0.6, (7 * d3.max(there, (m) => m.text.length)) / (width - left)), more = share / (1 - share), [low, high] = x.domain;
    x.domain = [low, x.type === "log" ? high * (high / low) ** more : high + more * (high - low)];
    if (x.type === "log" && !x.ticks.length) x.tickFormat = (v) => (logTick(v, x.domain) ? digits(v) : "");
  }
  if (wideNames) x.tickRotate = -40;
  const lowest = extent(barsAlongX ? xs : ys, barsAlongX ? panel.x : panel.y)[0] / 2;
  const isPoints = (m) => m.series.shape !== "bars";
  const marks = [];
  if (!cells) {
    if (panel.x.scale !== "categories") marks.push(Plot.gridX({ stroke: ink.line, strokeOpacity: 1, ticks: x.ticks }));
    if (panel.y.scale !== "categories") marks.push(Plot.gridY({ stroke: ink.line, strokeOpacity: 1, ticks: y.ticks }));
  }
  for (const rule of rules) {
    const about = { stroke: ink.ink, strokeDasharray: "4 3" };
    const words = { text: [plain(rule.name)], fill: ink.ink, textAnchor: "end", dy: -6, frameAnchor: rule.along === "x" ? "top-right" : "right" };
    if (rule.along === "x") marks.push(Plot.ruleX([rule.at], about), Plot.text([rule.at], { ...words, x: [rule.at], frameAnchor: "top", textAnchor: "start", dx: 4, dy: 4 }));
    else marks.push(Plot.ruleY([rule.at], about), Plot.text([rule.at], { ...words, y: [rule.at] }));
  }
  if (cells) marks.push(...cellMarks(cells, ink, width - left));
  if (bars.length) {
    const about = { fill: (m) => colour(m.number), stroke: ink.paper, strokeWidth: 0.6 }, half = (m) => m.series.width / 2;
    const from = (m) => ((barsAlongX ? panel.x : panel.y).scale === "log" && m.base <= 0 ? lowest : m.base);
    const known = bars.filter((m) => m.low !== undefined && m.low !== null && m.high !== null);
    const across = { stroke: ink.ink, strokeWidth: 1 };
    marks.push(barsAlongX ? Plot.rect(bars, { x1: from, x2: "x", y1: (m) => m.y - half(m), y2: (m) => m.y + half(m), ...about })
      : Plot.rect(bars, { y1: from, y2: "y", x1: (m) => m.x - half(m), x2: (m) => m.x + half(m), ...about }));
    if (known.length) marks.push(barsAlongX ? Plot.ruleY(known, { y: "y", x1: "low", x2: "high", ...across }) : Plot.ruleX(known, { x: "x", y1: "low", y2: "high", ...across }));
  }
  for (const series of panel.series.filter((s) => s.shape === "line")) {
    const number = names.get(series.name), own = every.filter((m) => m.series === series);
    if (series.low.length) marks.push(Plot.areaY(own, { x: "x", y1: "low", y2: "high", fill: colour(number), fillOpacity: 0.13 }));
    marks.push(Plot.line(own, { x: "x", y: (m) => (m.y === null ? NaN : m.y), stroke: colour(number), strokeWidth: 1.7, strokeDasharray: DASHES[Math.floor(number / SYMBOLS.length) % DASHES.length] || undefined }));
  }
  const dots = there.filter(isPoints), ends = dots.filter((m) => m.series.shape === "points" && m.low !== undefined && m.low !== null);
  if (ends.length) marks.push(Plot.ruleX(ends, { x: "x", y1: "low", y2: "high", stroke: (m) => colour(m.number), strokeWidth: 1.2 }));
  marks.push(Plot.dot(dots.filter((m) => m.reason), { x: "x", y: "y", stroke: ink.faint, strokeOpacity: 0.6, r: 2.5 }));
  for (const number of new Set(dots.map((m) => m.number))) {
    marks.push(Plot.dot(dots.filter((m) => m.number === number && !m.reason), { x: "x", y: "y", fill: colour(number), symbol: SYMBOLS[number % SYMBOLS.length], r: 3.2, stroke: ink.paper, strokeWidth: 0.6 }));
  }
  const written = there.filter((m) => m.text);
  const along = (v) => (x.type === "log" ? Math.log(v / x.domain[0]) / Math.log(x.domain[1] / x.domain[0]) : (v - x.domain[0]) / (x.domain[1] - x.domain[0]));
  const texts = (of, more) => marks.push(Plot.text(of, { y: "y", text: (m) => plain(m.text), fill: ink.ink, ...more }));
  if (barsAlongX) texts(written, { x: (m) => Math.max(m.x, m.base ?? m.x, m.high ?? m.x), dx: 4, textAnchor: "start" });
  else for (const [least, textAnchor] of [[0, "middle"], [0.8, "end"]]) texts(written.filter((m) => (along(m.x) > 0.8) === (least > 0)), { x: "x", dy: -9, textAnchor });
  if (missing.length && !barsAlongX) {
    const kept = missing.filter((m) => m.x !== null);
    [...new Set(kept.map((m) => m.number))].forEach((n, row) => marks.push(Plot.text(kept.filter((m) => m.number === n), { x: "x", frameAnchor: "bottom", text: () => NONE, fill: colour(n), dy: -2 - 9 * row, fontSize: 13 })));
  }
  marks.push(Plot.axisX({ anchor: "bottom", ticks: x.ticks, tickFormat: x.tickFormat, tickRotate: x.tickRotate || 0, label: null, fill: ink.ink, stroke: ink.faint }));
  marks.push(Plot.axisY({ anchor: "left", ticks: y.ticks, tickFormat: y.tickFormat, label: null, fill: ink.ink, stroke: ink.faint }));
  const told = { fill: ink.paper, stroke: ink.faint, fontSize: 12, lineHeight: 1.3, lineWidth: Math.min(34, width / 12), textPadding: 9, title: (m) => m.title };
  if (cells) marks.push(Plot.tip(cellsOf(cells), Plot.pointer({ x: "x", y: "y", ...told })));
  else {
    const known = barsAlongX ? bars.map((m) => ({ ...m, mid: (m.base + m.x) / 2 })) : there;
    if (known.length) marks.push(Plot.tip(known, Plot.pointer({ x: barsAlongX ? "mid" : "x", y: bars.length && !barsAlongX ? (m) => (m.base + m.y) / 2 : "y", ...told, maxRadius: 60 })));
    if (missing.length && !barsAlongX) marks.push(Plot.tip(missing, Plot.pointerX({ x: "x", frameAnchor: "bottom", ...told, maxRadius: 8 })));
  }
  const drawn = Plot.plot({
    className: "picture", width, height, marginLeft: left, marginBottom: bottom, marginTop: 14, marginRight: 18,
    x: { ...x, tickFormat: undefined, ticks: undefined, tickRotate: undefined }, y: { ...y, tickFormat: undefined, ticks: undefined }, marks, style: { fontSize: "12px", color: ink.ink },
  });
  for (const group of drawn.querySelectorAll("[aria-label]")) group.removeAttribute("aria-label"); // parts of one image
  drawn.setAttribute("role", "img");
  drawn.setAttribute("aria-label", plain(description));
  return drawn;
}

function cellsOf(cells) {
  return cells.numbers.flatMap((row, y) => row.map((value, x) => ({
    x, y, value, text: cells.texts[y][x], reason: cells.reasons[y][x],
    title: plain([cells.labels[y][x], cells.reasons[y][x] ? `infeasible: ${cells.reasons[y][x]}` : ""].filter(Boolean).join("\n")),
  })));
}

// Light is little and dark is much, or in the dark the other way; infeasible cells are hollow.
function cellMarks(cells, ink, room) {
  const every = cellsOf(cells), known = every.filter((c) => c.value !== null && Number.isFinite(c.value));
  const [least, most] = extent(known.map((c) => c.value), { scale: cells.value.scale });
  const where = (v) => (most === least ? 0.5 : cells.value.scale === "log" ? Math.log(v / least) / Math.log(most / least) : (v - least) / (most - least));
  const shade = (v) => d3.interpolateCividis(0.08 + 0.87 * where(v));
  const columns = Math.max(1, cells.numbers[0] ? cells.numbers[0].length : 1), fits = (c) => c.text && c.text.length * 6.2 < room / columns;
  const corners = { x1: (c) => c.x - 0.5, x2: (c) => c.x + 0.5, y1: (c) => c.y - 0.5, y2: (c) => c.y + 0.5 };
  return [
    Plot.rect(every.filter((c) => c.value === null || !Number.isFinite(c.value)), { ...corners, fill: ink.paper, stroke: ink.line, inset: 0.5 }),
    Plot.text(every.filter((c) => c.reason), { x: "x", y: "y", text: (c) => (fits(c) ? plain(c.text) : NONE), fill: ink.faint }),
    Plot.rect(known, { ...corners, fill: (c) => shade(c.value), inset: 0.5 }),
    Plot.text(known.filter(fits), { x: "x", y: "y", text: (c) => plain(c.text), fill: (c) => (where(c.value) > 0.5 ? "#111" : "#fff") }),
  ];
}

function shades(cells) {
  const [least, most] = extent(cells.numbers.flat(), cells.value);
  return least === most ? "" : `, from ${digits(least)} (dark) to ${digits(most)} (light)`;
}

function legend(picture, names) {
  if (names.size < 2 && !picture.legend) return null;
  const items = [...names].map(([name, number]) => {
    const shapes = picture.panels.flatMap((p) => p.series).filter((s) => s.name === name).map((s) => s.shape);
    const path = d3.symbol(shapes.includes("bars") ? d3.symbolSquare : { circle: d3.symbolCircle, square: d3.symbolSquare, triangle: d3.symbolTriangle, diamond: d3.symbolDiamond, star: d3.symbolStar, cross: d3.symbolCross, wye: d3.symbolWye }[SYMBOLS[number % SYMBOLS.length]], 48)();
    const icon = d3.create("svg").attr("width", 22).attr("height", 12).attr("viewBox", "-11 -6 22 12").attr("aria-hidden", "true");
    const excluded = picture.panels.flatMap((p) => p.series).filter((s) => s.name === name).every((s) => s.y.length && s.reasons.length === s.y.length && s.reasons.every(Boolean));
    if (excluded) { // as such marks are drawn
      icon.append("circle").attr("r", 2.5).attr("fill", "none").attr("stroke", inks().faint);
      return element("li", {}, icon.node(), name);
    }
    if (shapes.includes("line")) icon.append("line").attr("x1", -11).attr("x2", 11).attr("stroke", colour(number)).attr("stroke-width", 1.7);
    icon.append("path").attr("d", path).attr("fill", colour(number));
    return element("li", {}, icon.node(), name);
  });
  if (picture.panels.some((p) => p.series.some((s) => s.reasons.some((r, i) => r && (s.y[i] === null || !Number.isFinite(s.y[i])))))) items.push(element("li", { class: "of" }, `${NONE} infeasible`));
  return element("ul", { class: "legend", "aria-label": picture.legend || "series" }, picture.legend ? element("li", { class: "of" }, picture.legend) : null, ...items);
}

// The numbers of a picture as columns: what a table shows and what a CSV holds.
function columnsOf(picture) {
  const found = [], add = (header, texts, sorted) => found.push({ header: header || "label", texts, sorted });
  const text = (v) => (v === null || v === undefined || !Number.isFinite(v) ? "–" : digits(v));
  for (const panel of picture.panels) {
    const named = (axis, v) => (axis.scale === "categories" ? axis.categories[Math.round(v)] ?? "–" : text(v));
    if (panel.cells) {
      const every = cellsOf(panel.cells);
      add(panel.y.label, every.map((c) => panel.y.categories[c.y]), null);
      add(panel.x.label, every.map((c) => panel.x.categories[c.x]), null);
      add(titled(panel.cells.value), every.map((c) => text(c.value)), every.map((c) => c.value));
      add("reason", every.map((c) => c.reason || ""), null);
      break;
    }
    const every = marksOf(panel, new Map()), sorted = (axis, key) => (axis.scale === "categories" ? null : every.map((m) => m[key]));
    if (panel.title) add("panel", every.map(() => panel.title), null);
    add(picture.legend || "series", every.map((m) => m.name), null);
    add(titled(panel.x), every.map((m) => named(panel.x, m.x)), sorted(panel.x, "x"));
    add(titled(panel.y), every.map((m) => named(panel.y, m.y)), sorted(panel.y, "y"));
    if (every.some((m) => m.low !== undefined)) add("90 % interval", every.map((m) => `${text(m.low)} to ${text(m.high)}`), null);
    if (every.some((m) => m.reason)) add("reason", every.map((m) => m.reason), null);
  }
  return found;
}

function drawPicture(picture, width) {
  const names = new Map();
  for (const panel of picture.panels) for (const series of panel.series) if (!names.has(series.name)) names.set(series.name, names.size);
  const side = picture.panels.length > 1 && width >= 856 ? Math.floor((width - 16) / 2) : width;
  const drawn = picture.panels.map((panel) => {
    const what = `${picture.title}${panel.title ? `, ${panel.title}` : ""}: ${titled(panel.y)} by ${titled(panel.x)}. The numbers are in the table below.`;
    return element("div", { class: "panel" }, panel.title ? element("h4", {}, panel.title) : null,
      panel.y.label || panel.cells ? element("p", { class: "axis" }, `↑ ${panel.cells ? `${panel.y.label}; cells: ${titled(panel.cells.value)}${shades(panel.cells)}` : titled(panel.y)}`) : null, drawPanel(panel, names, side, what), element("p", { class: "axis right" }, `${titled(panel.x)} →`));
  });
  return [legend(picture, names), element("div", { class: "panels" }, ...drawn)];
}

// A picture that stands alone: its numbers, files of it.
function figure(picture, columns = columnsOf(picture)) {
  const stage = element("div", { class: "stage" }), again = () => stage.replaceChildren(...drawPicture(picture, Math.max(280, stage.clientWidth)).filter(Boolean));
  redrawn.push(again);
  requestAnimationFrame(again);
  return element("figure", { "data-view": picture.name }, element("h3", {}, picture.title && picture.title !== content.title ? picture.title : picture.name), picture.see ? element("p", { class: "see" }, picture.see) : null, stage,
    element("figcaption", {}, ...picture.caption.map((line) => element("p", {}, line))), files(() => picture.name || "picture", stage, () => columns),
    element("details", {}, element("summary", {}, "Numbers of this picture"), table(`Numbers of ${picture.name}`, { columns })));
}

const redrawn = []; // what is drawn anew when the window or its colours change
function redraw() { for (const again of redrawn) again(); }

function files(name, stage, columns, more = []) {
  const button = (text, act) => element("button", { type: "button", class: "small", onclick: act }, text);
  return element("div", { class: "files", role: "group", "aria-label": "Save the picture" },
    button("CSV", () => saved(`${name()}.csv`, new Blob([csv(columns())], { type: "text/csv" }))),
    button("SVG", () => saved(`${name()}.svg`, new Blob([svgText(stage)], { type: "image/svg+xml" }))),
    button("PNG", () => png(stage).then((blob) => saved(`${name()}.png`, blob))), ...more.map(([text, act]) => button(text, act)));
}

// Panels below each other in one SVG, with axes named and the legend.
function svgText(stage) {
  const ink = inks(), panels = [...stage.querySelectorAll(".panel")], items = [...stage.querySelectorAll(".legend li:not(.of)")];
  const width = Math.max(...panels.map((p) => p.querySelector("svg.picture").width.baseVal.value));
  const made = d3.create("svg").attr("xmlns", "http://www.w3.org/2000/svg").attr("font-family", "sans-serif").attr("font-size", 12).attr("fill", ink.ink);
  const ground = made.append("rect").attr("width", "100%").attr("height", "100%").attr("fill", ink.paper);
  let top = 8, left = 8;
  for (const item of items) {
    const size = 34 + 7 * item.textContent.length;
    if (left + size > width && left > 8) { left = 8; top += 18; }
    const icon = item.querySelector("svg").cloneNode(true);
    icon.setAttribute("x", left); icon.setAttribute("y", top);
    made.node().append(icon);
    made.append("text").attr("x", left + 27).attr("y", top + 10).text(item.textContent);
    left += size;
  }
  top += items.length ? 28 : 8;
  for (const panel of panels) {
    const right = panel.querySelector(".axis.right").textContent, above = panel.querySelector(".axis:not(.right)"), up = above ? above.textContent : "", own = panel.querySelector("svg.picture").cloneNode(true);
    const heading = panel.querySelector("h4") ? `${panel.querySelector("h4").textContent}   ` : "";
    made.append("text").attr("x", 8).attr("y", top + 6).text(`${heading}${up}`);
    own.setAttribute("y", top + 12);
    top += 12 + own.height.baseVal.value;
    made.node().append(own);
    made.append("text").attr("x", width - 10).attr("y", top + 6).attr("text-anchor", "end").text(right);
    top += 26;
  }
  made.attr("width", width).attr("height", top).attr("viewBox", `0 0 ${width} ${top}`);
  ground.attr("width", width).attr("height", top);
  return new XMLSerializer().serializeToString(made.node());
}

async function png(stage) {
  const address = URL.createObjectURL(new Blob([svgText(stage)], { type: "image/svg+xml" })), image = new Image();
  await new Promise((done, failed) => { image.onload = done; image.onerror = failed; image.src = address; });
  const canvas = element("canvas", { width: 2 * image.width, height: 2 * image.height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(address);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
