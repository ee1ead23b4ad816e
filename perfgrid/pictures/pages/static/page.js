// The page: what the result says in words and tables, its pictures, and the view that one moves.

const content = JSON.parse(document.getElementById("content").textContent);
const source = content.live ? new LiveSource() : new EmbeddedSource(content.grid, content.stored);
const page = document.getElementById("page");
const pins = [];

const derived = element("div", { class: "derived", "aria-live": "polite" });
const pinned = element("div", { class: "pinned" });

async function derive(quantity, rows, changed = {}) {
  pin(rows, changed);
  if (!source.live) return;
  derived.replaceChildren(element("p", { class: "note" }, "deriving …"));
  try {
    const found = await source.ask("explain", { quantity, rows, changed });
    derived.replaceChildren(element("h3", {}, `${quantity} of this design`), derivation(found, content.units));
  } catch (error) {
    derived.replaceChildren(element("p", { class: "note" }, error.message));
  }
}

// The design that was chosen last, beside the one that was kept.
let pinning = 0;
async function pin(rows, changed = {}) {
  const mine = (pinning += 1);
  for (const button of pinned.querySelectorAll("button")) button.disabled = true; // what they say is of another design
  pins[1] = { rows, changed };
  const kept = pins.filter(Boolean);
  const quantities = content.grid.quantities, values = await Promise.all(kept.map((one) => source.design(one)));
  if (mine !== pinning) return;
  const axes = content.grid.axes.filter((axis) => axis.texts.length > 1), names = kept.length > 1 ? ["A, kept", "B, chosen"] : ["chosen"];
  const columns = [{ header: "quantity", texts: [...axes.map((a) => a.name), ...quantities.map((q) => q.name), "infeasible because"], sorted: null },
    ...kept.map((one, k) => ({
      header: names[k], sorted: null, texts: [...axes.map((a) => a.texts[one.rows[a.name]]), ...quantities.map((q, i) => number(values[k].numbers[i], q.units)),
        values[k].reasons.filter(Boolean).map((r) => content.grid.constraints[r - 1].reason)[0] || "–"],
    }))];
  if (kept.length > 1) {
    columns.push({ header: "B / A", sorted: null, texts: [...axes.map(() => ""), ...quantities.map((q, i) => {
      const ratio = values[1].numbers[i] / values[0].numbers[i];
      return Number.isFinite(ratio) && values[1].numbers[i] !== null ? digits(ratio, 3) : "–";
    }), ""] });
  }
  const tools = [element("button", { type: "button", class: "small", onclick: () => { pins[0] = pins[1]; pin(pins[1].rows, pins[1].changed); } }, "Keep as A")];
  if (pins[0]) tools.push(element("button", { type: "button", class: "small", onclick: () => { pins[0] = undefined; pin(pins[1].rows, pins[1].changed); } }, "Forget A"));
  if (kept.length > 1 && source.live && content.comparable && JSON.stringify(kept[0].changed) === JSON.stringify(kept[1].changed)) tools.push(element("button", { type: "button", class: "small", onclick: compare }, "Compare part by part"));
  pinned.replaceChildren(element("h3", {}, "Chosen designs"), element("div", { class: "files" }, ...tools), table("Chosen designs", { columns }, { filtered: false }));
}

async function compare() {
  const place = element("div");
  pinned.append(place);
  try {
    const found = await source.ask("compare", { a: pins[0].rows, b: pins[1].rows, changed: pins[1].changed });
    place.replaceChildren(...found.sentences.map((line) => element("p", {}, line)), table("A and B part by part", found.table));
  } catch (error) { place.replaceChildren(element("p", { class: "note" }, error.message)); }
}

function list(lines) { return element("ul", {}, ...lines.map((line) => element("li", {}, line))); }

function rowsTable(title, rows, heads) {
  return table(title, { columns: heads.map(([key, header]) => ({ header, texts: rows.map((row) => row[key]), sorted: null })) });
}

function looking() {
  const view = new View(content, source, { derive });
  const made = section("Look around", element("p", { class: "hint" }, content.hint), ...view.shown(), pinned, derived);
  requestAnimationFrame(() => view.refresh());
  window.perfgridView = view;
  return made;
}

function far(rows) {
  derive(content.grid.objective, rows);
  derived.scrollIntoView({ block: "center" });
}

function best(told) {
  return told.best ? [section(told.bestTitle, table(told.bestTitle, told.best, { derive: source.live && told.best.designs.length ? far : null }))] : [];
}

function pictured(told) {
  return told.pictures.length ? [section("Pictures", ...told.pictures.map((picture) => (picture.error ? element("p", { class: "note" }, `${picture.title}: ${picture.error}`) : figure(picture))))] : [];
}

function rest(told) {
  const found = [];
  if (told.near) found.push(section("Near misses", element("p", {}, "Infeasible designs which would be better than the best feasible one of their model, device and size, and which one limit alone excludes; the nearest to that limit first."), table("Near misses", told.near)));
  if (told.excluded) found.push(section("What excludes designs", table("What excludes designs", told.excluded)));
  if (told.derivations.length) found.push(section("Derivations", ...told.derivations.map((one) => element("div", {}, element("h3", {}, `${one.quantity || content.grid.objective}, ${one.title}`), derivation(one, content.units)))));
  if (told.accuracy.table) found.push(section("How accurate such predictions are", element("p", {}, "Deviation of predictions from published measurements, as a share of the measurement."), table("Accuracy", told.accuracy.table), element("p", {}, told.accuracy.note)));
  if (told.assumptions.length) found.push(section("Assumptions", rowsTable("Assumptions", told.assumptions, [["name", "quantity"], ["value", "value"], ["meaning", "meaning"]])));
  if (told.sources.length || told.references.length) {
    found.push(section("Sources", told.sources.length ? element("details", {}, element("summary", {}, "of the catalog's values"), rowsTable("Sources of values", told.sources, [["entry", "entry"], ["source", "source"], ["quantities", "quantities"]])) : null,
      told.references.length ? element("details", {}, element("summary", {}, "of the formulas"), list(told.references)) : null));
  }
  if (told.study) found.push(section("Study", element("details", {}, element("summary", {}, "the study file"), element("pre", { tabindex: "0" }, told.study))));
  found.push(section("Versions", list(told.versions)));
  return found;
}

const summary = element("div", { class: "summary" });
const summed = (told) => summary.replaceChildren(...told.summary.map((line) => element("p", {}, line)));
page.replaceChildren(element("header", {}, element("p", { class: "kind" }, content.kind), element("h1", {}, content.title), summary));
async function lively() { // the view comes first, what takes longer follows
  const note = element("p", { class: "note", role: "status" }, "tables and pictures follow …");
  page.append(looking(), note);
  try {
    const told = await source.ask("rest", { version: content.version });
    if (told.reload) { window.location.reload(); return; } // it was of what the files held before
    summed(told);
    page.append(...best(told), note, ...rest(told));
    note.replaceWith(...pictured(await source.ask("pictures", {})));
    page.dataset.whole = "true";
  } catch (error) { note.textContent = plain(error.message); }
}
if (source.live) lively();
else {
  summed(content);
  page.append(...best(content), looking(), ...pictured(content), ...rest(content));
  page.dataset.whole = "true";
}
let resizing = 0, widthBefore = window.innerWidth;
window.addEventListener("resize", () => { if (window.innerWidth === widthBefore) return; widthBefore = window.innerWidth; cancelAnimationFrame(resizing); resizing = requestAnimationFrame(redraw); });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
